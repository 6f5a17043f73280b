"""The steps of a run after its sources: each merges clean rows into one target, in a commit of its own."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that

from merganser.core.commit.batches import find_committed_batch
from merganser.core.merge.operation import OperationContext
from merganser.core.model.clauses import select_clauses
from merganser.core.storage.location import locate
from merganser.errors import AccountingError, ConfigurationError, MerganserError
from merganser.graph import Endpoint
from merganser.graph.spark.endpoints import EdgeRecords
from merganser.graph.sqlite.sql import quote_spark_identifier
from merganser.pipeline.config.field_types import to_expressions
from merganser.pipeline.config.tables import Edge
from merganser.pipeline.config.when import label_clause
from merganser.pipeline.run_result import StepOutcome
from merganser.pipeline.runner.clean import list_match_expressions, translate_analysis_errors, translate_run_errors
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.model.options import Request
    from merganser.engines.spark import SparkDatasetIO
    from merganser.engines.spark.row_files import RowFiles
    from merganser.graph.spark import ParquetGraph, SqliteGraph
    from merganser.graph.spark.record_set import FileRecords
    from merganser.pipeline.config.tables import Dataset, Node
    from merganser.pipeline.run_result import SourceOutcome, StepKind
    from merganser.pipeline.runner.staged_columns import StagedColumns


@dataclass(frozen=True, slots=True)
class StepRows:
    """The staged rows of a source, and the records of graph tables, by their unique names."""

    clean: RowFiles
    columns: StagedColumns
    records: Mapping[str, FileRecords | MerganserError]

    def find_records(self, table: Node | Edge) -> FileRecords:
        """Find the records of a table, or raise why there are none."""
        found = self.records[table.unique_name]
        if isinstance(found, MerganserError):
            raise found
        return found


class Step(ABC):
    """One merge of a run."""

    table: Dataset | Node | Edge
    kind: StepKind
    name: str
    target: str

    @abstractmethod
    def check(self, rows: DataFrame) -> None:
        """Refuse expressions that Spark cannot evaluate for the source's rows."""

    @abstractmethod
    def list_expressions(self) -> dict[str, str]:
        """List the expressions of the table, by their keys."""

    def check_columns(self, columns: StagedColumns) -> None:  # noqa: ARG002 - datasets need it
        """Refuse names of columns that do not exist, and expressions that would see other rows than clean ones."""
        for key, text in self.list_expressions().items():
            if _WINDOW.search(text):
                raise self.table.make_error(
                    key, "a window function would see rows that failed a rule, too. Use derive of the source instead."
                )

    @abstractmethod
    def is_committed(self, run_id: str) -> bool:
        """Tell whether an earlier attempt of the run committed the step."""

    @abstractmethod
    def merge(self, run_id: str, rows: StepRows, source: SourceOutcome) -> StepOutcome:
        """Merge the clean rows, unless an earlier attempt of the run committed them."""

    @property
    @abstractmethod
    def dataset(self) -> str:
        """What the step writes to; steps that write to the same run one after another."""

    def waits_for(self, other: Step) -> bool:
        """Whether an earlier step must end before this one begins: edges need their nodes."""
        is_edge = self.kind == "edges" and other.kind == "nodes" and self.target == other.target
        return is_edge or self.dataset == other.dataset

    def make_batch_id(self, run_id: str) -> str:
        """Derive the batch id of the step."""
        return f"{run_id}/{self.name}"

    def make_outcome(self, source: SourceOutcome, replayed: bool, **counts: int) -> StepOutcome:  # noqa: FBT001 - a fact among others
        """Account for the rows of the source in this step; the run adds its times."""
        merged = source.rows_clean - counts.get("rows_deduplicated", 0) - counts.get("rows_skipped_null", 0)
        return StepOutcome(
            name=self.name,
            kind=self.kind,
            source=source.name,
            target=mask_credentials(self.target),
            state="replayed" if replayed else "done",
            rows_in=source.rows_in,
            rows_quarantined=source.rows_quarantined,
            rows_merged=merged,
            seconds=0.0,
            started=None,
            spans=(),
            **{**dict.fromkeys(_COUNTS, 0), **counts},
        )

    def check_rows(self, merged: int, source: SourceOutcome) -> None:
        """Fail if the merge had another number of rows than the source has clean ones."""
        if merged != source.rows_clean:
            raise AccountingError(
                f"{self.table.label}: the merge into {self.target} had {merged} rows, but source {source.name!r} has "
                f"{source.rows_clean} clean ones. Please report this."
            )


