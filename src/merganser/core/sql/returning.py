"""What a MERGE returns: the columns that RETURNING lists, from the audit of the changed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.engine import ACTION_COLUMN, OLD_ROW_COLUMN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from merganser.core.sql.grammar import MergeText, ReturnedColumn


def choose_audit(returning: Sequence[ReturnedColumn], keys: Collection[str]) -> Literal[True, "rows"]:
    """Choose the audit that has all columns: keys and actions are cheaper than rows."""
    cheap = {ACTION_COLUMN, *(key.lower() for key in keys)}
    return True if all(one.name.lower() in cheap for one in returning) else "rows"


def check_returned(statement: MergeText, keys: Collection[str], schema: pa.Schema | None) -> None:
    """Refuse columns that the target lacks; a new dataset has no schema yet."""
    known = list(keys) if schema is None else schema.names
    for one in statement.returning:
        if one.name not in ("*", ACTION_COLUMN) and _find(one.name, known) is None:
            remedy = (
                "which does not exist yet. Write RETURNING *" if schema is None else f"which has {', '.join(known)}"
            )
            raise statement.text.make_error(
                f"RETURNING has the column {one.name!r}, which is not one of the target, {remedy}.", one.start
            )


def select_returned(audit: pa.Table, returning: Sequence[ReturnedColumn]) -> pa.Table:
    """Select what is returned from an audit: inserted and updated rows as they are now, deleted ones as they were."""
    names = [name for name in audit.column_names if name not in (ACTION_COLUMN, OLD_ROW_COLUMN)]
    is_deleted = pc.equal(audit.column(ACTION_COLUMN), "delete").to_numpy()
    columns = {name: audit.column(name) for name in names}
    if OLD_ROW_COLUMN in audit.column_names and is_deleted.any():
        at = np.arange(audit.num_rows) + np.where(is_deleted, audit.num_rows, 0)
        old = audit.column(OLD_ROW_COLUMN)
        columns = {name: _join(columns[name], pc.struct_field(old, name)).take(pa.array(at)) for name in names}
    columns[ACTION_COLUMN] = pc.utf8_upper(audit.column(ACTION_COLUMN))
    found: list[tuple[str, pa.ChunkedArray]] = []
    for one in returning:
        if one.name == "*":
            found += [(name, columns[name]) for name in names]
        else:
            found.append((one.alias, columns[_find(one.name, columns) or one.name]))
    return pa.Table.from_arrays([column for _, column in found], names=[name for name, _ in found])


def _join(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([*one.chunks, *other.chunks], one.type)


def _find(name: str, known: Collection[str]) -> str | None:
    return next((one for one in known if one == name), None) or next(
        (one for one in known if one.lower() == name.lower()), None
    )
