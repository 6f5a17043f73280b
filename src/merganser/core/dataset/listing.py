"""Lists the data files of a dataset, and refuses a folder that is not exactly one dataset of plain Parquet files."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.core.dataset.file_statistics import DataFile
from merganser.core.dataset.nesting import check_above, check_below, is_marker
from merganser.core.dataset.table_formats import check_tables, is_ducklake
from merganser.core.model.partitions import parse_hive_partition_path
from merganser.core.parquet.footer import MAGIC, translate_read_errors
from merganser.core.storage.local import DANGLING
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder, find_owner
from merganser.errors import TargetPathError, UnsupportedFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import FileInfo

SUFFIX = ".parquet"
# Copies of all footers, or of the schema, that some writers leave beside the data files.
FOOTER_SUMMARY, SCHEMA_SUMMARY = "_metadata", "_common_metadata"


class Listing(NamedTuple):
    """The data files of a dataset in name order, and the paths of summary files, which describe data files."""

    files: list[DataFile]
    summary_files: list[str]


def list_dataset_files(
    dataset_path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
) -> list[str]:
    """List the data files of a dataset in name order; an absent folder has none.

    Args:
        dataset_path: The folder of the dataset, or its fsspec URL.
        filesystem: The fsspec or PyArrow filesystem of the path.
        ignore_table_format: Treat a table of another format as plain Parquet files.

    >>> list_dataset_files("no/such/dataset")
    []
    """
    location = locate(dataset_path, filesystem, ignore_table_format=ignore_table_format)
    check_above(location, refuse_nested=False)
    return [location.to_url(file.rel) for file in list_files(location)]


def list_files(location: Location, *, refuse_nested: bool = False) -> list[DataFile]:
    """List the data files below a root (P7); a listing that fails is an error, never an empty dataset (P6)."""
    return list_dataset(location, refuse_nested=refuse_nested).files


def list_dataset(location: Location, *, refuse_nested: bool = False) -> Listing:
    """List data files as `list_files` does, and summary files."""
    # Writers pass `refuse_nested`: another dataset below the root is an error for them (M10).
    found, summaries = _find_data_files(location, refuse_nested=refuse_nested)
    return Listing(_parse_folders(sorted(found, key=attrgetter("rel"))), sorted(summaries))


def list_identities(location: Location) -> dict[str, str]:
    """List the data files below a root with their identities, in no order; a writer uses this to find changes."""
    found, _ = _find_data_files(location, refuse_nested=True)
    return {info.rel: info.identity for info in found}


def _find_data_files(location: Location, *, refuse_nested: bool) -> tuple[list[FileInfo], list[str]]:
    """Find data files and summary files; Parquet files with another suffix are refused."""
    found, others, summaries = _find_files(location, refuse_nested=refuse_nested)
    for rel in others:
        _check_suffix(location, rel)
    return found, summaries


def _find_files(location: Location, *, refuse_nested: bool) -> tuple[list[FileInfo], list[str], list[str]]:
    """Find data files, other visible files and summary files; tables of other formats, nested datasets are refused."""
    if not location.store.lists_flat and not _exists(location):
        return [], [], []
    found: list[FileInfo] = []
    others: list[str] = []
    summaries: list[str] = []
    markers: list[str] = []  # paths that reveal another dataset or a table of another format

    def enter(folder: str) -> bool:
        name = folder.rpartition("/")[2]
        if is_marker(name):
            markers.append(folder)
        return _is_visible(name)

    for info in location.store.walk(location.root, enter):
        name = info.rel.rpartition("/")[2]
        if not name:
            # The listing of an object is the object itself, which is refused.
            _exists(location)
        elif name.endswith(SUFFIX) and _is_visible(name):
            found.append(info)
        elif name in (FOOTER_SUMMARY, SCHEMA_SUMMARY):
            summaries.append(info.rel)
        elif _is_visible(name) and info.identity != DANGLING:
            others.append(info.rel)
    suspects = [info.rel for info in found if "ducklake" in info.rel]
    markers += [rel for rel in suspects if is_ducklake(rel.rpartition("/")[2])]
    check_tables(location, markers)
    if refuse_nested:
        check_below(location, markers, (info.real for info in found if info.real is not None))
    return found, others, summaries


def _parse_folders(found: Iterable[FileInfo]) -> list[DataFile]:
    """Add the partition values of their paths to files; files of a folder share one mapping."""
    parse_folder = cache(parse_hive_partition_path)
    return [DataFile(*info, parse_folder(info.rel[: info.rel.rfind("/") + 1])) for info in found]


def check_target(location: Location, *, lists_later: bool = False) -> None:
    """Refuse to write inside or around another dataset, before anything is created or read there (M10)."""
    check_above(location, refuse_nested=True)
    # If it `lists_later`, the caller finds nested datasets then. A first write lists here all the same, so that a
    # refusal leaves no control folder behind.
    if not lists_later or not _has_control(location):
        list_files(location, refuse_nested=True)


def _has_control(location: Location) -> bool:
    """Check for a control folder of this dataset, not of one nested in it."""
    store, control = location.store, choose_control_folder(location)
    if store.get_path_type(control) is None:
        return False
    return not control.startswith(f"{location.root}/") or find_owner(store, control) == location.root


def check_not_nested(location: Location) -> None:
    """Refuse a root inside or around another dataset, like `check_target`, whatever other files are there."""
    check_above(location, refuse_nested=True)
    _find_files(location, refuse_nested=True)


def check_no_table_format(location: Location) -> None:
    """Refuse a folder that is, contains or lies inside a table of another format."""
    check_above(location, refuse_nested=False)
    _find_files(location, refuse_nested=False)


def has_files(location: Location) -> bool:
    """Check for any data file below a root, stopping at the first."""
    if not _exists(location):
        return False
    found = location.store.walk(location.root, lambda rel: _is_visible(rel.rpartition("/")[2]))
    return any(is_data_file(info.rel) for info in found)


def _exists(location: Location) -> bool:
    path_type = location.store.get_path_type(location.root)
    if path_type == "file":
        message = f"{location.display} is a file; a dataset is a folder. Give the folder that holds the Parquet files."
        raise TargetPathError(message)
    return path_type is not None


def is_data_file(rel: str) -> bool:
    """Check whether a relative path is a data file: not hidden, nor in a hidden folder (P7)."""
    return rel.endswith(SUFFIX) and all(map(_is_visible, rel.split("/")))


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_")) or (name.startswith("_") and "=" in name)


def _check_suffix(location: Location, rel: str) -> None:
    display_path = location.to_display(rel)
    with translate_read_errors(display_path), location.store.open_reader(location.to_path(rel)) as stream:
        start = stream.read(len(MAGIC))
    if start == MAGIC:
        raise UnsupportedFileError(
            f"{display_path} holds Parquet data but does not end in {SUFFIX}: some readers would see its rows and "
            "others not. Rename it to end in .parquet, or move it out of the dataset."
        )


def find_partition_columns(files: Iterable[DataFile]) -> list[str]:
    """Return the partition columns of the paths, in path order."""
    return list(dict.fromkeys(name for file in files for name in file.folders))
