"""The steps of a run after its sources: each merges clean rows into one target, in a commit of its own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that

from merganser.core.commit.batches import find_committed_batch
from merganser.core.model.options import Options, make_request
from merganser.errors import AccountingError
from merganser.graph import Endpoint
from merganser.graph.sqlite.sql import quote_spark_identifier
from merganser.pipeline.config.field_types import to_expressions
from merganser.pipeline.config.tables import Edge
from merganser.pipeline.run_result import StepOutcome
from merganser.pipeline.runner.clean import list_match_expressions, translate_analysis_errors, translate_run_errors
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from merganser.engines.spark import SparkDatasetIO
    from merganser.graph.spark import ParquetGraph, SqliteGraph
    from merganser.pipeline.config.tables import Dataset, Node
    from merganser.pipeline.run_result import SourceOutcome, StepKind


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
    def is_committed(self, run_id: str) -> bool:
        """Tell whether an earlier attempt of the run committed the step."""

    @abstractmethod
    def merge(self, run_id: str, rows: DataFrame, source: SourceOutcome) -> StepOutcome:
        """Merge the clean rows, unless an earlier attempt of the run committed them."""

    def make_batch_id(self, run_id: str) -> str:
        """Derive the batch id of the step."""
        return f"{run_id}/{self.name}"

    def make_outcome(self, source: SourceOutcome, replayed: bool, seconds: float, **counts: int) -> StepOutcome:  # noqa: FBT001 - a fact among others
        """Account for the rows of the source in this step."""
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
            seconds=seconds,
            **{**dict.fromkeys(_COUNTS, 0), **counts},
        )

    def check_rows(self, merged: int, source: SourceOutcome) -> None:
        """Fail if the merge had another number of rows than the source has clean ones."""
        if merged != source.rows_clean:
            raise AccountingError(
                f"{self.table.label}: the merge into {self.target} had {merged} rows, but source {source.name!r} has "
                f"{source.rows_clean} clean ones. Please report this."
            )


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

    def check(self, rows: DataFrame) -> None:
        with translate_analysis_errors(self.table, "columns"):
            columns = self._select_columns(rows).columns
        asked = {"key_columns": self.table.key_columns, **{key: self.table.merge.get(key) for key in _COLUMN_OPTIONS}}
        for key, names in asked.items():
            for name in [names] if isinstance(names, str) else names if isinstance(names, list | tuple) else ():
                if name not in columns:
                    message = f"there is no column {name!r}. The columns are: {', '.join(columns)}."
                    raise self.table.make_error(key, message)

    def is_committed(self, run_id: str) -> bool:
        return find_committed_batch(self.table.path, self.make_batch_id(run_id)) is not None

    def merge(self, run_id: str, rows: DataFrame, source: SourceOutcome) -> StepOutcome:
        started = time.monotonic()
        table, frame = self.table, self._select_columns(rows)
        keys, batch_id = list(table.key_columns), self.make_batch_id(run_id)
        with translate_run_errors(table, f"the merge into {table.path}"):
            result = self.io.merge(frame, table.path, table.strategy, keys, batch_id=batch_id, **table.merge)
        self.check_rows(result.source_count, source)
        request = make_request(table.strategy, keys, Options(**table.merge))
        with translate_run_errors(table, "counting its keys"):
            distinct = source.rows_clean
            if request.deduplicates:
                distinct = frame.select(*(F.col(quote_spark_identifier(key)) for key in keys)).distinct().count()
        # A target with duplicate keys has two rows updated by one, so this may be more than the distinct keys.
        merged = result.inserted + result.updated + result.skipped
        is_complete = request.rule.replaces and request.rule.inserts and not table.merge.get("operation_column")
        if is_complete and merged < distinct:
            raise AccountingError(
                f"{table.label}: only {merged} of {distinct} keys were inserted, updated or skipped. "
                "Please report this."
            )
        return self.make_outcome(
            source,
            result.replayed,
            time.monotonic() - started,
            rows_deduplicated=source.rows_clean - distinct,
            inserted=result.inserted,
            updated=result.updated,
            deleted=result.deleted,
            skipped=result.skipped,
            files_written=len(result.inserted_files),
            files_rewritten=len(result.rewritten_files),
            files_preserved=len(result.preserved_files),
            files_removed=len(result.removed_files),
        )

    def _select_columns(self, rows: DataFrame) -> DataFrame:
        if self.table.columns is None:
            return rows
        return rows.select(*(F.expr(text).alias(name) for name, text in to_expressions(self.table.columns).items()))


@dataclass(frozen=True)
class GraphStep(Step):
    """A merge of nodes or edges into a graph."""

    table: Node | Edge
    target: str
    storage_format: Literal["parquet", "sqlite"]
    # Opened on first use.
    open_graph: Callable[[], ParquetGraph | SqliteGraph]

    @property
    def kind(self) -> Literal["nodes", "edges"]:  # type: ignore[override]
        return "edges" if isinstance(self.table, Edge) else "nodes"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.table.unique_name}, {self.storage_format}"

    def check(self, rows: DataFrame) -> None:
        table = self.table
        for key in ("base", "on_create", "on_match"):
            for name, text in to_expressions(getattr(table, key)).items():
                with translate_analysis_errors(table, f"{key}.{name}"):
                    rows.select(F.expr(text)).schema  # noqa: B018 - analyses it
        for name, text in list_match_expressions(table):
            with translate_analysis_errors(table, f"match.{name}"):
                rows.select(F.expr(text)).schema  # noqa: B018 - as above
        with translate_analysis_errors(table, "order_by"):
            rows.select(*(F.col(quote_spark_identifier(name)) for name in table.order_by)).schema  # noqa: B018 - as above

    def is_committed(self, run_id: str) -> bool:
        return self.open_graph().committed(self.kind, self.table.type, self.make_batch_id(run_id))

    def merge(self, run_id: str, rows: DataFrame, source: SourceOutcome) -> StepOutcome:
        started = time.monotonic()
        table = self.table
        columns = _ExpressionColumns()
        given: dict[str, Any] = {
            key: columns.add_expressions(to_expressions(getattr(table, key)))
            for key in ("match", "base", "on_create", "on_match")
        }
        ordered = columns.add_expressions({name: quote_spark_identifier(name) for name in table.order_by})
        given |= {"order_by": list(ordered.values()), "skip_null_keys": table.skip_null_keys}
        given["batch_id"] = self.make_batch_id(run_id)
        with translate_run_errors(table, f"the merge into {self.target}"):
            if isinstance(table, Edge):
                given["missing"] = table.missing
                for key, endpoint in (("from_node", table.from_node), ("to_node", table.to_node)):
                    given[key] = Endpoint(endpoint.type, columns.add_expressions(to_expressions(endpoint.match)))
                result = self.open_graph().merge_edges(columns.evaluate(rows), table.type, **given)
            else:
                result = self.open_graph().merge_nodes(columns.evaluate(rows), table.type, **given)
        self.check_rows(result.rows, source)
        return self.make_outcome(
            source,
            result.replayed,
            time.monotonic() - started,
            rows_skipped_null=result.skipped,
            inserted=result.created,
            updated=result.changed,
            skipped=result.matched - result.changed,
            files_written=result.files_written,
            files_preserved=result.files_preserved,
        )


class _ExpressionColumns:
    """Evaluates expressions in columns of their own, so that the graph gets no other columns of the source."""

    def __init__(self) -> None:
        self._columns: dict[str, str] = {}

    def add_expressions(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Map each name to the column of its expression."""
        return {name: self._columns.setdefault(text, f"c{len(self._columns)}") for name, text in texts.items()}

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """Evaluate the expressions."""
        return rows.select(*(F.expr(text).alias(column) for text, column in self._columns.items()))
