"""The audit: every row changed, as it is afterwards and, if asked for, as it was (R5)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.engine import ACTION, BEFORE, AuditTerms
from merganser.core.errors import InvalidArgumentError
from merganser.core.nesting import find_around
from merganser.core.plan import scan_files
from merganser.core.rows import no_rows, nothing, take, whole
from merganser.core.scan import read_rows
from merganser.core.schema import cast_column, declared
from merganser.core.staging import control_folder
from merganser.core.store import locate
from merganser.core.strategy import Action

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.engine import Engine, G, H, M, ScanFile
    from merganser.core.matches import Matches
    from merganser.core.options import Request
    from merganser.core.plan import Decision
    from merganser.core.prepare import Prepared
    from merganser.core.staging import Staging
    from merganser.core.storage import Store
    from merganser.core.store import Location
    from merganser.core.strategy import Terms

    Columns = Mapping[str, pa.ChunkedArray]

ROWS = "rows"
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Audit:
    """What was listed: a table, or staged files, each with its path to be and that path as the caller spells it."""

    table: pa.Table | None = None
    files: Sequence[tuple[str, str]] = ()
    shown: list[str] = field(default_factory=list)


def find_feed(audit: bool | str | os.PathLike[str], location: Location, filesystem: Any) -> Location | None:  # noqa: FBT001
    """Find the folder that an audit is to be stored in, if it is."""
    if isinstance(audit, bool) or audit == ROWS:
        return None
    feed = locate(audit, filesystem)
    if not feed.store.reaches(location.store):
        message = (
            f"audit {feed.display} must be on the filesystem of {location.display}: both change in one commit. Choose "
            "a folder there."
        )
        raise InvalidArgumentError(message)
    apart = [location.root, control_folder(location)]
    if any(f"{feed.root}/".startswith(f"{root}/") or f"{root}/".startswith(f"{feed.root}/") for root in apart):
        message = (
            f"audit {feed.display} and the dataset {location.display} are one inside the other, so that readers of one "
            "would find the other. Choose a folder apart."
        )
        raise InvalidArgumentError(message)
    around = find_around(feed.store, feed.root)
    if around is not None:
        message = (
            f"audit {feed.display} lies inside the dataset {around.path}, so that its readers would find the rows "
            "changed. Choose a folder apart."
        )
        raise InvalidArgumentError(message)
    if feed.store.kind(feed.root) == "file":
        message = f"audit {feed.display} is a file; the rows changed go to a folder. Give the path of one."
        raise InvalidArgumentError(message)
    return feed


def make_audit(
    engine: Engine[G, H, M],
    prepared: Prepared[H],
    decision: Decision[M],
    request: Request,
    staging: Staging,
    feed: Location | None,
) -> Audit:
    """List every row changed, as far as the caller asks for it; old rows are read before they go."""
    if not request.options.audit:
        return Audit()
    terms = _terms(prepared, request, stored=feed is not None)
    found: list[Any] = []
    if decision.inserted or decision.changed.any():
        target = prepared.target
        scans = scan_files(target, request.keys, [0] * len(target.files), decision.changed, decision.shrinking)
        found = engine.audit(prepared.handle, decision.matches, scans, terms, staging, prepared.terms)
    if feed is None:
        return Audit(pa.concat_tables([no_rows(terms.schema), *found]))
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    names = [f"{stamp}-{uuid.uuid4().hex}.parquet" for _ in found]
    files = [(path, feed.path(name)) for path, name in zip(found, names, strict=True)]
    return Audit(None, files, [feed.shown(name) for name in names])


def _terms(prepared: Prepared[H], request: Request, *, stored: bool) -> AuditTerms:
    whole, placed = request.options.audit is not True, prepared.target.partition_columns
    columns = request.keys
    if whole:
        # As the dataset has them, also when it is only now being made.
        columns = [*(name for name in prepared.schema.names if name not in placed), *placed]
    taken = [name for name in (ACTION, *([BEFORE] * whole)) if name in columns]
    if taken:
        message = f"The audit has a column {taken[0]!r} of its own, and so has the dataset. Rename the dataset's."
        raise InvalidArgumentError(message)
    kinds = {name: declared(prepared.schema.field(name).type) for name in columns}
    return AuditTerms(columns, request.keys, prepared.inserts, whole, stored, audit_schema(kinds, old=whole))


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
