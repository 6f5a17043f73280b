"""Tables of other formats: Parquet files of which a log, and not the folder, decides which ones count.

Such a log does not learn of our commits, and the folder still holds the files that it has given up.
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
# The folder where a format keeps its log, and the name of a file in it. Other tools have metadata in JSON too.
LOGS = {
    "_delta_log": ("Delta Lake", re.compile(".*")),
    "metadata": ("Iceberg", re.compile(rf"(v\d+|\d+-{_UUID})(\.gz)?\.metadata\.json")),
    ".hoodie": ("Hudi", re.compile(r"hoodie\.properties")),
    "_versions": ("Lance", re.compile(r".*\.manifest")),
}
# DuckLake keeps its log in a database, which may be anywhere; only its data files can be recognised.
_DUCKLAKE = re.compile(rf"ducklake-{_UUID}(-delete)?\.parquet")


def check_tables(location: Location, marks: Iterable[str]) -> None:
    """Refuse a root that is a table of another format, or contains one, by the paths of its logs and data files."""
    if location.ignore_table_format:
        return
    for mark in sorted(marks):
        table, _, name = mark.rpartition("/")
        format_ = _find_format(location.store, location.to_path(table) if table else location.root, [name])
        if format_ is not None:
            raise _make_error(
                location, "contains" if table else "is", location.to_display(table) if table else "", format_
            )
        if is_ducklake(name):
            raise _make_error(location, "contains", location.to_display(mark), "DuckLake")


def is_ducklake(name: str) -> bool:
    """Say whether a file has a name that DuckLake gives."""
    return name.startswith("ducklake-") and _DUCKLAKE.fullmatch(name) is not None


def check_inside_table(location: Location, above: str, shown: str, names: Collection[str]) -> None:
    """Refuse a root that lies inside a table of another format, by the names in a folder above it."""
    format_ = None
    # What is above may belong to somebody else.
    with suppress(PermissionError):
        format_ = None if location.ignore_table_format else _find_format(location.store, above, names)
    if format_ is not None:
        raise _make_error(location, "lies inside", shown, format_)


def _find_format(store: Store, table: str, names: Collection[str]) -> str | None:
    for log, (format_, file) in LOGS.items():
        if log in names and any(file.fullmatch(name) for name in store.list_names(f"{table}/{log}")):
            return format_
    return None


def _make_error(location: Location, relation: str, table: str, format_: str) -> UnsupportedFileError:
    if relation == "is":
        what = f"{location.display} is {'an' if format_ == 'Iceberg' else 'a'} {format_} table"
    elif format_ == "DuckLake":
        what = f"{location.display} contains {table}, a file of a DuckLake table"
    else:
        what = f"{location.display} {relation} the {format_} table {table}"
    return UnsupportedFileError(
        f"{what}: its log decides which Parquet files count, and does not record what merganser writes. Read it with "
        "its own library and pass the rows to write_dataset with a new folder; or, if the table is no longer used as "
        "one, remove its log or pass ignore_table_format=True, and every Parquet file counts."
    )
