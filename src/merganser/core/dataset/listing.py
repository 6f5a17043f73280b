"""The data files of a dataset: one listing, and refusals where a folder is not one dataset of plain Parquet files."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from merganser.core.dataset.file_statistics import DataFile
from merganser.core.dataset.nesting import check_above, check_below, is_mark
from merganser.core.dataset.table_formats import check_tables, is_ducklake
from merganser.core.model.partitions import (
    parse_hive_partition_path,
)
from merganser.core.parquet.footer import MAGIC
from merganser.core.storage.local import DANGLING
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder, find_owner
from merganser.errors import (
    TargetPathError,
    UnreadableFileError,
    UnsupportedFileError,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from merganser.core.storage.location import Location


SUFFIX = ".parquet"


def list_dataset_files(
    dataset_path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
) -> list[str]:
    """List the data files of a dataset in name order; an absent folder has none.

    Args:
        dataset_path: The folder of the dataset, or its fsspec URL.
        filesystem: An fsspec or PyArrow filesystem that has the path.
        ignore_table_format: Take a table of another format for plain Parquet files.

    >>> list_dataset_files("no/such/dataset")
    []
    """
    location = locate(dataset_path, filesystem, ignore_table_format=ignore_table_format)
    check_above(location, refuse_nested=False)
    return [location.to_url(file.rel) for file in list_files(location)]


def list_files(location: Location, *, refuse_nested: bool = False) -> list[DataFile]:
    """List the data files below a root (P7); a listing that fails is an error, never an empty dataset (P6).

    With `alone`, for whoever is going to write, a root with another dataset below it is refused (M10).
    """
    files, others = _find_files(location, refuse_nested=refuse_nested)
    for rel in others:
        _check_suffix(location, rel)
    return sorted(files, key=attrgetter("rel"))


def _find_files(location: Location, *, refuse_nested: bool) -> tuple[list[DataFile], list[str]]:
    """Find data files and other visible files, in no order, unless tables or datasets are below the root."""
    if not _exists(location):
        return [], []
    files, others, marks = _walk(location)
    check_tables(location, marks)
    if refuse_nested:
        check_below(location, marks, (file.real for file in files if file.real is not None))
    return files, others


def _walk(location: Location) -> tuple[list[DataFile], list[str], list[str]]:
    """Give the data files, other visible files, and whatever tells of other datasets or of another table format."""
    files: list[DataFile] = []
    others: list[str] = []
    marks: list[str] = []
    read = cache(parse_hive_partition_path)

    def enter(folder: str) -> bool:
        name = folder.rpartition("/")[2]
        if is_mark(name):
            marks.append(folder)
        return _is_visible(name)

    for info in location.store.walk(location.root, enter):
        folder, slash, name = info.rel.rpartition("/")
        if not _is_visible(name):
            continue
        if name.endswith(SUFFIX):
            folders = read(folder + slash)
            files.append(DataFile(info.rel, info.size, info.identity, folders, info.version, info.changed, info.real))
            if is_ducklake(name):
                marks.append(info.rel)
        elif info.identity != DANGLING:
            others.append(info.rel)
    return files, others, marks


def check_target(location: Location, *, lists_later: bool = False) -> None:
    """Refuse to write where another dataset is below or above, before anything is made or read there (M10).

    `listed_at` says that the data files are going to be listed, and then what is below is found without a second
    listing. Before a first write they are listed here all the same, so that a refusal leaves no control folder behind.
    """
    check_above(location, refuse_nested=True)
    if not lists_later or not _has_control(location):
        list_files(location, refuse_nested=True)


def _has_control(location: Location) -> bool:
    """Say whether there is a control folder that is this dataset's, and not that of one below."""
    store, control = location.store, choose_control_folder(location)
    if store.get_path_type(control) is None:
        return False
    return not control.startswith(f"{location.root}/") or find_owner(store, control) == location.root


def check_not_nested(location: Location) -> None:
    """Refuse a root with another dataset below or above it, as `check_target` does, whatever other files are there."""
    check_above(location, refuse_nested=True)
    _find_files(location, refuse_nested=True)


def check_no_table_format(location: Location) -> None:
    """Refuse a folder that is, contains or is part of a table of another format."""
    check_above(location, refuse_nested=False)
    _find_files(location, refuse_nested=False)


def has_files(location: Location) -> bool:
    """Say whether there is any data file below a root, looking no further than the first."""
    if not _exists(location):
        return False
    found = (info.rel for info in location.store.walk(location.root, lambda rel: _is_visible(rel.rpartition("/")[2])))
    return any(rel.endswith(SUFFIX) and _is_visible(rel.rpartition("/")[2]) for rel in found)


def _exists(location: Location) -> bool:
    path_type = location.store.get_path_type(location.root)
    if path_type == "file":
        message = f"{location.display} is a file; a dataset is a folder. Give the folder that holds the Parquet files."
        raise TargetPathError(message)
    return path_type is not None


def is_data_file(rel: str) -> bool:
    """Check whether a relative path is that of a data file: not hidden, nor in a hidden folder (P7)."""
    return rel.endswith(SUFFIX) and all(map(_is_visible, rel.split("/")))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _check_suffix(location: Location, rel: str) -> None:
    try:
        with location.store.open_reader(location.to_path(rel)) as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        message = f"Cannot read {location.to_display(rel)}: {error}. Restore or remove the file."
        raise UnreadableFileError(message) from error
    if start == MAGIC:
        message = (
            f"{location.to_display(rel)} holds Parquet data but does not end in {SUFFIX}: some readers would see its "
            "rows "
            "and others not. Rename it to end in .parquet, or move it out of the dataset."
        )
        raise UnsupportedFileError(message)


def find_partition_columns(files: Iterable[DataFile]) -> list[str]:
    """Read the partition columns off the paths, in path order."""
    names: dict[str, None] = {}
    for file in files:
        names.update(dict.fromkeys(file.folders))
    return list(names)