_WINDOW = re.compile(r"\bover\s*\(", re.IGNORECASE)
_COUNTS = (
    *("rows_skipped_null", "rows_deduplicated", "inserted", "updated", "deleted", "skipped"),
    *("files_written", "files_rewritten", "files_preserved", "files_removed"),
)
# The options of a merge that name columns.
_COLUMN_OPTIONS = (
    *("partition_columns", "partition_by", "dedup_order_by", "update_columns", "insert_columns"),
    *("sequence_column", "operation_column", "skip_unchanged"),
)


@dataclass(frozen=True)
class DatasetStep(Step):
    """A merge into a Parquet dataset."""

    table: Dataset
    io: SparkDatasetIO
    kind = "dataset"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"dataset {self.table.name}"

    @property
    def target(self) -> str:  # type: ignore[override]
        return self.table.path

    @property
    def dataset(self) -> str:
        return locate(self.table.path).root

    def list_expressions(self) -> dict[str, str]:
        return {f"columns.{name}": text for name, text in to_expressions(self.table.columns or ()).items()}

    def check_columns(self, columns: StagedColumns) -> None:
        super().check_columns(columns)
        known = columns.datasets[self.table.name]
        asked = {"key_columns": self.table.key_columns, **{key: self.table.merge.get(key) for key in _COLUMN_OPTIONS}}
        for key, names in asked.items():
            for name in [names] if isinstance(names, str) else names if isinstance(names, list | tuple) else ():
                if name not in known:
                    message = f"there is no column {name!r}. The columns are: {', '.join(known)}."
                    raise self.table.make_error(key, message)
        for number, clause in enumerate(self.table.when, 1):
            try:
                clause.check_expressions(list(known))
            except ConfigurationError as error:
                raise ConfigurationError(error.message, label_clause(self.table.name, number), error.key) from error

    def check(self, rows: DataFrame) -> None:
        with translate_analysis_errors(self.table, "columns"):
            rows.select(*map(F.expr, to_expressions(self.table.columns or ()).values())).schema  # noqa: B018 - analyses it

    def is_committed(self, run_id: str) -> bool:
        return find_committed_batch(self.table.path, self.make_batch_id(run_id)) is not None

    def merge(self, run_id: str, rows: StepRows, source: SourceOutcome) -> StepOutcome:
        table, request = self.table, self.table.make_request()
        options = self.io.make_options("merge", {**table.merge, "batch_id": self.make_batch_id(run_id)})
        context = OperationContext("merge", table.path, options, table.strategy, request.keys, table.clauses)
        with translate_run_errors(table, f"the merge into {table.path}"):
            result = self.io.run_merge(rows.clean.select(rows.columns.datasets[table.name]), context)
        self.check_rows(result.source_count, source)
        distinct = result.source_count - result.deduplicated
        # A target with duplicate keys has two rows updated by one, so this may be more than the distinct keys.
        merged = result.inserted + result.updated + result.skipped + (result.deleted if table.when else 0)
        if _counts_every_key(request) and merged < distinct:
            raise AccountingError(
                f"{table.label}: only {merged} of {distinct} keys were inserted, updated, deleted or skipped. "
                "Please report this."
            )
        return self.make_outcome(
            source,
            result.replayed,
            rows_deduplicated=result.deduplicated,
            inserted=result.inserted,
            updated=result.updated,
            deleted=result.deleted,
            skipped=result.skipped,
            files_written=len(result.inserted_files),
            files_rewritten=len(result.rewritten_files),
            files_preserved=len(result.preserved_files),
            files_removed=len(result.removed_files),
        )


