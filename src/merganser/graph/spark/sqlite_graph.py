"""`SqliteGraph`: merge the rows of a DataFrame into an SQLite graph on the driver.

Spark folds the rows into records and sorts them by id; the driver merges them in batches. Each batch is one transaction
that also writes a checkpoint: an interrupted merge continues from there, and never merges a record twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.columnar.take import to_array
from merganser.display import pluralize
from merganser.errors import NodeNotFoundError
from merganser.graph.argument_names import accept_synonyms
from merganser.graph.database import GraphDatabase
from merganser.graph.json_columns import to_python_values
from merganser.graph.merging.bulk import BulkNodes
from merganser.graph.merging.bulk_edges import BulkEdges, check_missing_node_policy
from merganser.graph.merging.bulk_options import Endpoint, RowChanges
from merganser.graph.merging.merge import find_nodes
from merganser.graph.merging.missing import start_missing_records
from merganser.graph.spark import collect
from merganser.graph.spark.endpoints import EdgeRecords
from merganser.graph.spark.missing import check_scope, read_given_missing
from merganser.graph.spark.records import EdgeMerge, NodeMerge, fold_edges, fold_nodes
from merganser.graph.spark.results import GraphMergeResult
from merganser.graph.sqlite.checkpoints import Checkpoint, CheckpointedBatch
from merganser.graph.sqlite.chosen import MAX_LISTED
from merganser.graph.sqlite.indexes import create_index, has_index
from merganser.graph.sqlite.lookup import extract_keys, find_by_keys, find_column_keys, find_first_positions
from merganser.graph.sqlite.sql import has_json_path
from merganser.graph.values import Properties, normalize_properties
from merganser.timeline import record_span

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from merganser.graph.merging.bulk_edges import MissingNodePolicy
    from merganser.graph.merging.missing import MissingOptions, MissingRecords
    from merganser.graph.spark.record_set import Records
    from merganser.graph.sqlite.lookup import Key
    from merganser.graph.sqlite.store import Store

    # Merges a table of records, and returns the rows skipped, the records created and changed, and the nodes created.
    MergeFunction = Callable[[pa.Table, MissingRecords | None], tuple[int, int, int, int]]

_MAX_KEYS_SHOWN = MAX_LISTED
# The structs of a record; the columns of the first one keep the names of their properties.
_STRUCTS = ("new", "found", "from_match", "to_match")
# For the struct of an endpoint: the column of its node ids, and its verb in errors.
_ENDPOINTS = {"from_match": ("src", "start"), "to_match": ("dst", "end")}


class SqliteGraph:
    """A `GraphDatabase` that DataFrames are merged into, with the methods of `ParquetGraph`.

    Args:
        graph: An open `GraphDatabase`, or a file, which is opened and must be closed: by `with`, or by `close`.

    >>> with SqliteGraph("jobs.db") as graph:  # doctest: +SKIP
    ...     print(graph.merge_nodes(jobs, "Job", match="url", base="title", batch_id="2026-01-05").created)
    1
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
        """Close the file, unless it was given as an open `GraphDatabase`.

        >>> graph.close()  # doctest: +SKIP
        """
        if self._owns_database:
            self.database.close()

    @accept_synonyms(NodeMerge.__annotations__)
    def merge_nodes(
        self, frame: DataFrame, type: str, *, batch_id: str | None = None, **given: Unpack[NodeMerge]
    ) -> GraphMergeResult:
        """Merge rows into nodes, with the same effect as `merge_node(…, touch=False)` for one row after another.

        Records are merged in transactions of at most 50,000. If one fails, those before it remain committed.

        Args:
            frame: Source rows.
            type: Type of the nodes.
            batch_id: Id of this batch; the same call continues an interrupted batch, and does not repeat a complete
                one.
            **given: As for `ParquetGraph.merge_nodes`.

        >>> graph.merge_nodes(jobs, "Job", match="url", base="title").created  # doctest: +SKIP
        1
        """
        store = self._store
        batch = CheckpointedBatch(store, f"nodes {type}", batch_id)
        point = batch.read_checkpoint()
        if point.done:
            return _make_result(point, replayed=True)
        options = read_given_missing(given)
        with fold_nodes(frame, type, **given) as records:
            return self._merge_nodes(type, records, SyncedBatch(batch, point, options))

    @accept_synonyms(EdgeMerge.__annotations__)
    def merge_edges(
        self,
        frame: DataFrame,
        type: str,
        *,
        on_missing_node: MissingNodePolicy = "error",
        batch_id: str | None = None,
        **given: Unpack[EdgeMerge],
    ) -> GraphMergeResult:
        """Merge rows into edges, with the same effect as `merge_edge(…, touch=False)` for one row after another.

        Args:
            frame: Source rows.
            type: Type of the edges.
            on_missing_node: What happens if a node does not exist: `"error"` refuses the merge before anything is
                written, `"skip"` skips such rows, `"create"` creates the node.
            batch_id: As for `merge_nodes`.
            **given: As for `ParquetGraph.merge_edges`.

        >>> job, company = Endpoint("Job", {"url": "url"}), Endpoint("Company", {"name": "company"})  # doctest: +SKIP
        >>> graph.merge_edges(jobs, "POSTED_BY", from_node=job, to_node=company).created  # doctest: +SKIP
        1
        """
        store = self._store
        check_missing_node_policy(on_missing_node)
        options = read_given_missing(given)
        batch = CheckpointedBatch(store, f"edges {type}", batch_id)
        point = batch.read_checkpoint()
        if point.done:
            return _make_result(point, replayed=True)
        with fold_edges(frame, type, **given) as records:
            edges = EdgeRecords(given["from_node"], given["to_node"], on_missing_node, checks=True)
            return self._merge_edges(type, records, edges, SyncedBatch(batch, point, options))

    def _merge_records(
        self,
        kind: Literal["nodes", "edges"],
        type_: str,
        records: Records,
        batch_id: str,
        edges: EdgeRecords | None,
        options: MissingOptions | None,
    ) -> GraphMergeResult:
        """Merge records that are folded already."""
        batch = CheckpointedBatch(self._store, f"{kind} {type_}", batch_id)
        point = batch.read_checkpoint()
        if point.done:
            return _make_result(point, replayed=True)
        synced = SyncedBatch(batch, point, options)
        if edges is None:
            return self._merge_nodes(type_, records, synced)
        return self._merge_edges(type_, records, edges, synced)

    def _merge_nodes(self, type_: str, records: Records, batch: SyncedBatch) -> GraphMergeResult:
        store, names = self._store, records.match_names
        _ensure_index(store, type_, names)

        def merge(table: pa.Table, missing: MissingRecords | None) -> tuple[int, int, int, int]:
            rows, columns = _flatten_properties(table)
            work = BulkNodes(store, type_, names, _make_changes(records, columns["found"]))
            work.missing_records = missing
            done = work.run(rows)
            return 0, done.created, done.changed, 0

        return _merge(batch, records, merge, partial(start_missing_records, store, "nodes", type_, ()))

    def _merge_edges(self, type_: str, records: Records, edges: EdgeRecords, batch: SyncedBatch) -> GraphMergeResult:
        store, names, point = self._store, records.match_names, batch.point
        endpoints = {"from_match": edges.from_node, "to_match": edges.to_node}
        if edges.checks and edges.on_missing_node == "error":
            for struct, endpoint in endpoints.items():
                _refuse_missing(store, type_, endpoint.type, struct, _select_endpoints(records, point, struct))
        for endpoint in endpoints.values():
            _ensure_index(store, endpoint.type, tuple(endpoint.match))

        def merge(table: pa.Table, missing: MissingRecords | None) -> tuple[int, int, int, int]:
            skipped = 0
            if edges.on_missing_node == "skip":
                table, skipped = _drop_missing(store, table, *(endpoint.type for endpoint in endpoints.values()))
            rows, columns = _flatten_properties(table)
            work = BulkEdges(store, type_, names, _make_changes(records, columns["found"]))
            work.set_endpoints(
                *(Endpoint(endpoint.type, columns[struct]) for struct, endpoint in endpoints.items()),
                is_undirected=False,
                on_missing_node=edges.on_missing_node if edges.checks else "error",
            )
            work.missing_records = missing
            done = work.run(rows)
            return skipped, done.created, done.changed, done.nodes_created

        types = (edges.from_node.type, edges.to_node.type)
        return _merge(batch, records, merge, partial(start_missing_records, store, "edges", type_, types))

    def committed(self, kind: Literal["nodes", "edges"], type: str, batch_id: str) -> bool:
        """Tell whether a batch was merged completely.

        Args:
            kind: Whether it was a batch of nodes or of edges.
            type: Type of the nodes or edges.
            batch_id: Id of the batch.

        >>> graph.committed("nodes", "Job", "2026-01-05")  # doctest: +SKIP
        True
        """
        return CheckpointedBatch(self._store, f"{kind} {type}", batch_id).read_checkpoint().done

    @property
    def _store(self) -> Store:
        return self.database._store  # noqa: SLF001 - a graph is one package


