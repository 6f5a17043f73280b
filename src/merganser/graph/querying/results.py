"""What queries give: lists of nodes, edges or paths that can be had as Arrow and that notebooks show as tables."""

from __future__ import annotations

from abc import abstractmethod
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from merganser.display import to_plain
from merganser.graph.exchange.columns import make_columns
from merganser.graph.exchange.property_types import collect_property_types
from merganser.graph.records import Edge, Node, Path
from merganser.graph.values import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

RecordT = TypeVar("RecordT", bound=Node | Edge | Path)

_MAX_HTML_ROWS = 50
_TIME = pa.timestamp("ms", tz="UTC")


class _Results(list[RecordT]):
    """A list of what was found."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Give all of it in plain values: a dict for each record, under `rows`."""
        return {"rows": to_plain(list(self))}

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Give a table, a row for each."""

    @abstractmethod
    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Give the names of columns and, for each record or the first so many, the texts in them, for people."""

    def _repr_html_(self) -> str:
        names, rows = self.cells(_MAX_HTML_ROWS)
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = f"<p>… {len(self) - _MAX_HTML_ROWS:,} more</p>" if len(self) > _MAX_HTML_ROWS else ""
        return f"<table><tr>{head}</tr>{body}</table>{more}"


class Nodes(_Results[Node]):
    """A list of nodes.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     _ = db.create_node("Job", {"title": "Engineer"})
    ...     db.nodes("Job").exec().to_arrow().column_names
    ['id', 'type', 'title', 'created_at', 'updated_at']
    """

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Give a table: a row for each node, a column for each property, as `export_parquet` has them."""
        return _to_arrow_table(self, ("id", "type"))

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Give the names of columns and, for each node or the first so many, the texts in them."""
        return _format_cells(self[:most], ("id", "type"))


class Edges(_Results[Edge]):
    """A list of edges."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Give a table: a row for each edge, a column for each property, as `export_parquet` has them."""
        return _to_arrow_table(self, ("id", "type", "from_id", "to_id"))

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Give the names of columns and, for each edge or the first so many, the texts in them."""
        return _format_cells(self[:most], ("id", "type", "from_id", "to_id"))


class Paths(_Results[Path]):
    """A list of paths."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Give a table: for each path the ids of its nodes and edges, in their order."""
        ids = pa.list_(pa.int64())
        return pa.table(
            {
                "nodes": pa.array([[node.id for node in path.nodes] for path in self], ids),
                "edges": pa.array([[edge.id for edge in path.edges] for path in self], ids),
            }
        )

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Give each path, or the first so many, as it would be drawn."""
        return ["path"], [[draw_path(path)] for path in self[:most]]


def draw_path(path: Path) -> str:
    """Draw a path in a line, with the ids of its nodes.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     job, company = db.create_node("Job").id, db.create_node("Company").id
    ...     _ = db.create_edge(job, "POSTED_BY", company)
    ...     draw_path(db.shortest_path(company, job, direction="in"))
    '(Company #2)<-[POSTED_BY]-(Job #1)'
    """
    parts = [f"({path.nodes[0].type} #{path.nodes[0].id})"]
    for before, edge, after in zip(path.nodes, path.edges, path.nodes[1:], strict=False):
        along = edge.from_id == before.id and edge.to_id == after.id
        parts.append(f"-[{edge.type}]->" if along else f"<-[{edge.type}]-")
        parts.append(f"({after.type} #{after.id})")
    return "".join(parts)


def format_value(value: Any) -> str:
    """Write a property for people: a string as it is, all else as JSON."""
    return value if isinstance(value, str) else encode(value)


def _to_arrow_table(records: Sequence[Node | Edge], fixed: tuple[str, ...]) -> pa.Table:
    times = ("created_at", "updated_at")
    types = {"type": pa.string(), **dict.fromkeys(times, _TIME)}
    own = make_columns(collect_property_types((record.id, record.properties) for record in records), (*fixed, *times))
    properties = [record.properties for record in records]
    fields = {name: pa.field(name, types.get(name, pa.int64()), nullable=False) for name in (*fixed, *times)}
    arrays = {name: pa.array([getattr(record, name) for record in records], fields[name].type) for name in fields}
    # Times stand last, as they are the least asked for.
    made = [(fields[name], arrays[name]) for name in fixed]
    made += [(column.field, column.to_array(properties)) for column in own]
    made += [(fields[name], arrays[name]) for name in times]
    return pa.Table.from_arrays([array for _, array in made], schema=pa.schema([field for field, _ in made]))


def _format_cells(records: Sequence[Node | Edge], fixed: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for record in records for name in record.properties))
    rows = [
        [str(getattr(record, name)) for name in fixed]
        + [format_value(record.properties[name]) if name in record.properties else "" for name in names]
        for record in records
    ]
    return [*fixed, *names], rows
