"""`ParquetGraph`: a property graph in Parquet, with a dataset for each type of node and edge."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.model.clauses import Clause
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.engines.spark import SparkDatasetIO
from merganser.engines.spark.jobs import watch_job
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError
from merganser.graph.argument_names import accept_synonyms
from merganser.graph.merging.bulk_edges import check_missing_node_policy
from merganser.graph.spark import exchange
from merganser.graph.spark.endpoints import EdgeRecords, EndpointIds, drop_missing, refuse_missing, select_missing
from merganser.graph.spark.folders import Folder, list_types
from merganser.graph.spark.missing import check_scope, find_missing, keep_connected, list_missing, read_given_missing
from merganser.graph.spark.reading import union_types
from merganser.graph.spark.record_set import FrameRecords
from merganser.graph.spark.records import EdgeMerge, NodeMerge, fold_edges, fold_nodes
from merganser.graph.spark.results import GraphMergeResult, MergeRecord, make_merge_result
from merganser.graph.spark.source import RecordRows, read_known
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.model.result import MergeResult
    from merganser.graph.database import GraphDatabase
    from merganser.graph.merging.bulk_edges import MissingNodePolicy
    from merganser.graph.merging.bulk_options import Endpoint
    from merganser.graph.merging.missing import MissingOptions
    from merganser.graph.spark.exchange import ExchangeResult
    from merganser.graph.spark.missing import MissingFrame
    from merganser.graph.spark.record_set import Records

RecordKind = Literal["nodes", "edges"]

# How many ids of missing records a result lists.
_MAX_MISSING_LISTED = 1000


class ParquetGraph:
    """A graph of Parquet datasets, `nodes/type=…` and `edges/type=…`, that any Parquet reader can read.

    A merge has the same effect as `GraphDatabase.merge_node` and `merge_edge` for one row after another, in one pass.
    Ids are derived from the type and the match properties, so the same record has the same id in every Parquet graph.

    Args:
        path: Folder of the graph, as a path or an fsspec URL; it is created by the first merge.
        spark: Spark session; by default the active one.
        filesystem: fsspec filesystem; by default the one that belongs to `path`.
        lock_timeout: Seconds to wait for another writer.

    >>> graph = ParquetGraph("lake/graph", spark)  # doctest: +SKIP
    >>> jobs = spark.createDataFrame([("a.example/1", "Cook")], "url string, title string")  # doctest: +SKIP
    >>> for _ in range(2):  # doctest: +SKIP
    ...     result = graph.merge_nodes(jobs, "Job", match="url", base="title", on_match="title")
    ...     print(result.created, result.matched, result.files_written)
    1 0 1
    0 1 0
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        spark: SparkSession | None = None,
        filesystem: Any = None,
        *,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> None:
        self.path = path
        self._io = SparkDatasetIO(spark, filesystem)
        self._lock_timeout = lock_timeout

    @accept_synonyms(NodeMerge.__annotations__)
    def merge_nodes(
        self, frame: DataFrame, type: str, *, batch_id: str | None = None, **given: Unpack[NodeMerge]
    ) -> GraphMergeResult:
        """Merge each row into the node with its match properties, which is created if it does not exist.

        Properties are a column, a list of columns, or a dict of properties and Spark SQL expressions.

        Args:
            frame: Source rows.
            type: Type of the nodes.
            batch_id: Id of this batch; a batch that was merged before is not merged again.
            **given: The properties, the order of rows and the treatment of NULL, by keyword:
                `match`, the properties that identify a node;
                `base`, properties of a new node;
                `on_create`, more of these, which override `base`;
                `on_match`, properties to overwrite if the node exists or an earlier row created it, NULL removes one;
                in these three, `"*"` stands for all columns but for those that identify;
                `condition`, properties that the node must have to be overwritten, a dict of values;
                `order_by`, columns that order the rows; ties are ordered by all other columns;
                `skip_null_keys`, which skips rows with NULL in a match property instead of refusing them;
                `missing`, `scope` and `detach`, as in `GraphDatabase.bulk_merge_nodes`.

        >>> graph.merge_nodes(jobs, "Job", match="url", base="title", on_match="title").created  # doctest: +SKIP
        1
        """
        folder = self._find_folder("nodes", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        options = read_given_missing(given)
        with fold_nodes(frame, type, **given) as records:
            return self._merge(
                folder, records, batch_id, MergeRecord(rows=records.rows, skipped=records.skipped), options
            )

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
        """Merge each row into an edge between two nodes, which are found by their match properties.

        An edge is identified by its type, both nodes and `match`.

        Args:
            frame: Source rows.
            type: Type of the edges.
            on_missing_node: What happens if a node does not exist: `"error"` refuses the merge, `"skip"` skips such
                rows, `"create"` creates the node, in a commit before that of the edges.
            batch_id: Id of this batch; a batch that was merged before is not merged again.
            **given: `from_node` and `to_node`, an `Endpoint` each; all others, without `detach`, are as for
                `merge_nodes`. Only edges between nodes of these types can be missing.

        >>> job, company = Endpoint("Job", {"url": "url"}), Endpoint("Company", {"name": "company"})  # doctest: +SKIP
        >>> graph.merge_edges(jobs, "POSTED_BY", from_node=job, to_node=company).created  # doctest: +SKIP
        1
        """
        check_missing_node_policy(on_missing_node)
        folder = self._find_folder("edges", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        options = read_given_missing(given)
        with fold_edges(frame, type, **given) as records:
            edges = EdgeRecords(given["from_node"], given["to_node"], on_missing_node, checks=True)
            return self._merge_edges(folder, records, batch_id, edges, options)

    def _merge_edges(
        self,
        folder: Folder,
        records: Records,
        batch_id: str | None,
        edges: EdgeRecords,
        options: MissingOptions | None,
    ) -> GraphMergeResult:
        created = 0
        if edges.checks and edges.on_missing_node == "create":
            created = self._create_endpoints(records, edges)
        elif edges.checks:
            records = self._check_endpoints(records, edges)
        record = MergeRecord(rows=records.rows, skipped=records.skipped, nodes_created=created)
        return self._merge(folder, records, batch_id, record, options, edges)

    def _create_endpoints(self, records: Records, edges: EdgeRecords) -> int:
        """Create the nodes that edges connect and that do not exist."""
        created = 0
        for column, form, node in (("src", "from_match", edges.from_node), ("dst", "to_match", edges.to_node)):
            missing = select_missing(records.frame, self._find_endpoint(column, form, node))
            created += self.merge_nodes(missing.select(f"{form}.*"), node.type, match=list(node.match)).created
        return created

    def _merge_records(
        self,
        kind: RecordKind,
        type_: str,
        records: Records,
        batch_id: str,
        edges: EdgeRecords | None,
        options: MissingOptions | None,
    ) -> GraphMergeResult:
        """Merge records that are folded already."""
        folder = self._find_folder(kind, type_)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        if edges is not None:
            return self._merge_edges(folder, records, batch_id, edges, options)
        return self._merge(folder, records, batch_id, MergeRecord(rows=records.rows, skipped=records.skipped), options)

    def _find_endpoints(self, edges: EdgeRecords) -> list[EndpointIds]:
        return [
            self._find_endpoint("src", "from_match", edges.from_node),
            self._find_endpoint("dst", "to_match", edges.to_node),
        ]

    def _check_endpoints(self, records: Records, edges: EdgeRecords) -> Records:
        """Refuse edges whose nodes do not exist, or drop them."""
        endpoints = self._find_endpoints(edges)
        if edges.on_missing_node == "error":
            for endpoint in endpoints:
                refuse_missing(records.frame, endpoint)
            return records
        frame = reduce(drop_missing, endpoints, records.frame)
        with watch_job("find missing nodes"):
            rows = frame.agg(F.coalesce(F.sum("rows"), F.lit(0))).collect()[0][0]
        return FrameRecords(
            folded=frame,
            rows=records.rows,
            skipped=records.rows - rows,
            has_differences=records.has_differences,
            match_names=records.match_names,
            condition=records.condition,
        )

    def committed(self, kind: RecordKind, type: str, batch_id: str) -> bool:
        """Check whether a batch was merged.

        Args:
            kind: `"nodes"` or `"edges"`.
            type: Type of the nodes or edges.
            batch_id: Id of the batch.

        >>> graph.committed("nodes", "Job", "2026-01-05")  # doctest: +SKIP
        True
        """
        return self._find_folder(kind, type).find_batch(batch_id) is not None

    def nodes(self, type: str | None = None) -> DataFrame:
        """Read nodes with the columns of GraphFrames: `id`, `type`, then properties and times.

        A property that a node lacks is NULL. A property with the name of another column gets the prefix `property_`.

        Args:
            type: Type of the nodes; by default all types.

        >>> graph.nodes("Job").select("url", "title").show()  # doctest: +SKIP
        """
        return self._read("nodes", type, "type")

    def edges(self, type: str | None = None) -> DataFrame:
        """Read edges with the columns of GraphFrames: `id`, `src`, `dst`, `relationship`, then properties and times.

        Args:
            type: Type of the edges; by default all types.

        >>> graph.edges("POSTED_BY").count()  # doctest: +SKIP
        1
        """
        return self._read("edges", type, "relationship")

    def node_types(self) -> list[str]:
        """List the types of nodes.

        >>> graph.node_types()  # doctest: +SKIP
        ['Company', 'Job']
        """
        return list_types(self.path, "nodes", self._io.filesystem)

    def edge_types(self) -> list[str]:
        """List the types of edges.

        >>> graph.edge_types()  # doctest: +SKIP
        ['POSTED_BY']
        """
        return list_types(self.path, "edges", self._io.filesystem)

    def to_sqlite(self, target: str | os.PathLike[str] | GraphDatabase) -> ExchangeResult:
        """Merge this graph into an SQLite graph, type by type; repeating it changes nothing.

        A record there gets all properties of this one; properties that only the SQLite graph has are preserved.

        Args:
            target: The SQLite graph: an open `GraphDatabase`, or a file, which is created if it does not exist.

        >>> graph.to_sqlite("jobs.db").nodes["Job"].created  # doctest: +SKIP
        1
        """
        return exchange.to_sqlite(self, target)

    def from_sqlite(
        self,
        source: str | os.PathLike[str] | GraphDatabase,
        match: Mapping[str, Sequence[str]] | None = None,
        edge_match: Mapping[str, Sequence[str]] | None = None,
    ) -> ExchangeResult:
        """Merge an SQLite graph into this one, type by type; repeating it changes nothing.

        Ids here are derived from the match properties, which SQLite does not store. They are known for types that this
        graph has already, and must be given for others.

        Args:
            source: The SQLite graph: a file, or an open `GraphDatabase`.
            match: Match properties by node type.
            edge_match: Match properties by edge type, where several edges of that type connect the same two nodes.

        >>> graph.from_sqlite("jobs.db", match={"Job": ["url"]}).nodes["Job"].created  # doctest: +SKIP
        1
        """
        return exchange.from_sqlite(self, source, match, edge_match)

    def _find_folder(self, kind: RecordKind, type_: str) -> Folder:
        check_type(type_)
        return Folder(self.path, kind, type_, self._io.filesystem)

    def _find_endpoint(self, column: str, match: str, given: Endpoint) -> EndpointIds:
        folder = self._find_folder("nodes", given.type)
        folder.recover(self._lock_timeout)
        folder.check_match(list(given.match), f"The endpoint {given.type}")
        known = None if folder.read_schema() is None else self._io.read_columns(folder.path, "id")
        return EndpointIds(column, match, given.type, known)

    def _read(self, kind: RecordKind, type_: str | None, type_column: str) -> DataFrame:
        types = list_types(self.path, kind, self._io.filesystem) if type_ is None else [type_]
        if not types:
            message = f"{self.path} has no {kind} yet, so a DataFrame would have no columns. Merge some first."
            raise InvalidArgumentError(message)
        frames = {name: self._io.read(self._find_folder(kind, name).path) for name in types}
        return union_types(frames, kind, type_column)

    def _merge(
        self,
        folder: Folder,
        records: Records,
        batch_id: str | None,
        record: MergeRecord,
        options: MissingOptions | None,
        edges: EdgeRecords | None = None,
    ) -> GraphMergeResult:
        """Merge records by id: those that do not exist as `new`, the others as `found`."""
        check_scope(records, options)
        with folder.hold_lock(self._lock_timeout) as check_hold, _name_type_in_errors(folder):
            # Another process may have merged the batch while this one waited, or left it to be recovered.
            before = folder.find_batch(batch_id)
            if before is not None:
                return before
            folder.check_match(records.match_names)
            schema = folder.read_schema()
            source = RecordRows(records, folder, schema)
            overwritten = source.overwritten_columns
            known = missing = None
            if schema is not None and overwritten and (records.has_differences or records.condition):
                known = read_known(self._io, folder, schema, records.condition)
            if options is not None and schema is not None:
                missing = self._find_missing(folder, records, record, options, edges)
            rows = source.make_rows(known, missing)
            check_hold()
            folder.write_match_names(records.match_names)
            folder.write_batch(batch_id, record)
            # A property that no record had before is a new column.
            common: dict[str, Any] = {"batch_id": batch_id, "lock_timeout": self._lock_timeout, "schema_mode": "evolve"}
            if missing is not None:
                done = self._merge_with_missing(folder, rows, source, missing, common)
            else:
                done = self._io.merge(
                    rows,
                    folder.path,
                    "upsert" if overwritten else "insert",
                    "id",
                    update_columns=[*overwritten, "updated_at"] if overwritten else None,
                    insert_columns=source.columns,
                    skip_unchanged=overwritten or False,
                    **common,
                )
        return make_merge_result(done, record)

    def _merge_with_missing(
        self, folder: Folder, rows: Any, source: RecordRows, missing: MissingFrame, common: dict[str, Any]
    ) -> MergeResult:
        """Merge the rows of records and those of missing records in one commit."""
        overwritten = source.overwritten_columns
        clauses = [missing.clause]
        if overwritten:
            clauses.append(Clause(side="matched", action="update", columns=(*overwritten, "updated_at")))
        clauses.append(Clause(side="not_matched", action="insert", columns=tuple(source.columns)))
        compared = list(dict.fromkeys([*overwritten, *(missing.updates or ())]))
        merge = self._io.merge_into(folder.path, rows, on="id", skip_unchanged=compared or False, **common)
        return merge.add(*clauses).execute()

    def _find_missing(
        self,
        folder: Folder,
        records: Records,
        record: MergeRecord,
        options: MissingOptions,
        edges: EdgeRecords | None,
    ) -> MissingFrame:
        """Find the missing records, and delete the edges of those nodes that are deleted."""
        existing = self._io.read(folder.path)
        endpoints = [] if edges is None else self._find_endpoints(edges)
        known = [
            (one.column, existing.select("id").limit(0) if one.known_ids is None else one.known_ids)
            for one in endpoints
        ]
        missing = find_missing(existing, records, folder.kind, options, known)
        record.changes_missing = options.updates is not None
        if folder.kind == "nodes" and options.updates is None:
            if options.detach is True:
                record.detached = self._delete_edges(missing.ids)
            else:
                missing, record.kept = keep_connected(missing, self._read_connected(), options, records.match_names)
        return list_missing(missing, record, _MAX_MISSING_LISTED)

    def _read_connected(self) -> DataFrame:
        """Read the ids of all nodes that edges connect."""
        found = self._io.spark.createDataFrame([], "id string")
        for type_ in self.edge_types():
            ends = self._io.read_columns(self._find_folder("edges", type_).path, ["src", "dst"])
            for column in ("src", "dst"):
                found = found.unionAll(ends.select(F.col(column).alias("id")))
        return found

    def _delete_edges(self, nodes: DataFrame) -> int:
        """Delete the edges of some nodes, of all types."""
        deleted = 0
        for type_ in self.edge_types():
            folder = self._find_folder("edges", type_)
            with folder.hold_lock(self._lock_timeout):
                ends = self._io.read_columns(folder.path, ["id", "src", "dst"])
                gone = [
                    ends.join(nodes.select(F.col("id").alias(column)).hint("merge"), column, "left_semi").select("id")
                    for column in ("src", "dst")
                ]
                ids = gone[0].unionAll(gone[1]).distinct()
                deleted += self._io.merge(ids, folder.path, "delete", "id", lock_timeout=self._lock_timeout).deleted
        return deleted


@contextmanager
def _name_type_in_errors(folder: Folder) -> Iterator[None]:
    try:
        yield
    except (ColumnTypeError, ColumnValueError) as error:
        raise type(error)(f"In the {folder.kind} of type {folder.type!r}: {error}") from error
