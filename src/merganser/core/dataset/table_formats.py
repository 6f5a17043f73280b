"""Detects tables of other formats, where a log and not the folder decides which Parquet files are part of the table.

Such a log does not record merganser's commits, and the folder still holds files that the log has removed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The log folder of each format, and a file name in it that only this format has.
LOGS = {
    "_delta_log": ("Delta Lake", re.compile(".*")),
    "metadata": ("Iceberg", re.compile(rf"(v\d+|\d+-{_UUID})(\.gz)?\.metadata\.json")),
    ".hoodie": ("Hudi", re.compile(r"hoodie\.properties")),
    "_versions": ("Lance", re.compile(r".*\.manifest")),
}
# DuckLake keeps its log in a database elsewhere; only its data files can be recognised.
_DUCKLAKE = re.compile(rf"ducklake-{_UUID}(-delete)?\.parquet")


def check_tables(location: Location, markers: Iterable[str]) -> None:
    """Refuse a root that is or contains a table of another format, by the paths of logs and data files."""
    if location.ignore_table_format:
        return
    for marker in sorted(markers):
        table, _, name = marker.rpartition("/")
        format_ = _find_format(location.store, location.to_path(table) if table else location.root, [name])
        if format_ is not None:
            raise _make_error(location, "contains" if table else "is", location.to_display(table), format_)
        if is_ducklake(name):
            raise _make_error(location, "contains", location.to_display(marker), "DuckLake")


def is_ducklake(name: str) -> bool:
    """Check whether a file name is one that DuckLake generates."""
    return name.startswith("ducklake-") and _DUCKLAKE.fullmatch(name) is not None


def check_inside_table(location: Location, above: str, display_path: str, names: Collection[str]) -> None:
    """Refuse a root that lies inside a table of another format, by the names in a folder above it."""
    format_ = None
    # Parent folders may belong to another user.
    with suppress(PermissionError):
        format_ = None if location.ignore_table_format else _find_format(location.store, above, names)
    if format_ is not None:
        raise _make_error(location, "lies inside", display_path, format_)


def _find_format(store: Store, table: str, names: Collection[str]) -> str | None:
    for log, (format_, file) in LOGS.items():
        if log in names and any(file.fullmatch(name) for name in store.list_names(f"{table}/{log}")):
            return format_
    return None


def _make_error(location: Location, relation: str, table: str, format_: str) -> UnsupportedFileError:
    if relation == "is":
        subject = f"{location.display} is {'an' if format_ == 'Iceberg' else 'a'} {format_} table"
    elif format_ == "DuckLake":
        subject = f"{location.display} contains {table}, a file of a DuckLake table"
    else:
        subject = f"{location.display} {relation} the {format_} table {table}"
    return UnsupportedFileError(
        f"{subject}: its log determines which Parquet files belong to it, and does not record what merganser writes. "
        "Read it with its own library and pass the rows to write_dataset with a new folder; or, if it is no longer "
        "used as a table, remove its log or pass ignore_table_format=True to use every Parquet file."
    )
