"""Reading: exactly the data files as an Arrow dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.dataset import load_target
from merganser.core.errors import UnsupportedFileError
from merganser.core.hive import UNKNOWN, untoken

if TYPE_CHECKING:
    from merganser.core.dataset import Target
    from merganser.core.store import Location

_ARROW_NAMES = ("__filename", "__fragment_index", "__batch_index", "__last_in_fragment")


def open_dataset(location: Location) -> pads.Dataset:
    """Open exactly the data files as an Arrow dataset, partition columns in their recorded types (O3)."""
    return as_dataset(load_target(location, [], None, {}))


def as_dataset(target: Target) -> pads.Dataset:
    """Give the data files of a snapshot as an Arrow dataset."""
    location = target.location
    kept = [name for name in _ARROW_NAMES if target.schema is not None and name in target.schema.names]
    if kept:
        message = (
            f"{location.display} has a column {kept[0]!r}, a name that Arrow's datasets keep for themselves. Rename it."
        )
        raise UnsupportedFileError(message)
    options = pads.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    scan = pads.ParquetFragmentScanOptions(arrow_extensions_enabled=True)
    arrow_format = pads.ParquetFileFormat(read_options=options, default_fragment_scan_options=scan)
    filesystem = location.store.arrow_filesystem()
    fragments = [
        arrow_format.make_fragment(
            location.path(file.rel), filesystem, partition_expression=_expression(target, number)
        )
        for number, file in enumerate(target.files)
    ]
    schema = target.schema if target.schema is not None else pa.schema([])
    return pads.FileSystemDataset(fragments, schema, arrow_format, filesystem)


def _expression(target: Target, file: int) -> pads.Expression:
    expression = pads.scalar(True)  # noqa: FBT003  Arrow's own signature
    for name, kind in target.partition_types.items():
        value = target.path_value(file, name)
        if value is UNKNOWN:
            continue
        column = pads.field(name)
        equal = column.is_null() if value is None else column == pads.scalar(untoken(value, kind))
        expression = expression & equal
    return expression
