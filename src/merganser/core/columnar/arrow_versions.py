"""What differs between the supported versions of PyArrow: no other module asks which one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.errors import ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import numpy.typing as npt

ValuesT = TypeVar("ValuesT", pa.Array, pa.ChunkedArray)

PYARROW = int(pa.__version__.partition(".")[0])
# The first versions with all of what this module replaces.
_WITH_BLOOM_FILTERS = 24
_WITH_DEFAULT_CSV_TYPE = _WITH_NULL_PLACEMENT_BY_KEY = 25
_WITH_NULL_FIXED_LISTS = _WITH_SAFE_MAPS = _WITH_READER_SOURCE = 26
# Rows of a stream that are joined at once, or as many as it is joined with, so that these are seldom hashed again.
_TABLE_ROWS = 1 << 22


def make_bloom_options(columns: Collection[str], *, ndv: int, fpp: float) -> dict[str, Any]:
    """Return the argument of `pq.ParquetWriter` for Bloom filters; a file without them is as correct."""
    if not columns or PYARROW < _WITH_BLOOM_FILTERS:
        return {}
    return {"bloom_filter_options": {name: {"ndv": ndv, "fpp": fpp} for name in columns}}


def make_bytes_options(read_names: Callable[[], list[str]]) -> dict[str, Any]:
    """Return the argument of `csv.ConvertOptions` that makes every column binary; names are read only if needed."""
    if PYARROW < _WITH_DEFAULT_CSV_TYPE:
        return {"column_types": dict.fromkeys(read_names(), pa.binary())}
    return {"default_column_type": pa.binary()}


def sort_nulls_first(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return row numbers sorted by all columns, stably and ascending, NULL first."""
    if PYARROW < _WITH_NULL_PLACEMENT_BY_KEY:
        by = [(name, "ascending") for name in table.column_names]
        found = pc.sort_indices(table, sort_keys=by, null_placement="at_start")
    else:
        found = pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in table.column_names])
    return found.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def join_stream(stream: pa.RecordBatchReader, build: pa.Table, options: Any) -> pa.Table:
    """Join a stream with a table, by `acero.HashJoinNodeOptions`; the result has no order."""
    # Imported late: it imports pandas where that is installed, which `import merganser` must not.
    from pyarrow import acero  # noqa: PLC0415

    def join(probe: acero.Declaration) -> pa.Table:
        table = acero.Declaration("table_source", acero.TableSourceNodeOptions(build))
        return acero.Declaration("hashjoin", options, inputs=[probe, table]).to_table(use_threads=True)

    if PYARROW >= _WITH_READER_SOURCE:
        source = acero.RecordBatchReaderSourceNodeOptions(stream)
        return join(acero.Declaration("record_batch_reader_source", source))
    parts = _read_tables(stream, max(_TABLE_ROWS, build.num_rows))
    tables = (acero.Declaration("table_source", acero.TableSourceNodeOptions(part)) for part in parts)
    return pa.concat_tables(map(join, tables))


def _read_tables(stream: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """Yield tables of at least so many rows, and the rest, which may be empty."""
    batches, count = [], 0
    for batch in stream:
        batches.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(batches, stream.schema)
            batches, count = [], 0
    yield pa.Table.from_batches(batches, stream.schema)


def cast(values: ValuesT, data_type: pa.DataType) -> ValuesT:
    """Cast an array or a column that may hold maps.

    Before PyArrow 26, the cast of a map whose keys have a validity bitmap ends the process. Maps from `take`, `filter`
    and DuckDB have one; concatenation leaves out a bitmap without NULL.
    """
    if PYARROW < _WITH_SAFE_MAPS and _contains(values.type, pa.types.is_map):
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([cast(chunk, data_type) for chunk in values.chunks], data_type)
        values = pa.concat_arrays([values, values.slice(0, 0)])
    return values.cast(data_type)


def check_fixed_lists(table: pa.Table) -> None:
    """Refuse to store NULL in a fixed-size list where PyArrow could not write it, or not read it back."""
    if PYARROW >= _WITH_NULL_FIXED_LISTS:
        return
    for field, column in zip(table.schema, table.columns, strict=True):
        if any(map(_has_null_fixed_list, column.chunks)):
            raise ColumnValueError(
                f"Column {field.name!r} ({field.type}) holds NULL in a fixed-size list, which PyArrow {pa.__version__} "
                f"cannot store. Install PyArrow {_WITH_NULL_FIXED_LISTS}, or use a list of any size."
            )


def find_read_remedy(error: Exception) -> str:
    """Find what helps against an error from decoding a file."""
    if PYARROW < _WITH_NULL_FIXED_LISTS and "Expected all lists to be of size" in str(error):
        return f"A fixed-size list is NULL there: install PyArrow {_WITH_NULL_FIXED_LISTS}, which can read it."
    return "Restore or remove the file."


def _has_null_fixed_list(values: pa.Array) -> bool:
    data_type = values.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_null_fixed_list(values.storage)
    if not _contains(data_type, pa.types.is_fixed_size_list):
        return False
    if pa.types.is_map(data_type):
        values = cast(values, pa.list_(pa.struct([data_type.key_field, data_type.item_field])))
    # A struct that is NULL has NULL in each of its fields; values under a list that is NULL are left out.
    children = values.flatten() if pa.types.is_struct(data_type) else [values.flatten()]
    is_null = pa.types.is_fixed_size_list(data_type) and values.null_count > 0
    return is_null or any(map(_has_null_fixed_list, children))


def _contains(data_type: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _contains(data_type.storage_type, is_wanted)
    children = (data_type.field(number).type for number in range(data_type.num_fields))
    return is_wanted(data_type) or any(_contains(child, is_wanted) for child in children)
