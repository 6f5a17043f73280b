"""Property indexes: create, list and drop them, and warn of merges that lack one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

from merganser.core.model.options import count_own_frames
from merganser.errors import InvalidArgumentError, MergePerformanceWarning, UniqueConstraintError
from merganser.graph.records import IndexInfo
from merganser.graph.sqlite.sql import Table, build_key_sql, has_json_path, quote_identifier, quote_literal
from merganser.graph.sqlite.write import check_type
from merganser.graph.values import decode, encode, normalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from merganser.graph.sqlite.store import Store

_MAX_LISTED = 5


class PropertyIndex(NamedTuple):
    """A property index as it is stored."""

    name: str
    table: str
    type: str
    properties: tuple[str, ...]
    unique: bool

    @property
    def info(self) -> IndexInfo:
        """The public description of the index."""
        return IndexInfo(self.name, self.table, self.properties, self.unique, _build_predicate(self.type))


def create_index(store: Store, type_: str, properties: str | Sequence[str], *, unique: bool, table: Table) -> IndexInfo:
    """Create an index, unless one of the same properties exists that is as strict."""
    check_type(type_)
    names = _read_indexed_names(properties)
    if table not in ("nodes", "edges"):
        raise InvalidArgumentError(f"table is {table!r}; give 'nodes' or 'edges'.")
    with store.transaction():
        known = list_indexes(store)
        same = [found for found in known if (found.table, found.type, found.properties) == (table, type_, names)]
        if same and (same[0].unique or not unique):
            return same[0].info
        if unique:
            _check_unique(store, table, type_, names)
        if same:
            drop_index(store, same[0].name)
        wanted = same[0].name if same else _find_free_name(store, type_, names)
        store.connection.execute(
            f"CREATE {'UNIQUE ' if unique else ''}INDEX {quote_identifier(wanted)} "
            f"ON {table} ({', '.join(build_key_sql(name) for name in names)}) WHERE {_build_predicate(type_)}"
        )
        row = (wanted, table, type_, encode(list(names)), unique)
        store.connection.execute("INSERT OR REPLACE INTO property_indexes VALUES (?, ?, ?, ?, ?)", row)
    store.checked_matches.clear()
    return PropertyIndex(wanted, table, type_, names, unique).info


def drop_index(store: Store, name: str) -> None:
    """Drop a property index, if it exists."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{name!r} is not the name of an index; give one of list_indexes().")
    with store.transaction():
        for found in list_indexes(store):
            # SQLite itself ignores the case of names.
            if found.name == name:
                store.connection.execute(f"DROP INDEX IF EXISTS {quote_identifier(found.name)}")
                store.connection.execute("DELETE FROM property_indexes WHERE name = ?", (found.name,))
    store.checked_matches.clear()


def list_indexes(store: Store) -> list[PropertyIndex]:
    """List the property indexes by name."""
    rows = store.fetch_all(
        'SELECT i.name, i."table", i.type, i.properties, i."unique" FROM property_indexes i '
        "JOIN sqlite_master m ON m.type = 'index' AND m.name = i.name ORDER BY i.name"
    )
    return [
        PropertyIndex(name, table, type_, tuple(decode(names)), bool(unique))
        for name, table, type_, names, unique in rows
    ]


def warn_without_index(store: Store, type_: str, match: Iterable[str]) -> None:
    """Warn, once for a type and its match properties, that a merge scans every node of the type."""
    given = tuple(match)
    if (type_, given) in store.checked_matches:
        return
    names = frozenset(given)
    if (type_, names) not in store.warned_matches and not has_index(store, type_, given):
        store.warned_matches.add((type_, names))
        remedy = "" if all(map(has_json_path, given)) else "SQLite cannot index such a name; rename the property."
        warnings.warn(MergePerformanceWarning(type_, given, remedy), stacklevel=count_own_frames())
    store.checked_matches.add((type_, given))


def has_index(store: Store, type_: str, match: Iterable[str]) -> bool:
    """Check whether an index leads to the nodes of a type that match."""
    names = frozenset(match)
    nodes = [found for found in list_indexes(store) if (found.table, found.type) == ("nodes", type_)]
    return any(_is_covering(found, names) for found in nodes)


def _is_covering(index: PropertyIndex, match: frozenset[str]) -> bool:
    """Check whether an index leads to the matching nodes alone, or to one node at most."""
    return set(index.properties[: len(match)]) == match or (index.unique and match.issuperset(index.properties))


def read_names(given: str | Sequence[str], role: str) -> tuple[str, ...]:
    """Check one name or several, without duplicates."""
    if not isinstance(given, str | list | tuple | set | frozenset):
        raise InvalidArgumentError(f"{role} is {given!r}; give a name, or a list of names.")
    names = [normalize_name(name, role) for name in ([given] if isinstance(given, str) else given)]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{role} is {names!r}; give each name once.")
    return tuple(names)


def _read_indexed_names(properties: str | Sequence[str]) -> tuple[str, ...]:
    names = read_names(properties, "properties")
    if not names:
        raise InvalidArgumentError("properties is empty; give one or more properties to index.")
    for name in names:
        if not has_json_path(name):
            raise InvalidArgumentError(
                f"SQLite cannot index the property {name!r}: no JSON path leads to a name with quotes, backslashes or "
                "control characters. Merges on it work, without an index; rename it to make them fast."
            )
    return names


def _find_free_name(store: Store, type_: str, names: tuple[str, ...]) -> str:
    """Name an index after its type and properties; number it if SQLite has that name already."""
    wanted = "_".join(["idx_merge", type_, *names]).replace("\0", "_")
    taken = "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE"
    free, number = wanted, 1
    while store.connection.execute(taken, (free,)).fetchone():
        number += 1
        free = f"{wanted}_{number}"
    return free


def _check_unique(store: Store, table: Table, type_: str, names: tuple[str, ...]) -> None:
    keys = ", ".join(build_key_sql(name) for name in names)
    present = " AND ".join(f"({build_key_sql(name)}) IS NOT NULL" for name in names)
    groups = store.connection.execute(
        f"SELECT count(*), group_concat(id), min(properties) FROM {table} WHERE {_build_predicate(type_)} AND "
        f"{present} "
        f"GROUP BY {keys} HAVING count(*) > 1 ORDER BY min(id)"
    ).fetchall()
    if groups:
        listed = "; ".join(
            f"{ {name: decode(properties)[name] for name in names}!r} has the ids {ids}"
            for _, ids, properties in groups[:_MAX_LISTED]
        )
        more = f"; and {len(groups) - _MAX_LISTED} more" if len(groups) > _MAX_LISTED else ""
        count = "1 value of {} is" if len(groups) == 1 else f"{len(groups)} values of {{}} are"
        raise UniqueConstraintError(
            f"{count.format(', '.join(names))} not unique among the {type_} {table}: {listed}{more}. "
            "Delete the duplicates, then create the unique index."
        )


def _build_predicate(type_: str) -> str:
    return f"type = {quote_literal(type_)}"
