"""The rows of a source, read once: checked, counted and staged for the steps of one run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that

from merganser.core.columnar.take import to_array
from merganser.core.storage.location import locate
from merganser.engines.spark.checked_rows import CheckedFiles, CheckedSchema, stage_checked
from merganser.engines.spark.grouping import Grouping, run_groupings
from merganser.engines.spark.jobs import RESULT_SCHEMA, collect_results, tag_errors
from merganser.engines.spark.row_files import RowFiles, write_row_files
from merganser.engines.spark.types import to_arrow_schema, to_transport_schema
from merganser.errors import AccountingError, QualityError
from merganser.pipeline.run_result import RuleCount, SourceOutcome, translate_record_errors
from merganser.pipeline.runner.clean import (
    FAILED,
    FILE,
    INTERNAL_COLUMNS,
    RAW,
    RawSource,
    clean_rows,
    is_clean,
    translate_run_errors,
)
from merganser.pipeline.runner.staged_columns import StagedColumns
from merganser.printable import mask_credentials
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store
    from merganser.engines.spark import SparkDatasetIO
    from merganser.engines.spark.row_files import RowFile
    from merganser.graph.spark.record_plan import RecordPlan
    from merganser.pipeline.config.tables import Edge, Node, Pipeline, Source

# The identity of a row that failed a rule, beside the columns that it has.
_IDENTITY = "identity"
_FAILED_COLUMNS = (FAILED, _IDENTITY, FILE, RAW)


class CheckedSource:
    """A source, and what the run stages of it."""

    def __init__(self, raw: RawSource, source: Source, pipeline: Pipeline) -> None:
        self.source = source
        self._raw = raw
        self.columns = StagedColumns(clean_rows(raw, source, pipeline), source, pipeline)

    def count_rows(self, kept: int) -> int:
        """Count the rows of the source, of which some passed its filters; without a filter, these are all."""
        return self._raw.frame.count() if self.source.where else kept

    def stage(self, folder: Location) -> tuple[CheckedSchema, list[CheckedFiles]]:
        """Write the columns of clean rows, and what the quarantine needs of others, to files of a folder."""
        frame = self.columns.frame
        identity = F.concat_ws("\n", F.lit(self.source.name), FILE, F.to_json(FAILED), RAW)
        frame = frame.withColumn(_IDENTITY, F.when(~is_clean(), F.sha2(identity, 256)))
        frame = frame.withColumn(FILE, F.when(~is_clean(), F.col(FILE)))
        clean = [name for name in frame.columns if name not in {*INTERNAL_COLUMNS, _IDENTITY}]
        schema = to_transport_schema(to_arrow_schema(frame))
        parts = CheckedSchema(
            *(pa.schema([schema.field(name) for name in names]) for names in (clean, _FAILED_COLUMNS))
        )
        # Spark cannot resolve every name that a column may have.
        plain = frame.toDF(*(f"c{at}" for at in range(len(schema))))
        order = [f"c{schema.names.index(name)}" for name in (*clean, *_FAILED_COLUMNS)]
        work = tag_errors(stage_checked, parts, folder.store, folder.root)
        return parts, collect_results(plain.select(*order).mapInArrow(work, RESULT_SCHEMA), "read source")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The staged rows of one source, in a folder of the run."""

    io: SparkDatasetIO
    pipeline: Pipeline
    source: CheckedSource
    folder: str

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.source.name

    @property
    def _location(self) -> Location:
        return locate(f"{self.folder}/{self.name}")

    @property
    def _record_path(self) -> str:
        return locate(self.folder).to_path(f"{self.name}.json")

    def _read_record(self) -> dict[str, Any] | None:
        data = locate(self.folder).store.read_small(self._record_path)
        return None if data is None else load_json(data)

    def read_outcome(self) -> SourceOutcome | None:
        """Read the outcome of an earlier attempt of the run; None if there is none."""
        with translate_record_errors(locate(self.folder).to_display(f"{self.name}.json")):
            record = self._read_record()
            if record is None:
                return None
            outcome = SourceOutcome.from_dict(record["outcome"])
            return replace(outcome, staged=True, started=None, spans=())

    def has_rows(self) -> bool:
        """Tell whether the rows are staged, with the columns that this run needs."""
        location, record = self._location, self._read_record()
        if record is None or record["columns"] != self.source.columns.describe():
            return False
        listed = {name for kind in ("clean", "failed") for name, *_ in record[kind]["files"]}
        is_there = location.store.get_path_type(location.root) is not None
        return is_there and listed <= {*location.store.list_names(location.root)}

    def stage(self, files: int) -> SourceOutcome:
        """Stage the checked rows, and count read, filtered, failed and clean ones."""
        started, source, location = time.monotonic(), self.source.source, self._location
        # The record is removed first: a leftover record would describe missing rows.
        self.remove_all()
        location.store.make_folder(location.root)
        with translate_run_errors(source, "reading it"):
            schema, parts = self.source.stage(location)
            clean = RowFiles(location.store, schema.clean, tuple(file for part in parts for file in part.clean))
            failed = RowFiles(location.store, schema.failed, tuple(file for part in parts for file in part.failed))
            kept = clean.rows + failed.rows
            read = self.source.count_rows(kept)
        if read < kept:
            raise AccountingError(
                f"{source.label}: {read} rows were read, but {kept} were staged. Its files may be changing; run again "
                "when they are complete."
            )
        outcome = SourceOutcome(
            name=source.name,
            paths=tuple(map(mask_credentials, source.path)),
            files=files,
            rows_read=read,
            rows_filtered=read - kept,
            rows_in=kept,
            rows_quarantined=failed.rows,
            rows_clean=clean.rows,
            rules=_count_rules(parts),
            staged=False,
            seconds=time.monotonic() - started,
        )
        record = {
            "outcome": outcome.to_dict(),
            "columns": self.source.columns.describe(),
            "clean": clean.to_dict(),
            "failed": failed.to_dict(),
        }
        location.store.write_small(self._record_path, json.dumps(record).encode())
        return outcome

    def plan_records(self, table: Node | Edge) -> tuple[RowFiles, RecordPlan]:
        """Find the staged rows of a graph table, and how they become its records."""
        return self.open_rows("clean"), self.source.columns.plans[table.unique_name]

    def open_rows(self, kind: str) -> RowFiles:
        """Open the staged rows, `clean` or `failed`."""
        record = self._read_record() or {}
        return RowFiles.from_dict(self._location.store, self._location.root, record[kind])

    def quarantine(self, run_id: str, rows_quarantined: int) -> None:
        """Add the rows that failed a rule to the quarantine, each with the rules, the run and its file.

        A row that the quarantine already has from the same file with the same rules is not added again.
        """
        location, rows = self._location, self.open_rows("failed")
        work = partial(_number_duplicates, location.store, location.root)
        with translate_run_errors(self.source.source, "writing the quarantine"):
            grouping = Grouping(rows.select(rows.schema.names), _IDENTITY, work)
            (found,) = run_groupings(self.io.spark, [grouping], "number rows")
            numbered = RowFiles(location.store, rows.schema, tuple(file for files in found for file in files))
            columns = {
                "id": _IDENTITY,
                "source": pa.scalar(self.name),
                "source_file": FILE,
                "rules": FAILED,
                "row": RAW,
                "run_id": pa.scalar(run_id),
                "quarantined_at": pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC")),
            }
            target = self.pipeline.quarantine
            merged = self.io.merge(numbered.select(columns), target, "insert", "id", "source").source_count
        if merged != rows_quarantined:
            raise AccountingError(
                f"{self.source.source.label}: {rows_quarantined} rows failed a rule, but {merged} were quarantined. "
                "Please report this."
            )

    def remove_rows(self) -> None:
        """Remove the staged rows, but not the outcome."""
        self._location.store.remove_folder(self._location.root)

    def remove_all(self) -> None:
        """Remove the staged rows and the outcome, so that the source is read again."""
        locate(self.folder).store.remove(self._record_path)
        self.remove_rows()


