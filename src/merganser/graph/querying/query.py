"""Queries for the nodes or edges that meet conditions.

A query is built call by call. Each call returns a new query, and nothing is read before `exec`, `first`, `count` or
`exists`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.columns import (
    build_order_sql,
    group_columns,
    make_count_column,
    make_named_columns,
    read_columns,
    select_columns,
)
from merganser.graph.querying.conditions import (
    build_condition,
    build_conditions,
    build_type_conditions,
    check_integer,
    get_endpoint_columns,
    join_conditions,
)
from merganser.graph.querying.fields import COMPARED_FIELDS, Condition
from merganser.graph.querying.results import Edges, Nodes, Rows
from merganser.graph.records import EDGE_COLUMNS, NODE_COLUMNS, Edge, Node, to_edge, to_node
from merganser.graph.sqlite.chosen import check_detach, delete_chosen, update_chosen
from merganser.graph.sqlite.sql import Parameter, Table, build_key_sql
from merganser.graph.sqlite.write import check_ids
from merganser.graph.values import MAX_INT64, normalize_name, normalize_properties

if TYPE_CHECKING:
    from merganser.graph.querying.columns import Column
    from merganser.graph.querying.conditions import Direction, Operator, Where
    from merganser.graph.sqlite.chosen import DetachPolicy
    from merganser.graph.sqlite.store import Store

RecordT = TypeVar("RecordT", bound=Node | Edge)

# The alias of the record in every query.
_ALIAS = "r."


@dataclass(frozen=True, slots=True)
class _Query(ABC, Generic[RecordT]):
    """What queries for nodes and queries for edges share."""

    _columns: ClassVar[str]
    _table: ClassVar[Table]
    _store: Store
    _conditions: tuple[Condition, ...]
    _order: tuple[str, ...] = ()
    _limit: int | None = None
    _offset: int = 0

    @overload
    def where(self, given: Where, /) -> Self: ...
    @overload
    def where(self, given: str, operator: Operator, value: Any, /) -> Self: ...
    def where(self, given: Where | str, operator: Any = None, value: Any = None, /) -> Self:
        """Keep the records that have these values, or whose property satisfies the operator.

        `1` equals `1.0` but not `True`; lists are compared by their elements. `=` and `!=` with None test whether the
        property is absent or present; an absent property satisfies no other condition. `< <= > >=` compare numbers
        with numbers and strings with strings, dates as ISO strings. `in` takes a list of values; `contains` finds a
        substring or an element of a list; `starts_with` and `ends_with` test strings.

        The names `id`, `created_at` and `updated_at` with an operator are those of the record itself, and times are
        datetimes with a time zone; in a dict they are properties, as in the match of a merge.

        Args:
            given: The values of properties, a list of such conditions, or the name of one property.
            operator: One of `= != < <= > >= in contains starts_with ends_with`.
            value: The value that the property is compared with.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (20, 30, 40):
        ...         _ = db.create_node("Person", {"age": age, "active": True})
        ...     db.nodes("Person").where({"active": True}).where("age", ">", 20).count()
        2
        """
        if isinstance(given, str):
            condition = build_condition(given, operator, value, _ALIAS)
            return self._derive(conditions=(*self._conditions, condition))
        if operator is not None or not isinstance(given, Mapping | list | tuple):
            message = f"where({given!r}, ...) is neither a dict alone nor a property's name, an operator and a value."
            raise InvalidArgumentError(message)
        return self._derive(conditions=(*self._conditions, *build_conditions(given, "where", _ALIAS)))

    def order_by(self, name: str, *, descending: bool = False) -> Self:
        """Sort by a property, then by those of further calls, and last by id.

        Numbers come before strings, then lists, booleans and dicts; lists and dicts are sorted by their JSON text.
        Records without the property are always last.

        Args:
            name: The name of the property; `id`, `created_at` and `updated_at` are those of the record.
            descending: Sort the highest values first.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for name in ("Bo", "Al", 7, None):
        ...         _ = db.create_node("Person", {"name": name})
        ...     [found.properties.get("name") for found in db.nodes().order_by("name", descending=True)]
        ['Bo', 'Al', 7, None]
        """
        found = normalize_name(name, "order_by")
        direction = "DESC" if descending else "ASC"
        is_field = found in COMPARED_FIELDS
        value = f"{_ALIAS}{found}" if is_field else build_order_sql(build_key_sql(found, _ALIAS))
        return self._derive(order=(*self._order, f"{value} {direction} NULLS LAST"))

    def limit(self, count: int) -> Self:
        """Limit the number of records.

        Args:
            count: The largest number of records.
        """
        check_integer("limit", count, 0)
        return self._derive(limit=count)

    def offset(self, count: int) -> Self:
        """Skip the first records.

        Args:
            count: The number of records to skip.
        """
        check_integer("offset", count, 0)
        return self._derive(offset=count)

    def _derive(
        self,
        *,
        conditions: tuple[Condition, ...] | None = None,
        order: tuple[str, ...] | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Self:
        """Copy the query with some other parts; `dataclasses.replace` takes several times as long."""
        return type(self)(
            self._store,
            self._conditions if conditions is None else conditions,
            self._order if order is None else order,
            self._limit if limit is None else limit,
            self._offset if offset is None else offset,
        )

    @abstractmethod
    def exec(self) -> list[RecordT]:
        """Read the records, sorted by `order_by`, then by id."""

    def first(self) -> RecordT | None:
        """Read the first record, or None if there is none."""
        found = self._derive(limit=1 if self._limit is None else min(self._limit, 1)).exec()
        return found[0] if found else None

    def count(self) -> int:
        """Count the records that `exec` would return, with `limit` and `offset`."""
        ((count,),) = self._run("SELECT count(*) FROM (SELECT {})", "1")
        return int(count)

    def exists(self) -> bool:
        """Check whether `exec` would return any record."""
        ((found,),) = self._run("SELECT EXISTS (SELECT {})", "1")
        return bool(found)

    def values(self, *names: str) -> Rows:
        """Read only these properties of the records that `exec` would return; absent ones are None.

        Args:
            names: The names of properties; `id`, `created_at` and `updated_at` are those of the record.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (20, None):
        ...         _ = db.create_node("Person", {"age": age})
        ...     list(db.nodes("Person").values("id", "age"))
        [{'id': 1, 'age': 20}, {'id': 2, 'age': None}]
        """
        columns = make_named_columns(names, "values", _ALIAS)
        order = ", ".join((*self._order, f"{_ALIAS}id"))
        rows = self._run("SELECT {}", select_columns(columns, is_grouped=False), f"ORDER BY {order}")
        return read_columns(columns, rows)

    def distinct(self, *names: str) -> Rows:
        """Read the different values of properties, in their order; equal values such as `1` and `1.0` are one.

        `order_by` does not apply, and `limit` and `offset` apply to the rows of the result.

        Args:
            names: The names of properties, as in `values`.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for city in ("Rome", "Oslo", "Rome"):
        ...         _ = db.create_node("Person", {"city": city})
        ...     list(db.nodes("Person").distinct("city"))
        [{'city': 'Oslo'}, {'city': 'Rome'}]
        """
        return self._read_groups(make_named_columns(names, "distinct", _ALIAS), [])

    def count_by(self, *names: str) -> Rows:
        """Count the records with each value of properties, most first; None is an absent property.

        `order_by` does not apply, and `limit` and `offset` apply to the rows of the result.

        Args:
            names: The names of properties, as in `values`.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for city in ("Rome", "Oslo", "Rome"):
        ...         _ = db.create_node("Person", {"city": city})
        ...     list(db.nodes("Person").count_by("city"))
        [{'city': 'Rome', 'count': 2}, {'city': 'Oslo', 'count': 1}]
        """
        columns = make_named_columns(names, "count_by", _ALIAS)
        if "count" in names:
            message = "count_by has a column 'count' of its own. Count such a property by query(… RETURN …, count(*))."
            raise InvalidArgumentError(message)
        return self._read_groups([*columns, make_count_column("count")], ["count(*) DESC"])

    def __iter__(self) -> Iterator[RecordT]:
        return iter(self.exec())

    def update(self, properties: Mapping[str, Any]) -> int:
        """Overwrite properties of the records, and count those that changed; None removes a property.

        Args:
            properties: The new values.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (20, 30, 40):
        ...         _ = db.create_node("Person", {"age": age})
        ...     db.nodes("Person").where("age", ">=", 30).update({"senior": True})
        2
        """
        updates = normalize_properties(properties, "properties")
        with self._store.transaction():
            return len(update_chosen(self._store, self._table, *self._build_id_query(), updates))

    def _build_id_query(self) -> tuple[str, tuple[Parameter, ...]]:
        return self._build_query("SELECT {}", f"{_ALIAS}id", self._order_sql)

    @property
    def _order_sql(self) -> str:
        return f"ORDER BY {', '.join((*self._order, f'{_ALIAS}id'))}"

    def _read_rows(self) -> list[Any]:
        return self._run("SELECT {}", self._columns, self._order_sql)

    def _read_groups(self, columns: list[Column], order: list[str]) -> Rows:
        keys = [f"{column.order} NULLS LAST" for column in columns if not column.is_aggregate]
        clauses = f"{group_columns(columns)} ORDER BY {', '.join([*order, *keys])}"
        return read_columns(columns, self._run("SELECT {}", select_columns(columns, is_grouped=True), clauses))

    def _run(self, frame: str, columns: str, order: str = "") -> list[Any]:
        """Run the query inside a frame, which has {} in the place of its columns."""
        return self._store.fetch_all(*self._build_query(frame, columns, order))

    def _build_query(self, frame: str, columns: str, order: str = "") -> tuple[str, tuple[Parameter, ...]]:
        condition = join_conditions(self._conditions)
        limit = -1 if self._limit is None else min(self._limit, MAX_INT64)
        body = f"{columns} FROM {self._table} AS r WHERE {condition.sql} {order} LIMIT ? OFFSET ?"
        parameters: tuple[Parameter, ...] = (*condition.parameters, limit, min(self._offset, MAX_INT64))
        return frame.replace("{}", body), parameters


@dataclass(frozen=True, slots=True)
class NodeQuery(_Query[Node]):
    """A query for nodes; see `GraphDatabase.nodes`."""

    _columns, _table = NODE_COLUMNS, "nodes"

    def exec(self) -> Nodes:
        """Read the nodes, sorted by `order_by`, then by id."""
        return Nodes(map(to_node, self._read_rows()))

    def delete(self, *, detach: DetachPolicy = False) -> int:
        """Delete the nodes, and count them.

        Args:
            detach: Delete nodes together with their edges, or `"keep"` nodes that have edges; by default such a node
                refuses the deletion of all.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     for age in (20, 30, 40):
        ...         _ = db.create_node("Person", {"age": age})
        ...     db.nodes("Person").where("age", ">=", 30).delete()
        2
        """
        check_detach(detach)
        with self._store.transaction():
            return len(delete_chosen(self._store, self._table, *self._build_id_query(), detach).ids)

    def connected_to(
        self,
        node_type: str | None = None,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        match: Where | None = None,
        edge_where: Where | None = None,
    ) -> NodeQuery:
        """Keep the nodes that have such a neighbour.

        Args:
            node_type: The type of the neighbour; None for any.
            edge_type: The type of the edge, or several; None for any.
            direction: Whether the edge leads `"out"` to the neighbour, `"in"` from it, or `"both"`, either way.
            match: Properties of the neighbour, or conditions such as `[("seen", ">", 1)]`.
            edge_where: Properties of the edge, or conditions.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     job, other, company = (db.create_node(type) for type in ("Job", "Job", "Company"))
        ...     _ = db.create_edge(job.id, "POSTED_BY", company.id)
        ...     db.nodes("Job").connected_to("Company", "POSTED_BY").exec() == [job]
        True
        """
        condition = _build_connected_condition(direction, (edge_type, edge_where), (node_type, match))
        return self._derive(conditions=(*self._conditions, condition))

    def not_connected_to(
        self,
        node_type: str | None = None,
        edge_type: str | Sequence[str] | None = None,
        *,
        direction: Direction = "out",
        match: Where | None = None,
        edge_where: Where | None = None,
    ) -> NodeQuery:
        """Keep the nodes that do not have such a neighbour.

        Args:
            node_type: The type of the neighbour; None for any.
            edge_type: The type of the edge, or several; None for any.
            direction: The direction of the edge, as in `connected_to`.
            match: Properties of the neighbour, or conditions such as `[("seen", ">", 1)]`.
            edge_where: Properties of the edge, or conditions.
        """
        condition = _build_connected_condition(direction, (edge_type, edge_where), (node_type, match))
        negated = Condition(f"NOT {condition.sql}", condition.parameters)
        return self._derive(conditions=(*self._conditions, negated))


@dataclass(frozen=True, slots=True)
class EdgeQuery(_Query[Edge]):
    """A query for edges; see `GraphDatabase.edges`."""

    _columns, _table = EDGE_COLUMNS, "edges"

    def exec(self) -> Edges:
        """Read the edges, sorted by `order_by`, then by id."""
        return Edges(map(to_edge, self._read_rows()))

    def delete(self) -> int:
        """Delete the edges, and count them.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     stop = db.create_node("Stop").id
        ...     _ = db.create_edge(stop, "NEXT", stop)
        ...     db.edges("NEXT").delete()
        1
        """
        with self._store.transaction():
            return len(delete_chosen(self._store, self._table, *self._build_id_query(), detach=False).ids)


def query_nodes(store: Store, type_: str | None) -> NodeQuery:
    """Start a query for nodes."""
    return NodeQuery(store, build_type_conditions(_ALIAS, type_))


def query_edges(store: Store, type_: str | None, from_id: int | None, to_id: int | None) -> EdgeQuery:
    """Start a query for edges."""
    conditions = list(build_type_conditions(_ALIAS, type_))
    for column, given in (("from_id", from_id), ("to_id", to_id)):
        if given is not None:
            check_ids(given)
            conditions.append(Condition(f"{_ALIAS}{column} = ?", (given,)))
    return EdgeQuery(store, tuple(conditions))


def _build_connected_condition(
    direction: str, edge: tuple[str | Sequence[str] | None, Where | None], node: tuple[str | None, Where | None]
) -> Condition:
    """Build the condition that a node has such an edge to such a node."""
    found = join_conditions(
        (
            *build_type_conditions("e.", edge[0]),
            *build_conditions(edge[1], "edge_where", "e."),
            *build_type_conditions("m.", node[0]),
            *build_conditions(node[1], "match", "m."),
        )
    )
    either = [
        f"EXISTS (SELECT 1 FROM edges AS e JOIN nodes AS m ON m.id = e.{other} WHERE e.{own} = r.id AND {found.sql})"
        for own, other in get_endpoint_columns(direction)
    ]
    return Condition(f"({' OR '.join(either)})", found.parameters * len(either))
