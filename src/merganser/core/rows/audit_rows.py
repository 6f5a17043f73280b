"""The rows of an audit: every row changed, as it is afterwards and, if asked for, as it was (R5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.take import nothing, take, whole
from merganser.core.model.engine import ACTION, BEFORE, AuditTerms
from merganser.core.model.schema import cast_column
from merganser.core.model.strategy import Action
from merganser.core.rows.key_scan import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from merganser.core.model.engine import ScanFile
    from merganser.core.model.strategy import Terms
    from merganser.core.rows.matches import Matches
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

    Columns = Mapping[str, pa.ChunkedArray]


_AT_ONCE = 1 << 20


def inserted_rows(handle: pa.Table, new: npt.NDArray[np.int64], audit: AuditTerms) -> Iterator[pa.Table]:
    """List the source rows that are inserted."""
    source = handle.select([name for name in audit.columns if name in audit.inserts])
    for start in range(0, len(new), _AT_ONCE):
        rows = new[start : start + _AT_ONCE]
        yield _listed(_columns(take(source, rows)), None, "insert", len(rows), audit)


def changed_rows(
    handle: pa.Table, matches: Matches, store: Store, scan: ScanFile, audit: AuditTerms, terms: Terms
) -> Iterator[pa.Table]:
    """List the rows of one file that are replaced, moved or deleted."""
    source = handle.select([name for name in audit.columns if name in terms.columns and name in handle.column_names])
    for group, (first, after) in zip(scan.groups, scan.spans, strict=True):
        at = matches.of_group(scan.number, group)
        position, action = matches.position[at], matches.action[at]
        gone = np.full(after - first, scan.shrinks)
        gone[position] = action == Action.DELETE
        deleted, updated = np.flatnonzero(gone), (action == Action.REPLACE) | (action == Action.MOVE)
        if len(deleted):
            old = read_rows(store, scan, group, audit.columns, deleted)
            yield _listed({name: old[name] for name in audit.keys}, old, "delete", len(deleted), audit)
        if updated.any():
            untold = [name for name in audit.columns if audit.whole or name not in source.column_names]
            old = read_rows(store, scan, group, untold, position[updated])
            new = {**old, **_columns(take(source, matches.source_row[at][updated]))}
            yield _listed(new, old, "update", int(updated.sum()), audit)


def _columns(table: pa.Table) -> Columns:
    return {name: table.column(name) for name in table.column_names}


def _listed(after: Columns, before: Columns | None, action: str, rows: int, audit: AuditTerms) -> pa.Table:
    """Put rows in the form of the audit; what is not told is NULL."""
    kinds = audit.schema.types[: len(audit.columns)]
    columns = [_typed(after, name, kind, rows) for name, kind in zip(audit.columns, kinds, strict=True)]
    columns.append(pa.repeat(pa.scalar(action), rows))
    if audit.whole:
        old = [_typed(before or {}, name, kind, rows) for name, kind in zip(audit.columns, kinds, strict=True)]
        missing = pa.repeat(pa.scalar(before is None), rows)
        columns.append(pa.StructArray.from_arrays(old, fields=list(audit.schema.field(BEFORE).type), mask=missing))
    return pa.table(columns, schema=audit.schema)


def _typed(columns: Columns, name: str, kind: pa.DataType, rows: int) -> pa.Array:
    return whole(cast_column(columns[name], kind, name)) if name in columns else nothing(rows, kind)


def audit_schema(columns: Mapping[str, pa.DataType], *, old: bool) -> pa.Schema:
    """Describe an audit of these columns."""
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    return pa.schema([*fields, pa.field(ACTION, pa.string()), *([pa.field(BEFORE, pa.struct(fields))] * old)])


def keep_listed(tables: Iterable[pa.Table], audit: AuditTerms, staging: Staging) -> list[pa.Table | str]:
    """Keep what was listed: in memory, or if it is to be stored as a staged file."""
    some = (table for table in tables if table.num_rows)
    if not audit.stored:
        return list(some)
    first = next(some, None)
    if first is None:
        return []
    path = staging.new_path()
    with staging.location.store.create(path) as stream, pq.ParquetWriter(stream, audit.schema) as writer:
        writer.write_table(first)
        for table in some:
            writer.write_table(table)
    return [path]