@dataclass(frozen=True, slots=True)
class SyncedBatch:
    """A batch, the checkpoint to continue from, and what happens to the records that no row matches."""

    batch: CheckpointedBatch
    point: Checkpoint
    options: MissingOptions | None


def _merge(
    given: SyncedBatch, records: Records, merge: MergeFunction, start: Callable[[MissingOptions], MissingRecords]
) -> GraphMergeResult:
    """Merge the records after a checkpoint, in one transaction for each table, or in one if records may be missing."""
    if given.options is None:
        return _make_result(*_merge_tables(given.batch, given.point, records, merge, None))
    check_scope(records, given.options)
    with given.batch.store.transaction():
        missing = start(given.options)
        # What was committed before this transaction is not known to be matched.
        done, created = _merge_tables(given.batch, given.point, records, merge, missing)
        gone = missing.apply()
    found = _make_result(done, created)
    return replace(found, missing=len(gone.ids), missing_ids=gone.ids, kept=gone.kept, detached=gone.detached)


def _merge_tables(
    batch: CheckpointedBatch, before: Checkpoint, records: Records, merge: MergeFunction, missing: MissingRecords | None
) -> tuple[Checkpoint, int]:
    """Merge the records after a checkpoint; return the last one, and the number of nodes created for edges."""
    point = before if missing is None else Checkpoint()
    nodes_created = 0
    for table in records.read_tables(point.last_id):
        with record_span("merge", "SQLite"), batch.store.transaction():
            skipped, created, changed, nodes = merge(table, missing)
            after = Checkpoint(
                last_id=table.column("id")[-1].as_py(),
                rows=point.rows + pc.sum(table.column("rows")).as_py(),
                created=point.created + created,
                changed=point.changed + changed,
                skipped=point.skipped + skipped,
            )
            batch.advance(before, after)
        nodes_created += nodes
        before = point = after
    with record_span("merge", "SQLite"), batch.store.transaction():
        # Rows without a key belong to no record.
        after = replace(point, rows=records.rows, skipped=point.skipped + records.skipped, done=True)
        batch.advance(before, after)
    return after, nodes_created


