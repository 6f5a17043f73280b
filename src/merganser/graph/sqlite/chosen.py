"""Changes of many records that a query chose: their ids are staged in a temporary table, then deleted or updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from merganser.display import pluralize
from merganser.errors import GraphError, InvalidArgumentError
from merganser.graph.sqlite import write
from merganser.graph.sqlite.indexes import list_indexes
from merganser.graph.sqlite.sql import has_json_path, to_json_path
from merganser.graph.values import encode, has_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.graph.sqlite.sql import Parameter, Table
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

# What happens to a node that is to be deleted and has edges: it is refused, deleted with them, or kept.
DetachPolicy: TypeAlias = bool | Literal["keep"]

# How many records an error or a result lists.
MAX_LISTED = 10
_CHOSEN = "temp.merganser_chosen"
# The edges of the chosen nodes.
_DETACHED_SQL = (
    f"SELECT e.id FROM {_CHOSEN} c CROSS JOIN edges e ON e.from_id = c.id "
    f"UNION SELECT e.id FROM {_CHOSEN} c CROSS JOIN edges e ON e.to_id = c.id"
)
_CONNECTED_SQL = (
    f"SELECT c.id FROM {_CHOSEN} c WHERE EXISTS (SELECT 1 FROM edges e WHERE e.from_id = c.id) "
    "OR EXISTS (SELECT 1 FROM edges e WHERE e.to_id = c.id)"
)


@dataclass(frozen=True, slots=True)
class Deletion:
    """The ids of the deleted records, the number of nodes that were kept, and that of the edges deleted with nodes."""

    ids: tuple[int, ...]
    kept: int = 0
    detached: int = 0


def check_detach(given: DetachPolicy) -> None:
    """Refuse an unknown policy for nodes with edges."""
    if given not in (True, False, "keep") or isinstance(given, int) is not isinstance(given, bool):
        raise InvalidArgumentError(f"detach is {given!r}; give True, False or 'keep'.")


def delete_chosen(
    store: Store, table: Table, query: str, parameters: Sequence[Parameter], detach: DetachPolicy
) -> Deletion:
    """Delete the records whose ids a query selects, inside a transaction."""
    execute = store.connection.execute
    _stage_ids(store, query, parameters)
    kept = detached = 0
    if table == "nodes" and detach is True:
        (detached,) = execute(f"SELECT count(*) FROM ({_DETACHED_SQL})").fetchone()
    elif table == "nodes":
        connected = [row[0] for row in execute(f"{_CONNECTED_SQL} ORDER BY 1")]
        if connected and detach != "keep":
            raise _make_connected_error(connected)
        kept = execute(f"DELETE FROM {_CHOSEN} WHERE id IN ({_CONNECTED_SQL})").rowcount if connected else 0
    ids = tuple(row[0] for row in execute(f"SELECT id FROM {_CHOSEN} ORDER BY id"))
    execute(f"DELETE FROM {table} WHERE id IN (SELECT id FROM {_CHOSEN})")
    return Deletion(ids, kept, detached)


def update_chosen(
    store: Store, table: Table, query: str, parameters: Sequence[Parameter], updates: Properties
) -> tuple[int, ...]:
    """Overwrite properties of the records whose ids a query selects, and return the ids of those that changed."""
    _stage_ids(store, query, parameters)
    ids = tuple(row[0] for row in store.connection.execute(f"SELECT id FROM {_CHOSEN} ORDER BY id"))
    if not updates or not ids:
        return ()
    if store.schema is not None or not all(map(has_json_path, updates)) or _is_unique(store, table, updates):
        return tuple(one for one in ids if _update_one(store, table, one, updates))
    signature = tuple((name, value is None) for name, value in updates.items())
    values = _encode_values(updates)
    differs = [f"properties -> {to_json_path(name)} IS NOT ?" for name, is_gone in signature if not is_gone]
    differs += [f"properties -> {to_json_path(name)} IS NOT NULL" for name, is_gone in signature if is_gone]
    changed = store.connection.execute(
        f"SELECT id FROM {table} WHERE id IN (SELECT id FROM {_CHOSEN}) AND ({' OR '.join(differs)}) ORDER BY id",
        values,
    ).fetchall()
    moment = write.current_milliseconds()
    statement = write.build_update_sql(table, signature, touch=True)
    store.connection.executemany(statement, ((*values, moment, one) for (one,) in changed))
    return tuple(one for (one,) in changed)


def _encode_values(updates: Properties) -> list[str]:
    """Encode the values that are set, in the order in which statements take them."""
    return [encode(value) for value in updates.values() if value is not None]


def _stage_ids(store: Store, query: str, parameters: Sequence[Parameter]) -> None:
    execute = store.connection.execute
    name = _CHOSEN.removeprefix("temp.")
    execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} (id INTEGER PRIMARY KEY)")
    execute(f"DELETE FROM {_CHOSEN}")
    execute(f"INSERT INTO {_CHOSEN} (id) {query}", parameters)


def _is_unique(store: Store, table: Table, updates: Properties) -> bool:
    """Check whether a unique index may refuse the new values."""
    return any(
        found.unique and found.table == table and {*found.properties} & {*updates} for found in list_indexes(store)
    )


def _update_one(store: Store, table: Table, record_id: int, updates: Properties) -> bool:
    read = write.get_node if table == "nodes" else write.get_edge
    found = read(store, record_id)
    if found is None or not has_changes(found.properties, updates):
        return False
    if table == "nodes":
        write.update_record(store, table, write.get_node, record_id, updates, replace=False)
    else:
        write.update_record(store, table, write.get_edge, record_id, updates, replace=False)
    return True


def _make_connected_error(ids: Sequence[int]) -> GraphError:
    verb = "has" if len(ids) == 1 else "have"
    listed = ", ".join(map(str, ids[:MAX_LISTED])) + (", …" if len(ids) > MAX_LISTED else "")
    return GraphError(
        f"{pluralize(len(ids), 'node')} to be deleted {verb} edges: {listed}. Pass detach=True to delete these edges "
        "too, or detach='keep' to keep such nodes."
    )
