"""The checks of a merge as functions on any two tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.file_api.source_keys import decode_columns
from merganser.core.model.casts import conform
from merganser.core.model.keys import (
    SOURCE_ROW,
    count_null_keys,
    join_keys,
    normalize_keys,
    number_rows,
    to_canonical_keys,
)
from merganser.core.model.option_types import to_column_names
from merganser.core.model.schema import check_unique
from merganser.core.model.schema_checks import check_columns, check_types
from merganser.core.model.validation import check_key_columns, check_moves, check_null_keys, check_partition_columns
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TableLike(Protocol):
    """The minimum that validation needs of a table.

    A method `null_count(column)` saves reading rows. Without it and without rows, NULL keys are not checked.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""


def validate_keys_and_schema(source: Any, target: Any, key_columns: Sequence[str] | str) -> None:
    """Check that both sides have the key columns, that no source key is NULL, and that the schemas match.

    Args:
        source: A `TableLike`, or anything that `merge` takes as a source. A reader is read to its end.
        target: The same, of which only the schema is read; None if there is no target yet.
        key_columns: The key column, or several.

    >>> validate_keys_and_schema(pa.table({"id": [1]}), pa.table({"id": [2]}), "id")
    """
    keys = normalize_keys(key_columns)
    given = _open_table(source, "source")
    check_unique(given.schema, "source")
    check_key_columns(given.schema, keys, "source")
    if target is not None:
        goal = _open_table(target, "target").schema
        check_unique(goal, "target")
        check_key_columns(goal, keys, "target")
        check_columns(given.schema, goal)
        check_types(given.schema, goal)
    check_null_keys(_count_null_keys(given, keys))


def validate_no_null_keys(source_table: Any, key_columns: Sequence[str] | str) -> None:
    """Refuse a source with NULL (or NaN) in a key column.

    Args:
        source_table: A `TableLike`, or anything that `merge` takes as a source. A reader is read to its end.
        key_columns: The key column, or several.

    >>> validate_no_null_keys(pa.table({"id": [1, 2]}), ["id"])
    """
    keys = normalize_keys(key_columns)
    given = _open_table(source_table, "source")
    check_unique(given.schema, "source")
    check_key_columns(given.schema, keys, "source")
    check_null_keys(_count_null_keys(given, keys))


def validate_partition_column_immutability(
    source_table: Any, target_table: Any, key_columns: Sequence[str] | str, partition_columns: Sequence[str] | str
) -> None:
    """Refuse a source that changes the partition values of keys in the target.

    Args:
        source_table: Anything that `merge` takes as a source. A reader is read to its end.
        target_table: The same; the path of a dataset is read with its partition columns.
        key_columns: The key column, or several.
        partition_columns: The partition column, or several.

    >>> day = pa.table({"id": [1], "day": ["mon"]})
    >>> validate_partition_column_immutability(day, day, "id", "day")
    """
    keys, columns = normalize_keys(key_columns), to_column_names(partition_columns, "partition_columns")
    names = list(dict.fromkeys([*keys, *columns]))
    source_rows, target_rows = (
        _read_columns(table, keys, names, side) for table, side in ((source_table, "source"), (target_table, "target"))
    )
    both = target_rows.schema
    check_types(source_rows.schema, both)
    source, target = conform(source_rows, both), conform(target_rows, both)
    numbered = to_canonical_keys(source, keys).append_column(SOURCE_ROW, number_rows(source.num_rows))
    probe = to_canonical_keys(target, keys).append_column("position", number_rows(target.num_rows))
    matches = join_keys(probe.to_reader(), numbered, ["position"]).sort_by("position")
    old, new = target.take(matches["position"]), source.take(matches[SOURCE_ROW])
    moved = pa.chunked_array([pa.nulls(0, pa.bool_())])
    for name in columns:
        left, right = to_canonical_keys(old, [name])[0], to_canonical_keys(new, [name])[0]
        same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(pc.is_null(left), pc.is_null(right)))  # noqa: FBT003
        moved = pc.invert(same) if not len(moved) else pc.or_(moved, pc.invert(same))
    if len(moved):
        changed = new.select(keys).filter(moved)
        check_moves(changed.num_rows, changed.slice(0, 5), columns)


def _open_table(table: Any, side: str) -> Any:
    """Return an object with a schema: a `TableLike` as it is, rows as a table or a reader."""
    is_described = isinstance(getattr(table, "schema", None), pa.Schema)
    if is_described and callable(getattr(table, "null_count", None)):
        return table
    # Imported here because PyArrow's datasets import pandas, which `import merganser.core` must not.
    from merganser.core.sources.source import is_source, stream_source  # noqa: PLC0415

    if is_source(table):
        return stream_source(table)
    if is_described:
        return table
    raise InvalidArgumentError(
        f"Cannot read the {side} from {type(table).__name__}. Give an Arrow table, a pandas or Polars frame, a path, "
        "or an object with a pyarrow.Schema as its schema."
    )


def _count_null_keys(table: Any, keys: Sequence[str]) -> Mapping[str, int]:
    if isinstance(table, pa.Table):
        return count_null_keys(decode_columns(table, keys), keys)
    if isinstance(table, pa.RecordBatchReader):
        counts: Counter[str] = Counter()
        for batch in table:
            counts.update(count_null_keys(decode_columns(pa.Table.from_batches([batch]), keys), keys))
        return counts
    count = getattr(table, "null_count", None)
    return {name: nulls for name in keys if (nulls := count(name))} if callable(count) else {}


def _read_columns(table: Any, keys: Sequence[str], names: Sequence[str], side: str) -> pa.Table:
    from merganser.core.sources.source import stream_source  # noqa: PLC0415  as above

    found = stream_source(table)
    check_unique(found.schema, side)
    check_key_columns(found.schema, keys, side)
    check_partition_columns(found.schema, names, side)
    check_key_columns(found.schema, names, side)
    if isinstance(found, pa.Table):
        return found.select(names)
    schema = pa.schema([found.schema.field(name) for name in names])
    return pa.Table.from_batches([batch.select(names) for batch in found], schema)