def _make_changes(records: Records, overwritten: Mapping[str, str]) -> RowChanges:
    return RowChanges(on_match=overwritten, condition=dict(records.condition), touch=False)


def _select_endpoints(records: Records, point: Checkpoint, struct: str) -> DataFrame:
    """Select the distinct keys of the nodes at one endpoint of the edges that are still to be merged."""
    node_id = _ENDPOINTS[struct][0]
    remaining = records.frame.where(F.col("id") > point.last_id) if point.last_id else records.frame
    remaining = remaining.repartition(records.rows // collect.ROWS + 1, node_id)
    return remaining.dropDuplicates([node_id]).select(struct)


def _make_result(point: Checkpoint, nodes_created: int = 0, *, replayed: bool = False) -> GraphMergeResult:
    return GraphMergeResult(
        rows=point.rows,
        created=point.created,
        matched=point.rows - point.created - point.skipped,
        changed=point.changed,
        skipped=point.skipped,
        files_written=0,
        files_preserved=0,
        replayed=replayed,
        nodes_created=nodes_created,
    )


def _ensure_index(store: Store, type_: str, names: tuple[str, ...]) -> None:
    """Index the properties by which nodes are found, if SQLite can."""
    if all(map(has_json_path, names)) and not has_index(store, type_, names):
        create_index(store, type_, names, unique=False, table="nodes")


def _flatten_properties(table: pa.Table) -> tuple[pa.Table, dict[str, dict[str, str]]]:
    """Make a column of each property of the records, and map structs and properties to the names of these columns.

    A column of `new` has the name under which the property is stored; the others get unused names.
    """
    columns: dict[str, dict[str, str]] = {struct: {} for struct in _STRUCTS}
    structs = [struct for struct in _STRUCTS if struct in table.column_names]
    used: dict[str, None] = {}
    for struct in structs:
        for field in table.schema.field(struct).type:
            name = field.name
            while name in used:
                name += "'"
            used[name] = None
            columns[struct][field.name] = name
    return table.select(structs).flatten().rename_columns(list(used)), columns


def _refuse_missing(store: Store, type_: str, node_type: str, struct: str, frame: DataFrame) -> None:
    """Refuse edges whose nodes at one endpoint do not exist, before anything is written."""
    examples: list[Any] = []
    count = 0
    for table in collect.stream_tables(frame, collect.ROWS):
        missing = pc.invert(_find_existing_nodes(store, node_type, table, struct))
        examples += _read_keys(table.filter(missing).slice(0, _MAX_KEYS_SHOWN - len(examples)), struct)
        count += pc.sum(missing).as_py() or 0
    if count:
        raise NodeNotFoundError(
            f"{type_} edges {_ENDPOINTS[struct][1]} at {node_type} nodes that do not exist: {pluralize(count, 'key')}, "
            f"for example {', '.join(map(repr, examples))}. Merge the nodes first, or set on_missing_node to "
            "'skip' or 'create'."
        )


def _drop_missing(store: Store, table: pa.Table, from_type: str, to_type: str) -> tuple[pa.Table, int]:
    """Drop the edges whose nodes do not exist, and count their rows."""
    has_start = _find_existing_nodes(store, from_type, table, "from_match")
    has_end = _find_existing_nodes(store, to_type, table, "to_match")
    edges = table.filter(pc.and_(has_start, has_end))
    return edges, pc.sum(table.column("rows")).as_py() - (pc.sum(edges.column("rows")).as_py() or 0)


def _find_existing_nodes(store: Store, type_: str, table: pa.Table, struct: str) -> pa.Array:
    """Find the rows of which the node at an endpoint exists."""
    names = tuple(field.name for field in table.schema.field(struct).type)
    with store.transaction():
        keys = _extract_keys(table, struct, names)
        if keys is None:
            return pa.array([bool(find_nodes(store, type_, row)) for row in _read_keys(table, struct)], pa.bool_())
        distinct = list(find_first_positions(keys))
        existing = {distinct[slot] for slot, _ in find_by_keys(store, "nodes", type_, names, distinct)}
    return pa.array([key in existing for key in keys], pa.bool_())


def _extract_keys(table: pa.Table, struct: str, names: tuple[str, ...]) -> list[Key] | None:
    """Extract the keys of an endpoint by column, or by row if a value needs it."""
    fields = table.schema.field(struct).type
    keys = find_column_keys(list(zip(to_array(table.column(struct)).flatten(), fields, strict=True)))
    return keys or extract_keys(_read_keys(table, struct), {name: name for name in names}, 0)


def _read_keys(table: pa.Table, struct: str) -> list[Properties]:
    """Read the match properties of an endpoint."""
    given = to_python_values(to_array(table.column(struct)), table.schema.field(struct))
    return [normalize_properties(row, struct) for row in given]
