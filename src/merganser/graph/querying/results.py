"""Results of queries: lists of records, paths or rows that convert to Arrow and that notebooks show as tables."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from merganser.display import to_plain
from merganser.errors import InvalidArgumentError, MissingExtraError
from merganser.graph.exchange.columns import make_columns
from merganser.graph.exchange.property_types import collect_property_types
from merganser.graph.records import Edge, Node, Path
from merganser.graph.values import encode, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

ResultT = TypeVar("ResultT", bound=Node | Edge | Path | dict[str, Any])
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

    def to_pandas(self) -> pd.DataFrame:
        """Convert to a data frame with a row for each result; integers and booleans stay exact beside missing values.

        >>> from merganser.graph import GraphDatabase
        >>> with GraphDatabase(":memory:") as db:
        ...     _ = db.create_node("Job", {"seen": 2**53 + 1}), db.create_node("Job")
        ...     db.nodes("Job").values("seen").to_pandas()["seen"].tolist()
        [9007199254740993, <NA>]
        """
        try:
            import pandas as pd  # noqa: PLC0415 - not a requirement
        except ModuleNotFoundError as error:
            raise MissingExtraError("to_pandas needs pandas. Install it with: pip install pandas.") from error
        return self.to_arrow().to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get)

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
    """A list of paths; shown with the keys of their nodes where a unique index has them, otherwise with their ids."""

    __slots__ = ("_keys",)

    def __init__(self, paths: Iterable[Path] = (), keys: Mapping[str, Sequence[tuple[str, ...]]] | None = None) -> None:
        super().__init__(paths)
        # For each type, the properties of its unique indexes.
        self._keys = keys or {}

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
        return ["path"], [[draw_path(path, self._keys)] for path in self[:most]]


class Rows(_Results[dict[str, Any]]):
    """A list of dicts with the same keys: values of properties, ids and times, or whole nodes and edges.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     _ = db.create_node("Job", {"title": "Engineer"})
    ...     db.nodes("Job").values("id", "title").to_arrow().to_pylist()
    [{'id': 1, 'title': 'Engineer'}]
    """

    __slots__ = ("_kinds",)

    def __init__(self, columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str], count: int) -> None:
        values = zip(*columns.values(), strict=True) if columns else [()] * count
        super().__init__(dict(zip(columns, row, strict=True)) for row in values)
        self._kinds = dict(kinds)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._kinds)

    def to_arrow(self) -> pa.Table:
        """Convert to a table. A node or edge `n` has a column for its id, type and each property, such as `n.id`."""
        names: list[str] = []
        arrays: list[Any] = []
        for name, kind in self._kinds.items():
            values = [row[name] for row in self]
            if kind in {"node", "edge"}:
                records = (Nodes(values) if kind == "node" else Edges(values)).to_arrow()
                names += [f"{name}.{column}" for column in records.column_names]
                arrays += records.columns
            else:
                names.append(name)
                arrays.append(_to_array(kind, values))
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(f"The table would have two columns {name!r}. Rename one with AS.")
        return pa.table(dict(zip(names, arrays, strict=True)))

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Format as a table for people: the names of its columns, and its rows.

        Args:
            most: The largest number of rows; None is all.
        """
        return self.columns, [[_format_cell(row[name]) for name in self._kinds] for row in self[:most]]


_ARRAY_TYPES = {"integer": pa.int64(), "string": pa.string(), "time": _TIME}


def _to_array(kind: str, values: list[Any]) -> pa.Array:
    if kind in _ARRAY_TYPES:
        return pa.array(values, _ARRAY_TYPES[kind])
    present = collect_property_types((0, {"": value}) for value in values if value is not None)
    if not present:
        return pa.nulls(len(values))
    (column,) = make_columns(present, ())
    return column.to_array([{"": value} for value in values])


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Node | Edge):
        return f"{value.type} #{value.id} {encode(value.properties)}"
    return value.isoformat() if isinstance(value, datetime) else format_value(value)


def draw_path(path: Path, keys: Mapping[str, Sequence[tuple[str, ...]]]) -> str:
    """Format a path in one line, with the keys of its nodes, or their ids.

    >>> from merganser.graph import GraphDatabase
    >>> with GraphDatabase(":memory:") as db:
    ...     job, company = db.create_node("Job").id, db.create_node("Company", {"name": "TechCorp"}).id
    ...     _ = db.create_edge(job, "POSTED_BY", company)
    ...     draw_path(db.shortest_path(company, job, direction="in"), {"Company": [("name",)]})
    '(Company {name: "TechCorp"})<-[POSTED_BY]-(Job #1)'
    """
    pieces = [_draw_node(path.nodes[0], keys)]
    for before, edge, after in zip(path.nodes, path.edges, path.nodes[1:], strict=False):
        is_forward = edge.from_id == before.id and edge.to_id == after.id
        pieces.append(f"-[{edge.type}]->" if is_forward else f"<-[{edge.type}]-")
        pieces.append(_draw_node(after, keys))
    return "".join(pieces)


def _draw_node(node: Node, keys: Mapping[str, Sequence[tuple[str, ...]]]) -> str:
    for names in keys.get(node.type, ()):
        if all(name in node.properties for name in names):
            values = ", ".join(f"{name}: {encode(node.properties[name])}" for name in names)
            return f"({node.type} {{{values}}})"
    return f"({node.type} #{node.id})"
