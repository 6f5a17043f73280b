"""`SqliteGraph`: rows of a DataFrame merged into an SQLite graph on the driver.

Spark folds the rows into records and sorts them by id; the driver takes them in batches. Each batch is one transaction,
with the point that it has come to: a merge that was interrupted goes on from there, and never merges a record twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.errors import NodeNotFoundError
from merganser.graph.database import GraphDatabase
from merganser.graph.merging.bulk import BulkEdges, BulkNodes, Endpoint
from merganser.graph.merging.merge import find_nodes
from merganser.graph.spark import collect as stream
from merganser.graph.spark.endpoints import check_missing
from merganser.graph.spark.records import fold_edges, fold_nodes
from merganser.graph.spark.results import GraphMergeResult
from merganser.graph.sqlite.checkpoints import Checkpoint, CheckpointedBatch
from merganser.graph.sqlite.indexes import create_index, has_index
from merganser.graph.sqlite.lookup import extract_keys, find_by_keys, find_first_positions, to_python_values
from merganser.graph.sqlite.sql import has_json_path
from merganser.graph.values import normalize_properties

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Self, Unpack

    from pyspark.sql import DataFrame

    from merganser.graph.spark.endpoints import MissingPolicy
    from merganser.graph.spark.records import EdgeMerge, NodeMerge, Records
    from merganser.graph.sqlite.store import Store
    from merganser.graph.values import Properties

    # Merges a table of records, and gives the rows left out, the records created and those changed.
    MergeFunction = Callable[[pa.Table], tuple[int, int, int]]

_MAX_KEYS_SHOWN = 5
# The structs of a record; what is first keeps its names.
_STRUCTS = ("new", "found", "from_match", "to_match")
# The column with the ids of the nodes at an end, and what the end is called.
_ENDPOINTS = {"from_match": ("src", "start"), "to_match": ("dst", "end")}


class SqliteGraph:
    """A `GraphDatabase`, or the file of one, that DataFrames are merged into with the calls of `ParquetGraph`.

    A file that it opens itself it closes, too: use it in a `with` block, or call `close`.
    """

    def __init__(self, graph: str | os.PathLike[str] | GraphDatabase) -> None:
        self._owns_database = not isinstance(graph, GraphDatabase)
        self.database = graph if isinstance(graph, GraphDatabase) else GraphDatabase(graph)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqliteGraph({self.database!r})"

    def close(self) -> None:
        """Close the file, unless it was given as an open `GraphDatabase`."""
        if self._owns_database:
            self.database.close()

    def merge_nodes(
        self,
        frame: DataFrame,
        type: str,  # noqa: A002 - the word for it
        *,
        batch_id: str | None = None,
        **given: Unpack[NodeMerge],
    ) -> GraphMergeResult:
        """Merge rows into nodes of a type, as if by `merge_node(…, touch=False)` row after row; see `ParquetGraph`.

        Records are written in transactions of up to fifty thousand. If it fails in between, those before stay: give a
        `batch_id`, and the same call goes on after them.
        """
        store = self._store
        batch = CheckpointedBatch(store, f"nodes {type}", batch_id)
        point = batch.read_checkpoint()
        if point.done:
            return _make_result(point, replayed=True)
        folded = fold_nodes(frame, type, **given)
        with folded as records:
            names = records.match_names
            _ensure_index(store, type, names)

            def merge(table: pa.Table) -> tuple[int, int, int]:
                rows, columns = _flatten_properties(table)
                work = BulkNodes(store, type, names, columns["found"], touch=False)
                return 0, work.run(rows).created, work.changed

            return _merge(batch, point, records, merge)

    def merge_edges(
        self,
        frame: DataFrame,
        type: str,  # noqa: A002
        *,
        missing: MissingPolicy = "refuse",
        batch_id: str | None = None,
        **given: Unpack[EdgeMerge],
    ) -> GraphMergeResult:
        """Merge rows into edges of a type, as if by `merge_edge(…, touch=False)` row after row; see `ParquetGraph`.

        An edge whose nodes are not there is refused before anything is written, or left out with `missing="skip"`. The
        rest is as in `merge_nodes`.
        """
        store = self._store
        check_missing(missing)
        batch = CheckpointedBatch(store, f"edges {type}", batch_id)
        point = batch.read_checkpoint()
        if point.done:
            return _make_result(point, replayed=True)
        folded = fold_edges(frame, type, **given)
        with folded as records:
            names = records.match_names
            ends = {"from_match": given["from_node"], "to_match": given["to_node"]}
            if missing == "refuse":
                for part, end in ends.items():
                    _refuse_missing(store, type, end.type, part, _select_endpoints(records, point, part))
            for end in ends.values():
                _ensure_index(store, end.type, tuple(end.match))

            def merge(table: pa.Table) -> tuple[int, int, int]:
                skipped = 0
                if missing == "skip":
                    table, skipped = _drop_missing(store, table, *(end.type for end in ends.values()))
                rows, columns = _flatten_properties(table)
                work = BulkEdges(store, type, names, columns["found"], touch=False)
                work.set_endpoints(
                    *(Endpoint(end.type, columns[part]) for part, end in ends.items()), is_undirected=False
                )
                return skipped, work.run(rows).created, work.changed

            return _merge(batch, point, records, merge)

    def committed(self, kind: Literal["nodes", "edges"], type: str, batch_id: str) -> bool:  # noqa: A002
        """Say whether a batch of nodes or edges of a type was merged."""
        return CheckpointedBatch(self._store, f"{kind} {type}", batch_id).read_checkpoint().done

    @property
    def _store(self) -> Store:
        return self.database._store  # noqa: SLF001 - a graph is one package


def _merge(batch: CheckpointedBatch, point: Checkpoint, records: Records, merge: MergeFunction) -> GraphMergeResult:
    """Merge the records after a point, a table and a transaction at a time."""
    rest = (
        _select_remaining(records, point)
        .repartitionByRange(_count_partitions(records), "id")
        .sortWithinPartitions("id")
    )
    for table in stream.stream_tables(rest, stream.ROWS):
        with batch.store.transaction():
            skipped, created, changed = merge(table)
            after = Checkpoint(
                last_id=table.column("id")[-1].as_py(),
                rows=point.rows + pc.sum(table.column("rows")).as_py(),
                created=point.created + created,
                changed=point.changed + changed,
                skipped=point.skipped + skipped,
            )
            batch.advance(point, after)
        point = after
    with batch.store.transaction():
        # Rows without a key are in no record.
        after = replace(point, rows=records.rows, skipped=point.skipped + records.skipped, done=True)
        batch.advance(point, after)
    return _make_result(after, replayed=False)


def _count_partitions(records: Records) -> int:
    """Give a number of partitions of which each is about a table: Spark keeps one whole until the driver takes it."""
    return records.rows // stream.ROWS + 1


def _select_remaining(records: Records, point: Checkpoint) -> DataFrame:
    return records.frame.where(F.col("id") > point.last_id) if point.last_id else records.frame


def _select_endpoints(records: Records, point: Checkpoint, part: str) -> DataFrame:
    """Give the keys of the nodes at one end of the edges that are still to be merged, each once."""
    node = _ENDPOINTS[part][0]
    return (
        _select_remaining(records, point)
        .repartition(_count_partitions(records), node)
        .dropDuplicates([node])
        .select(part)
    )


def _make_result(point: Checkpoint, *, replayed: bool) -> GraphMergeResult:
    return GraphMergeResult(
        rows=point.rows,
        created=point.created,
        matched=point.rows - point.created - point.skipped,
        changed=point.changed,
        skipped=point.skipped,
        files_written=0,
        files_preserved=0,
        replayed=replayed,
    )


def _ensure_index(store: Store, type_: str, names: tuple[str, ...]) -> None:
    """Index what nodes are found by, if SQLite can."""
    if all(map(has_json_path, names)) and not has_index(store, type_, names):
        create_index(store, type_, names, unique=False, table="nodes")


def _flatten_properties(table: pa.Table) -> tuple[pa.Table, dict[str, dict[str, str]]]:
    """Give each property of the records a column of its own, and the names of the columns by part and property.

    A column of `new` is named as the property, which it is stored as; the others get names that no property has.
    """
    columns: dict[str, dict[str, str]] = {part: {} for part in _STRUCTS}
    parts = [part for part in _STRUCTS if part in table.column_names]
    taken: dict[str, None] = {}
    for part in parts:
        for field in table.schema.field(part).type:
            name = field.name
            while name in taken:
                name += "'"
            taken[name] = None
            columns[part][field.name] = name
    return table.select(parts).flatten().rename_columns(list(taken)), columns


def _refuse_missing(store: Store, type_: str, node_type: str, part: str, frame: DataFrame) -> None:
    """Refuse edges whose nodes at one end are not there, before anything is written."""
    shown: list[Any] = []
    count = 0
    for table in stream.stream_tables(frame, stream.ROWS):
        keys, there = _find_existing_nodes(store, node_type, table, part)
        absent = [key for key, known in zip(keys, there, strict=True) if not known]
        shown += absent[: _MAX_KEYS_SHOWN - len(shown)]
        count += len(absent)
    if count:
        message = (
            f"There are no {node_type} nodes for {count} keys at the {_ENDPOINTS[part][1]} of {type_} "
            f"edges, such as {', '.join(map(repr, shown))}. Merge the nodes before their edges, or leave such edges "
            "out with missing='skip'."
        )
        raise NodeNotFoundError(message)


def _drop_missing(store: Store, table: pa.Table, from_type: str, to_type: str) -> tuple[pa.Table, int]:
    """Leave out the edges without their nodes, and count their rows."""
    _, starts = _find_existing_nodes(store, from_type, table, "from_match")
    _, ends = _find_existing_nodes(store, to_type, table, "to_match")
    kept = table.filter(pc.and_(pa.array(starts, pa.bool_()), pa.array(ends, pa.bool_())))
    left = pc.sum(table.column("rows")).as_py() - (pc.sum(kept.column("rows")).as_py() or 0)
    return kept, left


def _find_existing_nodes(store: Store, type_: str, table: pa.Table, part: str) -> tuple[list[Properties], list[bool]]:
    """Give the keys in a part of the records, and tell for each whether there is such a node."""
    given = to_python_values(table.column(part).combine_chunks(), table.schema.field(part))
    rows = [normalize_properties(row, part) for row in given]
    names = tuple(field.name for field in table.schema.field(part).type)
    with store.transaction():
        keys = extract_keys(rows, {name: name for name in names}, 0)
        if keys is None:
            return rows, [bool(find_nodes(store, type_, row)) for row in rows]
        distinct = list(find_first_positions(keys))
        there = {distinct[slot] for slot, _ in find_by_keys(store, "nodes", "r.id", type_, names, distinct)}
    return rows, [key in there for key in keys]
