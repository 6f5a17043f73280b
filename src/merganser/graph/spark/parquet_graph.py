"""A property graph in Parquet: a dataset for each type of node and edge, merged into with Spark."""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.engines.spark import SparkDatasetIO
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError
from merganser.graph.spark import exchange
from merganser.graph.spark.columns import TIME_COLUMNS
from merganser.graph.spark.endpoints import EndpointIds, check_missing, drop_missing, refuse_missing
from merganser.graph.spark.folders import Folder, list_types
from merganser.graph.spark.reading import to_column, union_types
from merganser.graph.spark.records import fold_edges, fold_nodes
from merganser.graph.spark.results import make_merge_result
from merganser.graph.spark.source import RecordRows
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from pyspark.sql import DataFrame, SparkSession

    from merganser.graph.database import GraphDatabase
    from merganser.graph.merging.bulk import Endpoint
    from merganser.graph.spark.endpoints import MissingPolicy
    from merganser.graph.spark.exchange import ExchangeResult
    from merganser.graph.spark.records import EdgeMerge, NodeMerge, Records
    from merganser.graph.spark.results import GraphMergeResult

RecordKind = Literal["nodes", "edges"]


class ParquetGraph:
    """A graph of Parquet datasets, `nodes/type=…` and `edges/type=…`, that any reader of Parquet can read.

    A merge has the meaning of `GraphDatabase.merge_node` and `merge_edge` for one row after another, whatever the
    number of rows. Ids are made of the type and the match properties, so the same record has the same id in every
    Parquet graph. Without a session, the active one is used. `lock_timeout` is how many seconds to wait for another
    writer.

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
        self,
        frame: DataFrame,
        type: str,  # noqa: A002 - the word for it
        *,
        batch_id: str | None = None,
        **given: Unpack[NodeMerge],
    ) -> GraphMergeResult:
        """Merge each row into a node: find the one with its match properties, or create it.

        A new node gets `match`, `base` and `on_create`, later ones winning; on one that is there, or that an earlier
        row made, `on_match` is laid over, and NULL in it removes a property. Each is a column, a list of columns, or a
        dict of properties and Spark SQL expressions. Rows are taken in the order of `order_by`, then of all their
        values. A row with NULL in a match property is refused, or left out with `skip_null_keys`. A batch whose
        `batch_id` was merged before is not merged again.
        """
        folder = self._find_folder("nodes", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        with fold_nodes(frame, type, **given) as records:
            return self._merge(folder, records, records.frame, records.skipped, batch_id)

    def merge_edges(
        self,
        frame: DataFrame,
        type: str,  # noqa: A002
        *,
        missing: MissingPolicy = "refuse",
        batch_id: str | None = None,
        **given: Unpack[EdgeMerge],
    ) -> GraphMergeResult:
        """Merge each row into an edge between two nodes, known by the properties that they were merged by.

        The key of an edge is its type, both nodes and `match`. A row whose node is not there is refused, with
        `missing="skip"` it is left out. All else is as for nodes.
        """
        check_missing(missing)
        folder = self._find_folder("edges", type)
        before = folder.find_batch(batch_id)
        if before is not None:
            return before
        with fold_edges(frame, type, **given) as records:
            ends = [
                self._find_endpoint("src", "from_match", given["from_node"]),
                self._find_endpoint("dst", "to_match", given["to_node"]),
            ]
            if missing == "refuse":
                for end in ends:
                    refuse_missing(records.frame, end)
                return self._merge(folder, records, records.frame, records.skipped, batch_id)
            kept = reduce(drop_missing, ends, records.frame)
            rows = kept.agg(F.coalesce(F.sum("rows"), F.lit(0))).collect()[0][0]
            return self._merge(folder, records, kept, records.rows - rows, batch_id)

    def committed(self, kind: RecordKind, type: str, batch_id: str) -> bool:  # noqa: A002
        """Say whether a batch of nodes or edges of a type was merged."""
        return self._find_folder(kind, type).find_batch(batch_id) is not None

    def nodes(self, type: str | None = None) -> DataFrame:  # noqa: A002
        """Read the nodes of a type, or of all, as GraphFrames has them: `id`, `type`, properties, times.

        A property that a node does not have is NULL. One whose name is taken has the prefix `property_`.
        """
        return self._read("nodes", type, "type")

    def edges(self, type: str | None = None) -> DataFrame:  # noqa: A002
        """Read the edges of a type, or of all, as GraphFrames has them: `id`, `src`, `dst`, `relationship`."""
        return self._read("edges", type, "relationship")

    def node_types(self) -> list[str]:
        """Name the types of the nodes."""
        return list_types(self.path, "nodes", self._io.filesystem)

    def edge_types(self) -> list[str]:
        """Name the types of the edges."""
        return list_types(self.path, "edges", self._io.filesystem)

    def to_sqlite(self, target: str | os.PathLike[str] | GraphDatabase) -> ExchangeResult:
        """Merge this graph into an SQLite graph, type by type; it may be done again at any time.

        A record there gets all properties of this one; those that only the SQLite graph knows of stay.
        """
        return exchange.to_sqlite(self, target)

    def from_sqlite(
        self,
        source: str | os.PathLike[str] | GraphDatabase,
        match: Mapping[str, Sequence[str]] | None = None,
        edge_match: Mapping[str, Sequence[str]] | None = None,
    ) -> ExchangeResult:
        """Merge an SQLite graph into this one, type by type; it may be done again at any time.

        Ids here are made of the match properties, which SQLite does not tell. Those of types that are here already are
        known; name those of others: `match={"Job": ["url"]}`, and `edge_match` for edges that are told apart by more
        than their nodes.
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
        return union_types(
            {name: self._io.read(self._find_folder(kind, name).path) for name in types}, kind, type_column
        )

    def _merge(
        self, folder: Folder, records: Records, frame: DataFrame, skipped: int, batch_id: str | None
    ) -> GraphMergeResult:
        """Merge records by id: those that are not there as `new`, the others as `found`."""
        with folder.hold_lock(self._lock_timeout) as check_hold, _name_type_in_errors(folder):
            # Another process may have merged it while this one waited, or left it to be published.
            before = folder.find_batch(batch_id)
            if before is not None:
                return before
            folder.check_match(records.match_names)
            schema = folder.read_schema()
            source = RecordRows(frame, folder, schema)
            looks = records.has_differences and schema is not None and bool(source.overwritten_columns)
            widened: set[str] = set()
            if source.missing_columns:
                source.check_values(self._read_known_ids(folder, is_needed=looks))
                check_hold()
                widened = self._add_columns(folder, source)
            rows, laid_over = (
                source.make_rows(self._read_known_ids(folder, is_needed=looks)),
                source.overwritten_columns,
            )
            check_hold()
            folder.write_match_names(records.match_names)
            folder.write_batch(batch_id, rows=records.rows, skipped=skipped, widened=widened)
            done = self._io.merge(
                rows,
                folder.path,
                "upsert" if laid_over else "insert",
                "id",
                update_columns=[*laid_over, "updated_at"] if laid_over else None,
                insert_columns=rows.columns,
                skip_unchanged=laid_over or False,
                batch_id=batch_id,
                lock_timeout=self._lock_timeout,
            )
        return make_merge_result(done, records.rows, skipped, widened)

    def _read_known_ids(self, folder: Folder, *, is_needed: bool) -> DataFrame | None:
        # Spark takes what a Python function gives for as small as what it gets, and would broadcast anything.
        return self._io.read_columns(folder.path, "id").hint("merge") if is_needed else None

    def _add_columns(self, folder: Folder, source: RecordRows) -> set[str]:
        """Add the columns that a dataset lacks, NULL in every row; gives the files that this wrote."""
        old = self._io.read(folder.path)
        added = [F.lit(None).cast(kind).alias(name) for name, kind in source.missing_columns.items()]
        rows = old.select(*(to_column(name) for name in old.columns if name not in TIME_COLUMNS), *added, *TIME_COLUMNS)
        done = self._io.write_dataset(rows, folder.path, "overwrite", lock_timeout=self._lock_timeout)
        return {file.path for file in done.files}


@contextmanager
def _name_type_in_errors(folder: Folder) -> Iterator[None]:
    """Say of a column's error in which type it is."""
    try:
        yield
    except (ColumnTypeError, ColumnValueError) as error:
        message = f"In the {folder.kind} of type {folder.type!r}: {error}"
        raise type(error)(message) from error
