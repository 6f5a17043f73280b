"""`ParquetGraph`: a property graph in Parquet, with a dataset for each type of node and edge."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.engines.spark import SparkDatasetIO
from merganser.engines.spark.jobs import watch_job
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError
from merganser.graph.spark import exchange
from merganser.graph.spark.endpoints import EndpointIds, MissingPolicy, check_missing, drop_missing, refuse_missing
from merganser.graph.spark.folders import Folder, list_types
from merganser.graph.spark.reading import union_types
from merganser.graph.spark.record_set import FrameRecords
from merganser.graph.spark.records import EdgeMerge, NodeMerge, fold_edges, fold_nodes
from merganser.graph.spark.results import GraphMergeResult, make_merge_result
from merganser.graph.spark.source import RecordRows
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.graph.database import GraphDatabase
    from merganser.graph.merging.bulk import Endpoint
    from merganser.graph.spark.endpoints import EdgeRecords
    from merganser.graph.spark.exchange import ExchangeResult
    from merganser.graph.spark.record_set import Records

RecordKind = Literal["nodes", "edges"]


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
                `order_by`, columns that order the rows; ties are ordered by all other columns;
                `skip_null_keys`, which skips rows with NULL in a match property instead of refusing them.

        >>> graph.merge_nodes(jobs, "Job", match="url", base="title", on_match="title").created  # doctest: +SKIP
        1
        """
        folder = self._find_folder("nodes", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        with fold_nodes(frame, type, **given) as records:
            return self._merge(folder, records, batch_id)

    def merge_edges(
        self,
        frame: DataFrame,
        type: str,
        *,
        missing: MissingPolicy = "refuse",
        batch_id: str | None = None,
        **given: Unpack[EdgeMerge],
    ) -> GraphMergeResult:
        """Merge each row into an edge between two nodes, which are found by their match properties.

        An edge is identified by its type, both nodes and `match`.

        Args:
            frame: Source rows.
            type: Type of the edges.
            missing: Whether to `refuse` the merge if a node does not exist, or to `skip` such rows.
            batch_id: Id of this batch; a batch that was merged before is not merged again.
            **given: `from_node` and `to_node`, an `Endpoint` each; all others are as for `merge_nodes`.

        >>> job, company = Endpoint("Job", {"url": "url"}), Endpoint("Company", {"name": "company"})  # doctest: +SKIP
        >>> graph.merge_edges(jobs, "POSTED_BY", from_node=job, to_node=company).created  # doctest: +SKIP
        1
        """
        check_missing(missing)
        folder = self._find_folder("edges", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        with fold_edges(frame, type, **given) as records:
            checked = self._check_endpoints(records, given["from_node"], given["to_node"], missing)
            return self._merge(folder, checked, batch_id)

    def _merge_records(
        self, kind: RecordKind, type_: str, records: Records, batch_id: str, edges: EdgeRecords | None
    ) -> GraphMergeResult:
        """Merge records that are folded already."""
        folder = self._find_folder(kind, type_)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        if edges is not None and edges.checks:
            records = self._check_endpoints(records, edges.from_node, edges.to_node, edges.missing)
        return self._merge(folder, records, batch_id)

    def _check_endpoints(
        self, records: Records, from_node: Endpoint, to_node: Endpoint, missing: MissingPolicy
    ) -> Records:
        """Refuse edges whose nodes do not exist, or drop them."""
        endpoints = [
            self._find_endpoint("src", "from_match", from_node),
            self._find_endpoint("dst", "to_match", to_node),
        ]
        if missing == "refuse":
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

    def _merge(self, folder: Folder, records: Records, batch_id: str | None) -> GraphMergeResult:
        """Merge records by id: those that do not exist as `new`, the others as `found`."""
        with folder.hold_lock(self._lock_timeout) as check_hold, _name_type_in_errors(folder):
            # Another process may have merged the batch while this one waited, or left it to be recovered.
            before = folder.find_batch(batch_id)
            if before is not None:
                return before
            folder.check_match(records.match_names)
            schema = folder.read_schema()
            source = RecordRows(records, folder, schema)
            overwritten = source.overwritten_columns
            needs_ids = records.has_differences and schema is not None and bool(overwritten)
            rows = source.make_rows(self._read_known_ids(folder, is_needed=needs_ids))
            check_hold()
            folder.write_match_names(records.match_names)
            folder.write_batch(batch_id, rows=records.rows, skipped=records.skipped)
            done = self._io.merge(
                rows,
                folder.path,
                "upsert" if overwritten else "insert",
                "id",
                update_columns=[*overwritten, "updated_at"] if overwritten else None,
                insert_columns=source.columns,
                skip_unchanged=overwritten or False,
                batch_id=batch_id,
                lock_timeout=self._lock_timeout,
                # A property that no record had before is a new column.
                schema_mode="evolve",
            )
        return make_merge_result(done, records.rows, records.skipped)

    def _read_known_ids(self, folder: Folder, *, is_needed: bool) -> DataFrame | None:
        # Spark underestimates the size of what a Python function returns, and would broadcast it.
        return self._io.read_columns(folder.path, "id").hint("merge") if is_needed else None


@contextmanager
def _name_type_in_errors(folder: Folder) -> Iterator[None]:
    try:
        yield
    except (ColumnTypeError, ColumnValueError) as error:
        raise type(error)(f"In the {folder.kind} of type {folder.type!r}: {error}") from error