def _counts_every_key(request: Request) -> bool:
    """Whether each key of the source is counted: new rows as inserted, and matched ones by what happened to them."""
    if request.has_strategy:
        return request.rule.replaces and request.rule.inserts and request.options.operation_column is None
    inserts = select_clauses(request.clauses, "not_matched")
    inserts_all = bool(inserts) and inserts[-1].where is None and all(one.action == "insert" for one in inserts)
    return inserts_all and request.rule.touches


@dataclass(frozen=True)
class GraphStep(Step):
    """A merge of nodes or edges into a graph."""

    table: Node | Edge
    target: str
    storage_format: Literal["parquet", "sqlite"]
    # Opened on first use.
    open_graph: Callable[[], ParquetGraph | SqliteGraph]
    # Whether other steps merge every node that these edges connect, so that all of them exist.
    are_nodes_merged: bool = False

    @property
    def kind(self) -> Literal["nodes", "edges"]:  # type: ignore[override]
        return "edges" if isinstance(self.table, Edge) else "nodes"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.table.unique_name}, {self.storage_format}"

    def list_expressions(self) -> dict[str, str]:
        roles = ("base", "on_create", "on_match")
        listed = {
            f"{role}.{name}": text for role in roles for name, text in to_expressions(getattr(self.table, role)).items()
        }
        return listed | {f"match.{name}": text for name, text in list_match_expressions(self.table)}

    @property
    def dataset(self) -> str:
        # SQLite has one writer.
        return self.target if self.storage_format == "sqlite" else f"{self.target} {self.kind} {self.table.type}"

    def check(self, rows: DataFrame) -> None:
        table = self.table
        for key, text in self.list_expressions().items():
            with translate_analysis_errors(table, key):
                rows.select(F.expr(text)).schema  # noqa: B018 - analyses it
        with translate_analysis_errors(table, "order_by"):
            rows.select(*(F.col(quote_spark_identifier(name)) for name in table.order_by)).schema  # noqa: B018 - as above

    def is_committed(self, run_id: str) -> bool:
        return self.open_graph().committed(self.kind, self.table.type, self.make_batch_id(run_id))

    def merge(self, run_id: str, rows: StepRows, source: SourceOutcome) -> StepOutcome:
        table, edges = self.table, None
        if isinstance(table, Edge):
            start, end = (Endpoint(one.type, to_expressions(one.match)) for one in (table.from_node, table.to_node))
            edges = EdgeRecords(start, end, table.on_missing_node, checks=not self.are_nodes_merged)
        with translate_run_errors(table, f"the merge into {self.target}"):
            records = rows.find_records(table)
            result = self.open_graph()._merge_records(  # noqa: SLF001 - one fold serves both graphs
                self.kind, table.type, records, self.make_batch_id(run_id), edges, table.missing_options
            )
        self.check_rows(result.rows, source)
        return self.make_outcome(
            source,
            result.replayed,
            rows_skipped_null=result.skipped,
            inserted=result.created,
            updated=result.changed,
            skipped=result.matched - result.changed,
            files_written=result.files_written,
            files_preserved=result.files_preserved,
        )


def are_nodes_merged(edge: Node | Edge, tables: Sequence[Node | Edge]) -> bool:
    """Whether some tables merge both nodes of every row of an edge table: by the same keys, from the same source."""
    if not isinstance(edge, Edge):
        return False
    merged = [(table.type, table.source, table.match) for table in tables if not isinstance(table, Edge)]
    return all((end.type, edge.source, end.match) in merged for end in (edge.from_node, edge.to_node))
