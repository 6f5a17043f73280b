"""Changes: the rows that differ between a past state of a dataset and the present one.

Only files that differ are read. Their rows are matched by key, as those of a merge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.equality import compare_rows
from merganser.core.columnar.take import align_chunks, empty_table, null_array, take, to_array
from merganser.core.commit.history import read_records
from merganser.core.commit.snapshots import make_snapshot
from merganser.core.commit.states import State, parse_as_of
from merganser.core.dataset.read import to_arrow_dataset
from merganser.core.dataset.snapshot import load_existing, load_target, read_record
from merganser.core.merge.audit import check_audit_names
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import SAMPLE_SIZE, AuditSpec
from merganser.core.model.keys import (
    SOURCE_ROW,
    NullSafeKeys,
    find_duplicate_keys,
    join_keys,
    normalize_keys,
    number_rows,
    to_canonical_keys,
)
from merganser.core.model.schema import to_value_type
from merganser.core.model.validation import check_key_columns, format_keys
from merganser.core.rows.audit_rows import make_audit_schema, make_audit_table
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import choose_control_folder
from merganser.display import pluralize
from merganser.errors import (
    ColumnTypeError,
    ColumnValueError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyColumnError,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

    from merganser.core.commit.states import AsOf
    from merganser.core.storage.location import Location

    RowNumbers = npt.NDArray[np.int64]

_BEFORE, _AFTER = "before", "after"
_POSITION = "position"


def changes(
    path: str | os.PathLike[str],
    since: AsOf,
    key_columns: Sequence[str] | str | None = None,
    *,
    filesystem: Any = None,
    lock_timeout: float = LOCK_TIMEOUT,
    ignore_table_format: bool = False,
) -> pa.Table:
    """List the rows that were inserted, updated or deleted since a commit.

    The result has the rows as they are, or the keys of deleted ones, an action and the rows as they were, like
    `audit="rows"` of a merge. Later commits must retain that state (`merge(..., retain=1)`). The rows of files that
    differ are in memory.

    Args:
        path: Folder or URL of the dataset.
        since: The state to compare with: that after a commit, by its id, the number of commits to go back, or a time.
        key_columns: Columns that identify a row; by default those of the last commit that had any.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        lock_timeout: Seconds to wait for another writer.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> for ids, value in (([1, 2], "a"), ([2, 3], "b")):
    ...     rows = pa.table({"id": ids, "v": [value] * 2})
    ...     result = merganser.merge(rows, orders, key_columns="id", retain=1)
    >>> for row in changes(orders, since=1).sort_by("id").to_pylist():
    ...     print(row)
    {'id': 2, 'v': 'b', 'merge_action': 'update', 'merge_old': {'id': 2, 'v': 'a'}}
    {'id': 3, 'v': 'b', 'merge_action': 'insert', 'merge_old': None}
    """
    # For a snapshot, None is the present state, which has no changes.
    parse_as_of(since)
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    pair = _read_differing_files(location, since, lock_timeout)
    schema = cast("pa.Schema", load_existing(location).schema) if pair.schema is None else pair.schema
    keys = normalize_keys(key_columns) if key_columns is not None else _find_keys(location)
    check_key_columns(schema, keys, "target")
    check_audit_names(schema.names, has_old_rows=True)
    _check_old_keys(pair.before, keys, since)
    types = {field.name: to_value_type(field.type) for field in schema}
    spec = AuditSpec(
        columns=schema.names,
        keys=keys,
        insert_columns=frozenset(schema.names),
        has_old_rows=True,
        is_stored=False,
        schema=make_audit_schema(types, has_old_rows=True),
    )
    return _compare(_conform(pair.before, types, since), _conform(pair.after, types, since), spec)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The rows of the files that differ, and the schema that they have now; None if no file is new."""

    before: pa.Table
    after: pa.Table
    schema: pa.Schema | None


def _read_differing_files(location: Location, since: AsOf, timeout: float) -> _Pair:
    types = dict[str, pa.DataType]()

    def choose(present: State, past: State) -> State:
        # The snapshot has the types of partition columns of the past state.
        types.clear()
        types.update(read_record(location))
        return _choose_differing(present, past)

    made = make_snapshot(location, since, timeout, choose=choose)
    try:
        sides = {_BEFORE: read_record(made.location), _AFTER: types}
        before, after = (
            load_target(replace(made.location, root=f"{made.location.root}/{side}"), [], None, known)
            for side, known in sides.items()
        )
        tables = [to_arrow_dataset(one).to_table() for one in (before, after)]
    finally:
        made.remove()
    return _Pair(tables[0], tables[1], after.schema)


