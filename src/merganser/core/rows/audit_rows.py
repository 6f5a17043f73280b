"""The rows of an audit: every changed row as it is afterwards and, on request, as it was (R5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.take import null_array, take, to_array
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import ACTION_COLUMN, OLD_ROW_COLUMN, AuditSpec
from merganser.core.model.strategy import Action
from merganser.core.rows.clause_rows import load_values
from merganser.core.rows.key_scan import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from merganser.core.model.engine import ScanFile, SourceSpec
    from merganser.core.rows.matches import Matches
    from merganser.core.storage.staging import Staging

    Columns = Mapping[str, pa.ChunkedArray]


_BATCH_ROWS = 1 << 20


def list_inserted_rows(rows: pa.Table, new: npt.NDArray[np.int64], audit: AuditSpec) -> Iterator[pa.Table]:
    """List the source rows that are inserted."""
    source = rows.select([name for name in audit.columns if name in audit.insert_columns])
    for start in range(0, len(new), _BATCH_ROWS):
        some = new[start : start + _BATCH_ROWS]
        yield make_audit_table(_to_columns(take(source, some)), None, "insert", len(some), audit)


def list_changed_rows(
    rows: pa.Table, spec: SourceSpec, matches: Matches, scan: ScanFile, audit: AuditSpec
) -> Iterator[pa.Table]:
    """List the rows of one file that are replaced, moved or deleted."""
    policy = spec.policy
    has_clauses = policy.matched is not None or policy.missing is not None
    columns = policy.replaced_columns if has_clauses else policy.columns & {*rows.column_names}
    changed = [name for name in audit.columns if name in columns]
    for group, (first, after) in zip(scan.groups, scan.spans, strict=True):
        found = matches.select(matches.find_group(scan.number, group))
        is_deleted = np.full(after - first, scan.deletes_missing)
        is_deleted[found.position] = found.action == Action.DELETE
        deleted, updated = np.flatnonzero(is_deleted), found.is_replaced | (found.action == Action.MOVE)
        if len(deleted):
            old = read_rows(spec.store, scan, group, audit.columns, deleted)
            yield make_audit_table({name: old[name] for name in audit.keys}, old, "delete", len(deleted), audit)
        if updated.any():
            names = [name for name in audit.columns if audit.has_old_rows or name not in changed]
            old = read_rows(spec.store, scan, group, names, found.position[updated])
            new = {**old, **_to_columns(load_values(spec.store, policy, rows, found.select(updated), scan, changed))}
            yield make_audit_table(new, old, "update", int(updated.sum()), audit)


def _to_columns(table: pa.Table) -> Columns:
    return {name: table.column(name) for name in table.column_names}


def make_audit_table(after: Columns, before: Columns | None, action: str, rows: int, audit: AuditSpec) -> pa.Table:
    """Make the audit of some rows with one action."""
    columns = [*_cast_columns(after, rows, audit), pa.repeat(pa.scalar(action), rows)]
    if audit.has_old_rows:
        old, fields = _cast_columns(before or {}, rows, audit), list(audit.schema.field(OLD_ROW_COLUMN).type)
        missing = pa.repeat(pa.scalar(before is None), rows)
        columns.append(pa.StructArray.from_arrays(old, fields=fields, mask=missing))
    return pa.table(columns, schema=audit.schema)


def _cast_columns(columns: Columns, rows: int, audit: AuditSpec) -> list[pa.Array]:
    """Cast columns to the types of the audit; a column without values is NULL."""
    typed = [(name, audit.schema.field(at).type) for at, name in enumerate(audit.columns)]
    return [
        to_array(cast_column(columns[name], data_type, name)) if name in columns else null_array(rows, data_type)
        for name, data_type in typed
    ]


def make_audit_schema(columns: Mapping[str, pa.DataType], *, has_old_rows: bool) -> pa.Schema:
    """Make the schema of an audit of these columns."""
    fields = [pa.field(name, data_type) for name, data_type in columns.items()]
    old = [pa.field(OLD_ROW_COLUMN, pa.struct(fields))] * has_old_rows
    return pa.schema([*fields, pa.field(ACTION_COLUMN, pa.string()), *old])


def keep_tables(tables: Iterable[pa.Table], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:
    """Keep the tables of an audit in memory or, if it is stored, in a staged file."""
    some = (table for table in tables if table.num_rows)
    if not audit.is_stored:
        return list(some)
    first = next(some, None)
    if first is None:
        return []
    path = staging.make_path()
    with staging.location.store.create(path) as stream, pq.ParquetWriter(stream, audit.schema) as writer:
        writer.write_table(first)
        for table in some:
            writer.write_table(table)
    return [path]
