"""Text queries that match patterns, as one statement: its tables, conditions and columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.columns import (
    Column,
    group_columns,
    make_count_column,
    make_field_column,
    make_property_column,
    make_record_column,
    read_columns,
    select_columns,
)
from merganser.graph.querying.conditions import (
    build_conditions,
    build_type_conditions,
    join_conditions,
)
from merganser.graph.querying.fields import Condition
from merganser.graph.querying.pattern import build_distinct_conditions, build_hop_condition
from merganser.graph.querying.results import Edges, Nodes, Paths, Rows
from merganser.graph.querying.text_where import build_expression
from merganser.graph.querying.traverse import read_paths
from merganser.graph.values import MAX_INT64

if TYPE_CHECKING:
    from merganser.graph.querying.text_syntax import (
        Operand,
        OrderItem,
        ParsedEdge,
        ParsedNode,
        ParsedPath,
        ParsedQuery,
        ReturnItem,
    )
    from merganser.graph.sqlite.store import Store

# SQLite joins at most 64 tables.
_MAX_TABLES = 64


@dataclass(frozen=True, slots=True)
class Join:
    """The tables of a statement by their names, the variables that name them, and the conditions on them."""

    tables: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)

    def add_path(self, path: ParsedPath) -> tuple[list[str], list[str]]:
        """Add the nodes and edges of a path, and return their tables."""
        nodes, edges = [self.add_node(path.nodes[0])], []
        for edge, node in zip(path.edges, path.nodes[1:], strict=True):
            edges.append(self.add_edge(edge))
            nodes.append(self.add_node(node))
            self.conditions.append(build_hop_condition(edge.direction, nodes[-2], edges[-1], nodes[-1]))
        return nodes, edges

    def add_node(self, node: ParsedNode) -> str:
        """Add a node, or further conditions on one that its variable names already."""
        own = self.variables.get(node.name or "") or self._add_table("nodes", node)
        if node.id is not None:
            self.conditions.append(Condition(f"{own}.id = ?", (node.id,)))
        self._add_conditions(own, node.type, node)
        return own

    def add_edge(self, edge: ParsedEdge) -> str:
        """Add an edge."""
        own = self._add_table("edges", edge)
        self._add_conditions(own, edge.types or None, edge)
        return own

    def _add_table(self, table: str, record: ParsedNode | ParsedEdge) -> str:
        own = f"{table[0]}{len(self.tables)}"
        self.tables[own] = table
        if record.name is not None:
            self.variables[record.name] = own
        return own

    def _add_conditions(self, own: str, types: Any, record: ParsedNode | ParsedEdge) -> None:
        self.conditions.extend(build_type_conditions(f"{own}.", types))
        self.conditions.extend(build_conditions(record.conditions, "where", f"{own}."))


class MatchQuery:
    """A query that matches paths, ready to run."""

    def __init__(self, store: Store, query: ParsedQuery) -> None:
        self.store = store
        self.returning = query.returning
        self.join = Join()
        self.paths = [self.join.add_path(path) for path in query.paths]
        if len(self.join.tables) > _MAX_TABLES:
            message = f"A query has at most {_MAX_TABLES} nodes and edges, not {len(self.join.tables)}; use several."
            raise InvalidArgumentError(message)
        edges = [table for _, edges in self.paths for table in edges]
        where = [build_expression(query.where, self.join.variables)] if query.where else []
        self.condition = join_conditions([*self.join.conditions, *where, *build_distinct_conditions(edges)])
        self.columns = [self._make_column(item) for item in query.returning.items]
        self.is_grouped = query.returning.is_distinct or any(column.is_aggregate for column in self.columns)
        if not self.columns and len(query.paths) > 1:
            raise InvalidArgumentError("A query for several patterns needs RETURN with what the result is. Add it.")
        self.order = self._build_order()

    def run(self) -> Nodes | Edges | Paths | Rows:
        """Read the result."""
        if not self.columns and self.paths[0][1]:
            return self._read_paths()
        columns = self.columns or [make_record_column("", "node", f"{self.paths[0][0][0]}.")]
        rows = read_columns(columns, self._fetch(select_columns(columns, is_grouped=self.is_grouped)))
        if len(columns) > 1 or columns[0].kind not in {"node", "edge"}:
            return rows
        records = (row[columns[0].name] for row in rows)
        return Nodes(records) if columns[0].kind == "node" else Edges(records)

    def count(self) -> int:
        """Count the results that `run` would read."""
        columns = select_columns(self.columns, is_grouped=True) if self.is_grouped else "1"
        ((count,),) = self._fetch(columns, "SELECT count(*) FROM (SELECT {})")
        return int(count)

    def _read_paths(self) -> Paths:
        ((nodes, edges),) = self.paths
        with self.store.snapshot():
            rows = self._fetch(", ".join(f"{table}.id" for table in (*nodes, *edges)))
            return read_paths(self.store, [(row[: len(nodes)], row[len(nodes) :]) for row in rows])

    def _fetch(self, columns: str, frame: str = "SELECT {}") -> list[Any]:
        """Run the statement inside a frame, which has {} in the place of its columns."""
        tables = ", ".join(f"{table} AS {own}" for own, table in self.join.tables.items())
        group = group_columns(self.columns) if self.is_grouped else ""
        limit = -1 if self.returning.limit is None else min(self.returning.limit, MAX_INT64)
        body = f"{columns} FROM {tables} WHERE {self.condition.sql} {group} {self.order} LIMIT ? OFFSET ?"
        parameters = (*self.condition.parameters, limit, min(self.returning.skip, MAX_INT64))
        return self.store.fetch_all(frame.replace("{}", body), parameters)

    def _make_column(self, item: ReturnItem) -> Column:
        if item.operand is None:
            return make_count_column(item.name)
        column = self._make_operand_column(item.name, item.operand)
        if not item.is_count:
            return column
        return make_count_column(item.name, f"{'DISTINCT ' if item.is_distinct else ''}{column.key}")

    def _make_operand_column(self, name: str, operand: Operand) -> Column:
        own = self.join.variables[operand.variable]
        if operand.kind == "record":
            return make_record_column(name, "node" if self.join.tables[own] == "nodes" else "edge", f"{own}.")
        make = make_property_column if operand.kind == "property" else make_field_column
        return make(name, operand.name, f"{own}.")

    def _build_order(self) -> str:
        """Build the order: what is asked for, then that of the columns if they are grouped, otherwise of the ids."""
        order = [self._build_order_item(item) for item in self.returning.order]
        if self.is_grouped:
            order += [f"{column.order} NULLS LAST" for column in self.columns if not column.is_aggregate]
        else:
            order += [f"{own}.id" for own in self.join.tables]
        return f"ORDER BY {', '.join(order)}" if order else ""

    def _build_order_item(self, item: OrderItem) -> str:
        if isinstance(item.by, str):
            (column,) = (column for column in self.columns if column.name == item.by)
        else:
            column = self._make_column(item.by)
        is_known = column.key in {known.key for known in self.columns}
        if not is_known and (self.is_grouped or column.is_aggregate):
            raise InvalidArgumentError(
                "With DISTINCT or count, ORDER BY takes only what RETURN has. Add it to RETURN, or sort the result."
            )
        return f"{column.order} {'DESC' if item.is_descending else 'ASC'} NULLS LAST"
