"""One folder is one dataset: a target contains no other dataset and lies inside none (M10).

Nested datasets are found in the listing that is made anyway, enclosing ones by a few names in each parent folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.dataset.table_formats import LOGS, check_inside_table
from merganser.core.storage import staging
from merganser.core.storage.staging import choose_control_folder, name_control_folder
from merganser.errors import TargetPathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

_CONTROL = re.compile(re.escape(name_control_folder("@")).replace("@", "(.+)"))
# Names that a commit leaves in a control folder; versions before the place markers left only history and record.
_COMMITTED = frozenset({staging.BESIDE, staging.INSIDE, staging.HISTORY, staging.PARTITION_RECORD})


def is_marker(name: str) -> bool:
    """Check whether a folder's name may be that of a control folder or of a table format's log."""
    return name in LOGS or (name.startswith(".") and _CONTROL.fullmatch(name) is not None)


def check_below(location: Location, folders: Iterable[str], linked: Iterable[str]) -> None:
    """Refuse a target with a nested dataset, found by folders in the target or by the targets of linked files."""
    for folder in sorted(folders):
        if _CONTROL.fullmatch(folder.rpartition("/")[2]):
            _check_control(location, location.to_path(folder))
    # One file per folder is enough.
    for path in {path.rpartition("/")[0]: path for path in linked}.values():
        found = find_enclosing_dataset(location.store, path)
        if found is not None and found.path != location.root:
            raise _make_contains_error(location, found.path, found.control)


def _check_control(location: Location, path: str) -> None:
    """Refuse a control folder in the target of a nested dataset, or a second one of the target itself."""
    store, own = location.store, choose_control_folder(location)
    control = _read_control(store, path)
    if path == own and not control.has_commits:
        return
    if control.owner == location.root:
        if path != own:
            raise TargetPathError(
                f"{location.display} has two control folders, {own} and {path}: its writers use two mounts and do not "
                "see each other's locks. Let all of them use this path, call recover(path) through the other mount to "
                f"complete a pending commit, then remove {path}; its history and retained files are lost with it."
            )
    # The control folder of a removed dataset is ignored, but not that of a first load.
    elif control.has_staging or (control.has_commits and store.get_path_type(control.owner) == "directory"):
        owner, folder = (location.to_display(full[len(location.root) + 1 :]) for full in (control.owner, path))
        raise _make_contains_error(location, owner, folder)


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
    """Refuse a root inside a table of another format and, with `refuse_nested`, inside another dataset."""
    if not refuse_nested and location.ignore_table_format:
        return
    levels = list(_scan_parents(location.store, location.root))
    for level in levels:
        check_inside_table(location, level.folder, _spell(location, level.folder), level.found)
    found = _find_nearest(location.store, levels, choose_control_folder(location)) if refuse_nested else None
    if found is not None:
        dataset = _spell(location, found.path)
        raise TargetPathError(
            f"{location.display} lies inside the dataset {dataset}. Write to that dataset. If it is no longer a "
            f"dataset, or was removed, {_format_remedy(dataset, found.control)}"
        )


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
    """A folder above a path, its child that leads to the path, and the markers `found` in it."""

    folder: str
    child: str
    found: set[str]


def _scan_parents(store: Store, path: str) -> Iterator[_ParentFolder]:
    """Yield the folders above a path, nearest first."""
    folder, _, child = path.rpartition("/")
    while child and (folder or store.is_local):
        wanted = {*LOGS, name_control_folder(child), name_control_folder(folder.rpartition("/")[2])}
        yield _ParentFolder(folder, child, store.find_folders(folder or "/", wanted))
        folder, _, child = folder.rpartition("/")


def _find_nearest(store: Store, levels: Iterable[_ParentFolder], own: str | None = None) -> DatasetFolder | None:
    for number, level in enumerate(levels):
        beside, inside = name_control_folder(level.child), name_control_folder(level.folder.rpartition("/")[2])
        # A control folder beside the path is its own, unless the parent folder has the same name.
        for name in dict.fromkeys((inside, beside) if number else (inside,)):
            path = f"{level.folder}/{name}"
            control = _read_control(store, path) if name in level.found else None
            # A staging folder alone in the path's own control folder belongs to its first load.
            if control is None or not (control.has_commits or (control.has_staging and path != own)):
                continue
            if control.owner == level.folder or (number and name == beside):
                return DatasetFolder(control.owner, path)
    return None


@dataclass(frozen=True, slots=True)
class _ControlFolder:
    """A control folder: its dataset, and what it holds. A refused call may leave only a lock."""

    owner: str
    has_commits: bool
    has_staging: bool


def _read_control(store: Store, control: str) -> _ControlFolder:
    names = staging.list_control(store, control)
    has_staging = any(name.startswith(staging.STAGING_PREFIX) for name in names)
    return _ControlFolder(staging.find_owner(store, control, names), not _COMMITTED.isdisjoint(names), has_staging)


def _spell(location: Location, above: str) -> str:
    """Return a folder above the root as the caller spelled it in the root, if it is part of that."""
    below = location.root[len(above) :]
    return (location.display.removesuffix(below) if location.display.endswith(below) else above) or "/"
