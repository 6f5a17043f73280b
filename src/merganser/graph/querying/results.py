"""Results of queries: lists of nodes, edges or paths that convert to Arrow and that notebooks show as tables."""

from __future__ import annotations

from abc import abstractmethod
from html import escape
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from merganser.display import to_plain
from merganser.graph.exchange.columns import make_columns
from merganser.graph.exchange.property_types import collect_property_types
from merganser.graph.records import Edge, Node, Path
from merganser.graph.values import format_value

ResultT = TypeVar("ResultT", bound=Node | Edge | Path)
RecordT = TypeVar("RecordT", bound=Node | Edge)

_MAX_HTML_ROWS = 50
_TIME = pa.timestamp("ms", tz="UTC")


class _Results(list[ResultT]):
    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values: a dict for each record, under `rows`."""
        return {"rows": to_plain(list(self))}

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Convert to a table with a row for each result."""

    @abstractmethod
    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Format as a table for people: the names of its columns, and its rows.

        Args:
            most: The largest number of rows; None is all.
        """

    def _repr_html_(self) -> str:
        names, rows = self.cells(_MAX_HTML_ROWS)
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = f"<p>… {len(self) - _MAX_HTML_ROWS:,} more</p>" if len(self) > _MAX_HTML_ROWS else ""
        return f"<table><tr>{head}</tr>{body}</table>{more}"


class _Records(_Results[RecordT]):
    __slots__ = ()
    # The columns that every record has.
    _columns: ClassVar[tuple[str, ...]]

    def to_arrow(self) -> pa.Table:
        """Convert to a table with a row for each record and a column for each property, as in `export_parquet`."""
        times = ("created_at", "updated_at")
        types = {"type": pa.string(), **dict.fromkeys(times, _TIME)}
        common = (*self._columns, *times)
        own = make_columns(collect_property_types((record.id, record.properties) for record in self), common)
        properties = [record.properties for record in self]
        fields = {name: pa.field(name, types.get(name, pa.int64()), nullable=False) for name in common}
        arrays = {name: pa.array([getattr(record, name) for record in self], fields[name].type) for name in fields}
        # Times come last, because they are needed least often.
        made = [(fields[name], arrays[name]) for name in self._columns]
        made += [(column.field, column.to_array(properties)) for column in own]
        made += [(fields[name], arrays[name]) for name in times]
        return pa.Table.from_arrays([array for _, array in made], schema=pa.schema([field for field, _ in made]))

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Format as a table for people: the names of its columns, and its rows.

        Args:
            most: The largest number of rows; None is all.
        """
        records = self[:most]
        names = list(dict.fromkeys(name for record in records for name in record.properties))
        rows = [
            [str(getattr(record, name)) for name in self._columns]
            + [format_value(record.properties[name]) if name in record.properties else "" for name in names]
            for record in records
        ]
        return [*self._columns, *names], rows


class Nodes(_Records[Node]):
    """A list of nodes.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     _ = db.create_node("Job", {"title": "Engineer"})
    ...     db.nodes("Job").exec().to_arrow().column_names
    ['id', 'type', 'title', 'created_at', 'updated_at']
    """

    __slots__ = ()
    _columns = ("id", "type")


class Edges(_Records[Edge]):
    """A list of edges."""

    __slots__ = ()
    _columns = ("id", "type", "from_id", "to_id")


class Paths(_Results[Path]):
    """A list of paths."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Convert to a table with the ids of the nodes and edges of each path, in their order."""
        ids = pa.list_(pa.int64())
        return pa.table(
            {
                "nodes": pa.array([[node.id for node in path.nodes] for path in self], ids),
                "edges": pa.array([[edge.id for edge in path.edges] for path in self], ids),
            }
        )

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Format each path in one line, under the column `path`.

        Args:
            most: The largest number of rows; None is all.
        """
        return ["path"], [[draw_path(path)] for path in self[:most]]


def draw_path(path: Path) -> str:
    """Format a path in one line, with the ids of its nodes.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     job, company = db.create_node("Job").id, db.create_node("Company").id
    ...     _ = db.create_edge(job, "POSTED_BY", company)
    ...     draw_path(db.shortest_path(company, job, direction="in"))
    '(Company #2)<-[POSTED_BY]-(Job #1)'
    """
    pieces = [f"({path.nodes[0].type} #{path.nodes[0].id})"]
    for before, edge, after in zip(path.nodes, path.edges, path.nodes[1:], strict=False):
        is_forward = edge.from_id == before.id and edge.to_id == after.id
        pieces.append(f"-[{edge.type}]->" if is_forward else f"<-[{edge.type}]-")
        pieces.append(f"({after.type} #{after.id})")
    return "".join(pieces)
