"""The rows of a source, staged for the steps of one run and counted."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that

from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import AccountingError, QualityError
from merganser.pipeline.run_result import RuleCount, SourceOutcome, translate_record_errors
from merganser.pipeline.runner.clean import (
    FAILED,
    FILE,
    INTERNAL_COLUMNS,
    RAW,
    clean_rows,
    is_clean,
    translate_run_errors,
)
from merganser.printable import mask_credentials
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from merganser.engines.spark import SparkDatasetIO
    from merganser.pipeline.config.tables import Pipeline, Source
    from merganser.pipeline.runner.clean import RawSource


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The staged rows of one source, in a folder of the run."""

    io: SparkDatasetIO
    pipeline: Pipeline
    source: Source
    folder: str

    @property
    def path(self) -> str:
        """The dataset of staged rows."""
        return f"{self.folder}/{self.source.name}"

    @property
    def _record_path(self) -> str:
        return locate(self.folder).to_path(f"{self.source.name}.json")

    def read_outcome(self) -> SourceOutcome | None:
        """Read the outcome of an earlier attempt of the run; None if there is none."""
        location = locate(self.folder)
        data = location.store.read_small(self._record_path)
        with translate_record_errors(location.to_display(f"{self.source.name}.json")):
            return None if data is None else replace(SourceOutcome.from_dict(load_json(data)), staged=True)

    def has_rows(self) -> bool:
        """Tell whether the staged rows still exist."""
        location = locate(self.path)
        return location.store.get_path_type(location.root) is not None

    def stage(self, raw: RawSource, files: int) -> SourceOutcome:
        """Stage the cleaned rows, and count read, filtered, failed and clean ones."""
        started = time.monotonic()
        source = self.source
        rows = clean_rows(raw, source, self.pipeline)
        with translate_run_errors(source, "reading it"):
            written = self.io.write_dataset(rows, self.path, mode="overwrite")
            read = raw.frame.count()
            # Filtered rows are not staged, so they are counted by reading again.
            filtered = read - rows.agg(F.count(FAILED)).collect()[0][0] if source.where else 0
            staged = self.io.read(self.path).select(FAILED)
            failed = staged.where(~is_clean()).count()
            found = staged.select(F.explode(FAILED).alias("name")).groupBy("name").count().collect()
        if read != filtered + written.row_count:
            raise AccountingError(
                f"{source.label}: {read} rows were read and {filtered} of them filtered out, but {written.row_count} "
                "were staged. Its files may be changing; run again when they are complete."
            )
        outcome = SourceOutcome(
            name=source.name,
            paths=tuple(map(mask_credentials, source.path)),
            files=files,
            rows_read=read,
            rows_filtered=filtered,
            rows_in=written.row_count,
            rows_quarantined=failed,
            rows_clean=written.row_count - failed,
            rules=tuple(sorted((RuleCount(name, count) for name, count in found), key=lambda rule: rule.name)),
            staged=False,
            seconds=time.monotonic() - started,
        )
        locate(self.folder).store.write_small(self._record_path, json.dumps(asdict(outcome)).encode())
        return outcome

    def read_clean(self) -> DataFrame:
        """Read the clean rows."""
        return self.io.read(self.path).where(is_clean()).drop(*INTERNAL_COLUMNS)

    def quarantine(self, run_id: str, rows_quarantined: int) -> None:
        """Add the rows that failed a rule to the quarantine, each with the rules, the run and its file.

        A row that the quarantine already has from the same file with the same rules is not added again.
        """
        duplicates = Window.partitionBy("id").orderBy(F.lit(0))
        identity = F.concat_ws("\n", F.lit(self.source.name), FILE, F.to_json(FAILED), RAW)
        rows = (
            self.io.read(self.path)
            .where(~is_clean())
            .select(
                F.sha2(identity, 256).alias("id"),
                F.lit(self.source.name).alias("source"),
                F.col(FILE).alias("source_file"),
                F.col(FAILED).alias("rules"),
                F.col(RAW).alias("row"),
                F.lit(run_id).alias("run_id"),
                F.current_timestamp().alias("quarantined_at"),
            )
            .withColumn("id", F.concat_ws("-", "id", F.row_number().over(duplicates)))
        )
        with translate_run_errors(self.source, "writing the quarantine"):
            merged = self.io.merge(rows, self.pipeline.quarantine, "insert", "id", "source").source_count
        if merged != rows_quarantined:
            raise AccountingError(
                f"{self.source.label}: {rows_quarantined} rows failed a rule, but {merged} were quarantined. "
                "Please report this."
            )

    def remove_rows(self) -> None:
        """Remove the staged rows, but not the outcome."""
        location = locate(self.path)
        location.store.remove_folder(location.root)
        location.store.remove_folder(choose_control_folder(location))

    def remove_all(self) -> None:
        """Remove the staged rows and the outcome, so that the source is read again."""
        locate(self.folder).store.remove(self._record_path)
        self.remove_rows()


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