def _choose_differing(present: State, past: State) -> State:
    """Choose the files that are not in both states, each in the folder of its state."""
    before = {f"{_BEFORE}/{rel}": path for rel, path in past.paths.items() if present.paths.get(rel) != path}
    after = {f"{_AFTER}/{rel}": path for rel, path in present.paths.items() if past.paths.get(rel) != path}
    return State(before | after, past.partitions)


def _find_keys(location: Location) -> list[str]:
    records = read_records(location.store, choose_control_folder(location))
    found = next((record.key_columns for record in records if record.key_columns), None)
    if found is None:
        raise InvalidArgumentError(
            f"No commit to {location.display} had key columns. Set key_columns to the columns that identify a row."
        )
    return found


def _check_old_keys(before: pa.Table, keys: Sequence[str], since: AsOf) -> None:
    """Refuse keys that the rows of the past state did not have."""
    missing = [name for name in keys if before.num_rows and name not in before.column_names]
    if missing:
        raise KeyColumnError(
            f"Key column {missing[0]!r} did not exist as of {since!s}, so rows cannot be matched by it. Set key_columns"
            " to columns that both states have, or ask for the changes since a later commit."
        )


def _conform(table: pa.Table, types: dict[str, pa.DataType], since: AsOf) -> pa.Table:
    """Give rows the present columns; those that they did not have are NULL."""
    columns = {}
    for name, data_type in types.items():
        if name not in table.column_names:
            columns[name] = null_array(table.num_rows, data_type)
            continue
        try:
            columns[name] = cast_column(table.column(name), data_type, name)
        except (ColumnTypeError, ColumnValueError) as error:
            raise ColumnTypeError(
                f"Column {name!r} was {table.column(name).type} as of {since!s} and is {data_type} now, and not all of "
                "its values can be cast, so changes cannot be listed. Ask for the changes since a later commit."
            ) from error
    return align_chunks(pa.table(columns, schema=pa.schema(list(types.items()))))


def _compare(before: pa.Table, after: pa.Table, spec: AuditSpec) -> pa.Table:
    old, new = _match(before, after, spec.keys)
    is_changed = ~compare_rows(take(before, old), take(after, new))
    inserted = np.setdiff1d(np.arange(after.num_rows), new)
    deleted = np.setdiff1d(np.arange(before.num_rows), old)
    old, new = old[is_changed], new[is_changed]
    make = partial(make_audit_table, audit=spec)
    updates = make(_to_columns(take(after, new)), _to_columns(take(before, old)), "update", len(new))
    inserts = make(_to_columns(take(after, inserted)), None, "insert", len(inserted))
    gone = take(before, deleted)
    deletes = make(_to_columns(gone.select(list(spec.keys))), _to_columns(gone), "delete", len(deleted))
    return pa.concat_tables([empty_table(spec.schema), updates, inserts, deletes])


def _to_columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _match(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> tuple[RowNumbers, RowNumbers]:
    """Match rows by key, where NULL equals NULL and NaN equals NaN; returns their numbers in order of the second."""
    for table in (before, after):
        count, sample = find_duplicate_keys(table, NullSafeKeys(keys), SAMPLE_SIZE)
        if count:
            raise DuplicateKeyError(
                f"The dataset has {pluralize(count, 'duplicate key')}, for example {format_keys(sample)}, so its "
                "changes cannot be matched by key. Run dedupe, or set key_columns to columns that identify a row."
            )
    left, right = (_to_bits(to_canonical_keys(table, NullSafeKeys(keys))) for table in (before, after))
    left = left.append_column(_POSITION, number_rows(before.num_rows))
    right = right.append_column(SOURCE_ROW, number_rows(after.num_rows))
    found = join_keys(left.to_reader(), right, [_POSITION])
    old, new = (found.column(name).to_numpy() for name in (_POSITION, SOURCE_ROW))
    order = np.argsort(new)
    return old[order], new[order]


def _to_bits(keys: pa.Table) -> pa.Table:
    """Compare floats by their bits, so that NaN has an equal."""
    for at, (name, column) in enumerate(zip(keys.column_names, keys.columns, strict=True)):
        if pa.types.is_floating(column.type):
            one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
            keys = keys.set_column(at, name, to_array(one_nan).view(pa.int64()))
    return keys
