"""Opens the data files of a dataset as an Arrow dataset."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.columnar.threads import map_in_threads
from merganser.core.dataset.snapshot import load_target
from merganser.core.model.partitions import UNKNOWN, from_token
from merganser.core.parquet.footer import read_footer
from merganser.core.parquet.int96 import find_int96_arrays, split_int96
from merganser.core.rows.key_scan import open_parquet, read_group
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.fs as pafs

    from merganser.core.dataset.target import Target
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.location import Location

_ARROW = re.compile(r"parquet-cpp-arrow version (\d+)\.")
_FORWARD = 23
# Days from 1970 in the range of 64-bit nanoseconds.
_NANOSECOND_DAYS = 106_000
_RESERVED_NAMES = ("__filename", "__fragment_index", "__batch_index", "__last_in_fragment")


def open_dataset(location: Location) -> pads.Dataset:
    """Open the data files as an Arrow dataset, with partition columns in their recorded types (O3)."""
    return to_arrow_dataset(load_target(location, [], None, {}))


def to_arrow_dataset(target: Target, kept: pafs.FileSystem | None = None) -> pads.Dataset:
    """Convert a snapshot to an Arrow dataset, which keeps a filesystem, if given, and does not read from it."""
    location = target.location
    reserved = [name for name in _RESERVED_NAMES if target.schema is not None and name in target.schema.names]
    if reserved:
        message = f"{location.display} has a column {reserved[0]!r}, a name that Arrow datasets reserve. Rename it."
        raise UnsupportedFileError(message)
    formats = {unit: _make_format(unit) for unit in ("us", "ns")}
    units = _choose_int96_units(target)
    filesystem = location.store.to_arrow_filesystem()
    fragments = [
        formats[units.get(number, "us")].make_fragment(
            location.store.to_stored_path(location.to_path(file.rel)),
            filesystem,
            partition_expression=_make_expression(target, number),
        )
        for number, file in enumerate(target.files)
    ]
    schema = target.schema if target.schema is not None else pa.schema([])
    return pads.FileSystemDataset(fragments, schema, formats["us"], kept or filesystem)


def _make_format(unit: str) -> pads.ParquetFileFormat:
    options = pads.ParquetReadOptions(coerce_int96_timestamp_unit=unit)
    scan = pads.ParquetFragmentScanOptions(arrow_extensions_enabled=True)
    return pads.ParquetFileFormat(read_options=options, default_fragment_scan_options=scan)


def _choose_int96_units(target: Target) -> dict[int, str]:
    """Choose for each file with INT96 the unit in which Arrow datasets can read all of its instants (S6)."""
    if target.template is None or target.summaries is None:
        return {}
    location, numbers = target.location, target.summaries.schema_numbers
    # A file with the schema of the first has INT96 if that has; only files with another schema are checked.
    unsure = range(len(target.files)) if target.template.has_int96 else np.flatnonzero(numbers).tolist()

    def choose(number: int) -> tuple[int, str]:
        rel = target.files[number].rel
        path = location.to_path(rel)
        footer = target.footers.get(rel) or read_footer(location.store, path, location.to_display(rel))
        is_safe = not footer.int96_columns or _counts_forward(footer)
        return number, "us" if is_safe else _find_unit(location, path, footer)

    return dict(map_in_threads(choose, list(unsure)))


def _counts_forward(footer: Footer) -> bool:
    """Check for a writer known to count time of day forward from midnight, before 1970 too."""
    metadata = footer.metadata
    writer = metadata.created_by or ""
    # PyArrow copies Spark's keys from a file that it read, so they are not enough.
    keys = metadata.metadata or {}
    by_spark = writer.startswith("parquet-mr") and any(key.startswith(b"org.apache.spark.") for key in keys)
    arrow = _ARROW.match(writer)
    return by_spark or (arrow is not None and int(arrow[1]) >= _FORWARD)


def _find_unit(location: Location, path: str, footer: Footer) -> str:
    backward = beyond = None
    for name, instants in _read_instants(location, path, footer):
        time, days, _ = split_int96(instants)
        if (time < 0).any():
            backward = name
        if (np.abs(days) > _NANOSECOND_DAYS).any() or (time % 1000).any():
            beyond = name
    if backward is None:
        return "us"
    if beyond is not None:
        raise UnsupportedFileError(
            f"Column {backward!r} of {footer.display_path} holds INT96 instants before 1970 as PyArrow before 23 wrote "
            f"them. Arrow can read them in nanoseconds only, and column {beyond!r} holds instants outside of 1678 "
            "to 2262 or finer than microseconds. A merge into this dataset, or from this file, can read them: "
            f"rewrite the file with write_dataset({footer.display_path!r}, <new folder>)."
        )
    return "ns"


def _read_instants(location: Location, path: str, footer: Footer) -> Iterator[tuple[str, pa.Array]]:
    columns, schema = sorted(footer.int96_columns), footer.schema
    with open_parquet(location.store, path, footer) as parquet:
        for group in range(footer.metadata.num_row_groups):
            table = read_group(parquet, group, columns, footer.display_path, int96_as_bytes=True)
            for name in columns:
                for chunk in table.column(name).chunks:
                    yield from ((name, found) for found in find_int96_arrays(chunk, schema.field(name).type))


def _make_expression(target: Target, file: int) -> pads.Expression:
    expression = pads.scalar(True)  # noqa: FBT003  Arrow's own signature
    for name, data_type in target.partition_types.items():
        value = target.get_path_value(file, name)
        if value is not UNKNOWN:
            column = pads.field(name)
            expression &= column.is_null() if value is None else column == pads.scalar(from_token(value, data_type))
    return expression