def _count_rules(parts: list[CheckedFiles]) -> tuple[RuleCount, ...]:
    names = sorted({name for part in parts for name in part.rules})
    return tuple(RuleCount(name, sum(part.rules.get(name, 0) for part in parts)) for name in names)


def _number_duplicates(store: Store, folder: str, rows: pa.Table) -> list[RowFile]:
    """Number the rows of each identity, so that each has an id of its own, and write them to files."""
    identity = to_array(rows.column(_IDENTITY))
    code = identity.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(code, kind="stable")
    begins = np.flatnonzero(np.diff(code[order], prepend=-1))
    sizes = np.diff(begins, append=len(order))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(begins, sizes) + 1
    ids = pc.binary_join_element_wise(identity, pa.array(number).cast(pa.string()), "-")
    numbered = rows.set_column(rows.column_names.index(_IDENTITY), _IDENTITY, ids)
    return write_row_files(numbered.to_batches(), store, folder, rows.schema)


def check_quality(pipeline: Pipeline, outcomes: dict[str, SourceOutcome]) -> None:
    """Refuse to merge if more rows failed than `fail_above` allows."""
    for source in pipeline.source:
        outcome = outcomes[source.name]
        failures: list[tuple[Any, int, str]] = [(source, outcome.rows_quarantined, "failed a rule")]
        counts = {rule.name: rule.rows for rule in outcome.rules}
        failures += [(check, counts.get(check.name, 0), "failed it") for check in pipeline.find_checks(source.name)]
        for table, rows, verb in failures:
            if table.fail_above is not None and rows > table.fail_above * outcome.rows_in:
                raise QualityError(
                    f"{table.label}: {rows} of {outcome.rows_in} rows {verb}, more than fail_above = "
                    f"{table.fail_above:g} allows. Nothing was merged; the rows are in {pipeline.quarantine}. Correct "
                    "the feed or the rule, and run again."
                )
