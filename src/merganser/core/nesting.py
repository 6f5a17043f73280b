"""One folder is one dataset: a target has no other dataset below it and is not part of one (M10).

What is below is recognised in the listing that is made anyway, what is above by a few names in each folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.errors import TargetPathError
from merganser.core.history import HISTORY
from merganser.core.staging import RECORD, STAGING_PREFIX, control_folder, control_name
from merganser.core.table_formats import LOGS, check_inside_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from merganser.core.storage import Store
    from merganser.core.store import Location

_CONTROL = re.compile(re.escape(control_name("@")).replace("@", "(.+)"))


def is_mark(name: str) -> bool:
    """Say whether a folder of this name may tell of a dataset, or of a table of another format."""
    return name in LOGS or (name.startswith(".") and _CONTROL.fullmatch(name) is not None)


def check_below(location: Location, folders: Iterable[str], linked: Iterable[str]) -> None:
    """Refuse a target with another dataset below it: by the folders met there, and by the files that links lead to."""
    for folder in sorted(folders):
        above, _, name = folder.rpartition("/")
        control = _CONTROL.fullmatch(name)
        if control is not None:
            _check_control(location, folder, above, control[1])
    # Of each folder one file will do.
    for path in {path.rpartition("/")[0]: path for path in linked}.values():
        found = find_around(location.store, path)
        if found is not None and found.path != location.root:
            raise _contains(location, found.path, found.control)


def _check_control(location: Location, control: str, above: str, name: str) -> None:
    """Refuse the dataset that a control folder belongs to: the one of its name beside it, or the one around it."""
    store, path = location.store, location.path(control)
    beside = f"{above}/{name}" if above else name
    if store.kind(location.path(beside)) == "directory":
        if _has_commits(store, path):
            raise _contains(location, location.shown(beside), location.shown(control))
    elif above:
        if above.rpartition("/")[2] == name and _has_commits(store, path):
            raise _contains(location, location.shown(above), location.shown(control))
    elif name == location.root.rpartition("/")[2] and control_folder(location) != path:
        message = (
            f"{location.display} has two control folders, {control_folder(location)} and {path}: its writers come "
            "through two mounts and do not see each other's locks. Let all of them use one path, and remove the "
            "control folder that they do not use then."
        )
        raise TargetPathError(message)


def _contains(location: Location, dataset: str, control: str) -> TargetPathError:
    return TargetPathError(
        f"{location.display} contains the dataset {dataset}. Write to that dataset, or to a folder without one; if it "
        f"is not a dataset, remove its control folder {control}."
    )


def check_above(location: Location, *, alone: bool) -> None:
    """Refuse a root inside a table of another format, and with `alone` one inside another dataset."""
    if not alone and location.ignore_table_format:
        return
    levels = list(_look_above(location.store, location.root))
    for level in levels:
        check_inside_table(location, level.folder, _spell(location, level.folder), level.found)
    found = _find_nearest(location.store, levels) if alone else None
    if found is not None:
        message = (
            f"{location.display} lies inside the dataset {_spell(location, found.path)}. Write to that dataset; if it "
            f"is not one, remove its control folder {found.control}."
        )
        raise TargetPathError(message)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by its folder and its control folder."""

    path: str
    control: str


def find_around(store: Store, path: str) -> Dataset | None:
    """Find the nearest dataset that a path lies inside."""
    return _find_nearest(store, _look_above(store, path))


@dataclass(frozen=True, slots=True)
class _Level:
    """A folder above a path, the name below it that leads to the path, and which marks are in the folder."""

    folder: str
    child: str
    found: set[str]


def _look_above(store: Store, path: str) -> Iterator[_Level]:
    """Look into each folder above a path, the nearest first."""
    folder, _, child = path.rpartition("/")
    while child and (folder or store.local):
        wanted = {*LOGS, control_name(child), control_name(folder.rpartition("/")[2])}
        yield _Level(folder, child, store.find_folders(folder or "/", wanted))
        folder, _, child = folder.rpartition("/")


def _find_nearest(store: Store, levels: Iterable[_Level]) -> Dataset | None:
    for number, level in enumerate(levels):
        beside, inside = control_name(level.child), control_name(level.folder.rpartition("/")[2])
        datasets = [(inside, level.folder)]
        if number == 0:
            # That of the path itself, even if the folder around it has the same name.
            datasets = [one for one in datasets if inside != beside]
        else:
            datasets.append((beside, f"{level.folder}/{level.child}"))
        for name, dataset in datasets:
            control = f"{level.folder}/{name}"
            # A control folder outlives a dataset that somebody removed.
            if name in level.found and store.kind(dataset) == "directory" and _has_commits(store, control):
                return Dataset(dataset, control)
    return None


def _has_commits(store: Store, control: str) -> bool:
    """Say whether a control folder is that of a dataset: a call that was refused may leave one with a lock alone."""
    return any(name in (HISTORY, RECORD) or name.startswith(STAGING_PREFIX) for name in store.names(control))


def _spell(location: Location, above: str) -> str:
    """Spell a folder above the root the way the caller spelled the root, where that shows it."""
    below = location.root[len(above) :]
    spelled = location.display.removesuffix(below) if location.display.endswith(below) else above
    return spelled or "/"
