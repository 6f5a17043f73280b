"""One folder is one dataset: a target has no other dataset below it and is not part of one (M10).

What is below is recognised in the listing that is made anyway, what is above by a few names in each folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.dataset.table_formats import LOGS, check_inside_table
from merganser.core.storage.staging import (
    BESIDE,
    HISTORY,
    INSIDE,
    PARTITION_RECORD,
    STAGING_PREFIX,
    choose_control_folder,
    find_owner,
    list_control,
    name_control_folder,
)
from merganser.errors import TargetPathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

_CONTROL = re.compile(re.escape(name_control_folder("@")).replace("@", "(.+)"))
# Any of these in a control folder tells of a commit; before there were marks, only history and record did.
_COMMITTED = frozenset({BESIDE, INSIDE, HISTORY, PARTITION_RECORD})


def is_mark(name: str) -> bool:
    """Say whether a folder of this name may tell of a dataset, or of a table of another format."""
    return name in LOGS or (name.startswith(".") and _CONTROL.fullmatch(name) is not None)


def check_below(location: Location, folders: Iterable[str], linked: Iterable[str]) -> None:
    """Refuse a target with another dataset below it: by the folders met there, and by the files that links lead to."""
    for folder in sorted(folders):
        if _CONTROL.fullmatch(folder.rpartition("/")[2]):
            _check_control(location, location.to_path(folder))
    # Of each folder one file will do.
    for path in {path.rpartition("/")[0]: path for path in linked}.values():
        found = find_enclosing_dataset(location.store, path)
        if found is not None and found.path != location.root:
            raise _make_contains_error(location, found.path, found.control)


def _check_control(location: Location, path: str) -> None:
    """Refuse the dataset that a control folder below belongs to, and a second control folder of the target."""
    store, own = location.store, choose_control_folder(location)
    control = _read_control(store, path)
    if path == own and not control.has_commits:
        return
    if control.owner == location.root:
        if path != own:
            raise _make_two_mounts_error(location, own, path)
    # What is left of a dataset that somebody removed does not count, but a first load does.
    elif control.has_staging or (control.has_commits and store.get_path_type(control.owner) == "directory"):
        below = len(location.root) + 1
        raise _make_contains_error(
            location, location.to_display(control.owner[below:]), location.to_display(path[below:])
        )


def _make_two_mounts_error(location: Location, own: str, other: str) -> TargetPathError:
    return TargetPathError(
        f"{location.display} has two control folders, {own} and {other}: its writers come through two mounts and do "
        "not see each other's locks. Let all of them use this path, call recover(path) through the other mount to "
        f"complete a pending commit, then remove {other}; its history and retained files are lost with it."
    )


def _make_contains_error(location: Location, dataset: str, control: str) -> TargetPathError:
    return TargetPathError(
        f"{location.display} contains the dataset {dataset}. Write to that dataset, or to a folder without one. If it "
        f"is no longer a dataset, {_format_remedy(dataset, control)}"
    )


def _format_remedy(dataset: str, control: str) -> str:
    return (
        f"call recover({dataset!r}) to complete a pending commit, then remove its control folder {control}; its "
        "history and retained files are lost with it."
    )


def check_above(location: Location, *, refuse_nested: bool) -> None:
    """Refuse a root inside a table of another format, and with `alone` one inside another dataset."""
    if not refuse_nested and location.ignore_table_format:
        return
    levels = list(_scan_parents(location.store, location.root))
    for level in levels:
        check_inside_table(location, level.folder, _spell(location, level.folder), level.found)
    found = _find_nearest(location.store, levels, choose_control_folder(location)) if refuse_nested else None
    if found is not None:
        dataset = _spell(location, found.path)
        message = (
            f"{location.display} lies inside the dataset {dataset}. Write to that dataset. If it is no longer a "
            f"dataset, or was removed, {_format_remedy(dataset, found.control)}"
        )
        raise TargetPathError(message)


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """A dataset by its folder and its control folder."""

    path: str
    control: str


def find_enclosing_dataset(store: Store, path: str) -> DatasetFolder | None:
    """Find the nearest dataset that a path lies inside."""
    return _find_nearest(store, _scan_parents(store, path))


@dataclass(frozen=True, slots=True)
class _ParentFolder:
    """A folder above a path, the name below it that leads to the path, and which marks are in the folder."""

    folder: str
    child: str
    found: set[str]


def _scan_parents(store: Store, path: str) -> Iterator[_ParentFolder]:
    """Look into each folder above a path, the nearest first."""
    folder, _, child = path.rpartition("/")
    while child and (folder or store.is_local):
        wanted = {*LOGS, name_control_folder(child), name_control_folder(folder.rpartition("/")[2])}
        yield _ParentFolder(folder, child, store.find_folders(folder or "/", wanted))
        folder, _, child = folder.rpartition("/")


def _find_nearest(store: Store, levels: Iterable[_ParentFolder], own: str | None = None) -> DatasetFolder | None:
    for number, level in enumerate(levels):
        beside, inside = name_control_folder(level.child), name_control_folder(level.folder.rpartition("/")[2])
        # What is beside the path itself is its own, unless the folder around it has the same name.
        for name in dict.fromkeys((inside, beside) if number else (inside,)):
            path = f"{level.folder}/{name}"
            control = _read_control(store, path) if name in level.found else None
            # In the control folder of the path itself, a staging folder alone is that of its own first load.
            if control is None or not (control.has_commits or (control.has_staging and path != own)):
                continue
            if control.owner == level.folder or (number and name == beside):
                return DatasetFolder(control.owner, path)
    return None


@dataclass(frozen=True, slots=True)
class _ControlFolder:
    """A control folder: the dataset it belongs to, and what is in it. A call that was refused may leave only a lock."""

    owner: str
    has_commits: bool
    has_staging: bool


def _read_control(store: Store, control: str) -> _ControlFolder:
    names = list_control(store, control)
    staging = any(name.startswith(STAGING_PREFIX) for name in names)
    return _ControlFolder(find_owner(store, control, names), not _COMMITTED.isdisjoint(names), staging)


def _spell(location: Location, above: str) -> str:
    """Spell a folder above the root the way the caller spelled the root, where that shows it."""
    below = location.root[len(above) :]
    spelled = location.display.removesuffix(below) if location.display.endswith(below) else above
    return spelled or "/"
