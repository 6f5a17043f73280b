"""The driver of a pipeline. Read it from top to bottom: check, stage sources, quarantine, merge, account, report.

Sources are staged before anything is merged, so that all steps see the same rows. Each step is a commit of its own,
with a batch id derived from the run id: a failed run that is run again completes the remaining steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyspark.errors import AnalysisException, ParseException

from merganser.core.storage.location import locate
from merganser.core.storage.lock import hold_lock
from merganser.engines.spark import SparkDatasetIO
from merganser.engines.spark.input_splits import is_in_memory
from merganser.engines.spark.jobs import warm_up
from merganser.engines.spark.versions import check_executors
from merganser.errors import AccountingError, InvalidArgumentError, MerganserError, PipelineError, QualityError
from merganser.graph.spark import ParquetGraph, SqliteGraph
from merganser.graph.spark.record_set import fold_row_files
from merganser.pipeline.run_result import RunOutcome, StepOutcome, TaskOutcome, translate_record_errors
from merganser.pipeline.runner.clean import INTERNAL_COLUMNS, clean_rows, list_files, read_raw, translate_run_errors
from merganser.pipeline.runner.staged_rows import CheckedSource, StagedRows, check_quality
from merganser.pipeline.runner.steps import DatasetStep, GraphStep, StepRows, are_nodes_merged
from merganser.printable import mask_credentials, to_printable
from merganser.safe_json import load_json
from merganser.timeline import collect_spans, record_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from merganser.graph.spark.record_set import FileRecords
    from merganser.pipeline.config.tables import Edge, Node, Pipeline
    from merganser.pipeline.run_result import SourceOutcome
    from merganser.pipeline.runner.clean import RawSource
    from merganser.pipeline.runner.steps import Step

MessageCallback: TypeAlias = Callable[[str], None]
ResultT = TypeVar("ResultT")
# Seconds to wait for another process with the same run.
_RUN_LOCK_TIMEOUT = 5.0
# Steps that run or wait at the same time: while one waits for a disk or for Spark, others use the cores.
_MAX_STEPS_AT_ONCE = 8
_INVALID_CHARACTERS = re.compile(r"[^\w.=-]+")
_RUN_ID = re.compile(r"\w[\w.=-]*")


def run(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    parameters: Mapping[str, str] | None = None,
    run_id: str | None = None,
    say: MessageCallback = lambda _: None,
) -> RunOutcome:
    """Run a pipeline on Spark; a run that was interrupted is completed, and a complete one is not repeated.

    Args:
        pipeline: The configuration, from `load` or built from its classes.
        spark: Spark session; by default the active one.
        parameters: The parameters that `load` got, for the run id and the report.
        run_id: Name of this run; by default it is derived from the configuration, the parameters and the input files.
        say: Called with a line of text for each step of progress.

    >>> outcome = run(load("jobs.toml", {"date": "2026-01-05"}))  # doctest: +SKIP
    >>> [(step.name, step.inserted) for step in outcome.steps]  # doctest: +SKIP
    [('dataset jobs', 97000)]
    """
    started_at = datetime.now(UTC)
    with ExitStack() as held, collect_spans() as timeline:
        io = SparkDatasetIO(spark)
        if is_in_memory(locate(pipeline.state)):
            raise pipeline.make_error("state", "it is in this process's memory, where no executor can reach it.")
        _start_executors(io.spark)
        with record_span("driver", "inspect source files"):
            files = {source.name: list_files(io.spark, source) for source in pipeline.source}
            raws = {source.name: read_raw(io.spark, source) for source in pipeline.source}
        named = run_id or make_run_id(pipeline, parameters or {}, files)
        work = _Run(
            pipeline=pipeline,
            io=io,
            run_id=named,
            folder=f"{pipeline.state.rstrip('/')}/runs/{_check_run_id(named)}",
            say=lambda text: say(to_printable(text)),
            began=timeline.origin,
        )
        with record_span("driver", "check expressions"):
            steps = _make_steps(pipeline, io, held)
            checked = _check_steps(steps, raws, pipeline)
        say(f"run {named}: {len(raws)} source(s), {len(steps)} step(s)")
        check_executors(io.spark)
        held.enter_context(work.hold_lock())
        done = work.read_outcomes(steps)
        remaining = [step for step in steps if step.name not in done]
        with record_span("steps", "sources"):
            sources = work.stage_sources(remaining, checked, {name: len(found) for name, found in files.items()})
        done |= work.run_steps(remaining, sources)
        times = timeline.summarise()
        outcome = RunOutcome(
            pipeline=pipeline.name,
            run_id=named,
            parameters={name: mask_credentials(value) for name, value in (parameters or {}).items()},
            started_at=started_at,
            seconds=times["seconds"],
            spark_version=io.spark.version,
            master=mask_credentials(io.spark.conf.get("spark.master", None) or "Spark Connect"),
            quarantine=None if pipeline.quarantine is None else mask_credentials(pipeline.quarantine),
            sources=tuple(sources.values()),
            steps=tuple(done[step.name] for step in steps),
            spans=times["spans"],
            tasks=tuple(sorted(work.tasks, key=lambda task: task.started)),
        )
        wrong = outcome.unbalanced()
        if wrong:
            raise AccountingError(f"{' '.join(wrong)} The merges are committed; please report this.")
        work.remove_rows()
    return outcome


def _start_executors(spark: SparkSession) -> None:
    """Warm up the executors in the background; what fails here fails again where it is reported."""

    def warm() -> None:
        with suppress(Exception):
            warm_up(spark)

    Thread(target=warm, name="warm-up", daemon=True).start()


def _check_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        message = f"The run id {run_id!r} is used as a folder name. Use letters and digits, then also '_-=.'."
        raise InvalidArgumentError(message)
    return run_id


def make_run_id(
    pipeline: Pipeline, parameters: Mapping[str, str], files: Mapping[str, list[tuple[str, int, int]]]
) -> str:
    """Derive the id of a run from the configuration, the parameters and the files."""
    facts = [asdict(pipeline), sorted(parameters.items()), sorted(files.items())]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    # Dates and the like identify a run for people, paths do not.
    readable = [pipeline.name, *(value for value in parameters.values() if "/" not in value)]
    return "-".join([*(_INVALID_CHARACTERS.sub("_", part) for part in readable), digest[:12]])


def _make_steps(pipeline: Pipeline, io: SparkDatasetIO, held: ExitStack) -> list[Step]:
    """List the steps in order: datasets as configured, then the graph, nodes before edges."""
    steps: list[Step] = [DatasetStep(dataset, io) for dataset in pipeline.dataset]
    graph = pipeline.graph
    if graph is not None and graph.path is not None:
        parquet = cache(partial(ParquetGraph, graph.path, io.spark))
        steps += [GraphStep(table, graph.path, "parquet", parquet) for table in pipeline.graph_tables]
    if graph is not None and graph.sqlite is not None:
        sqlite = cache(partial(_open_sqlite, graph.sqlite, held))
        steps += [GraphStep(table, graph.sqlite, "sqlite", sqlite) for table in pipeline.graph_tables]
    return steps


def _open_sqlite(path: str, held: ExitStack) -> SqliteGraph:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    return held.enter_context(SqliteGraph(path))


def _check_steps(steps: list[Step], raws: Mapping[str, RawSource], pipeline: Pipeline) -> dict[str, CheckedSource]:
    """Let Spark analyse every expression, before it reads a row."""
    checked = {source.name: CheckedSource(raws[source.name], source, pipeline) for source in pipeline.source}
    for step in steps:
        step.check_columns(checked[step.table.source].columns)
    try:
        for source in checked.values():
            _ = source.columns.frame
    except (AnalysisException, ParseException):
        # One by one, to name the expression.
        rows = {source.name: clean_rows(raws[source.name], source, pipeline) for source in pipeline.source}
        for step in steps:
            step.check(rows[step.table.source].drop(*INTERNAL_COLUMNS))
        raise
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run and its folder."""

    pipeline: Pipeline
    io: SparkDatasetIO
    run_id: str
    folder: str
    say: MessageCallback
    # By the monotonic clock.
    began: float
    staged_sources: dict[str, StagedRows] = field(default_factory=dict)
    tasks: list[TaskOutcome] = field(default_factory=list)

    @property
    def batch_prefix(self) -> str:
        """The prefix of the steps' batch ids: runs of two pipelines may have the same run id."""
        return f"{self.pipeline.name}/{self.run_id}"

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Exclude other processes with the same run."""
        location = locate(self.folder)
        location.store.make_folder(location.to_path("sources"))
        with hold_lock(location.store, location.root, f"The run {self.run_id} in {self.folder}", _RUN_LOCK_TIMEOUT):
            for folder in (location.root, location.to_path("sources")):
                location.store.remove_unfinished(folder)
            yield

    def stage_sources(
        self, steps: list[Step], checked: Mapping[str, CheckedSource], files: Mapping[str, int]
    ) -> dict[str, SourceOutcome]:
        """Stage every source that a remaining step needs; too many rows that failed a rule end the run."""
        needed = {step.table.source for step in steps}
        outcomes = {}
        for name, source in checked.items():
            staged = StagedRows(self.io, self.pipeline, source, f"{self.folder}/sources")
            self.staged_sources[name] = staged
            outcomes[name] = self._stage_source(staged, files[name], is_needed=name in needed)
        try:
            check_quality(self.pipeline, outcomes)
        except QualityError:
            self.quarantine_all(outcomes.values())
            # The same run must read the feed and the rules again after they are corrected.
            for staged in self.staged_sources.values():
                staged.remove_all()
            raise
        return outcomes

    def quarantine_all(self, sources: Iterable[SourceOutcome]) -> None:
        """Quarantine the rows that failed a rule, unless an earlier attempt has completed the run."""
        for source in sources:
            staged = self.staged_sources[source.name]
            if source.rows_quarantined and staged.has_rows():
                staged.quarantine(self.run_id, source.rows_quarantined)

    def _stage_source(self, staged: StagedRows, files: int, *, is_needed: bool) -> SourceOutcome:
        with collect_spans(self.began) as timeline:
            outcome = staged.read_outcome()
            if outcome is None or (is_needed and not staged.has_rows()):
                self.say(f"source {staged.name}: reading {files} file(s)")
                outcome = staged.stage(files)
            self.say(
                f"source {staged.name}: {outcome.rows_read:,} rows read, {outcome.rows_clean:,} clean, "
                f"{outcome.rows_quarantined:,} quarantined{' (staged by an earlier attempt)' if outcome.staged else ''}"
            )
            return outcome if outcome.staged else replace(outcome, **timeline.summarise())

    def run_steps(self, steps: list[Step], sources: Mapping[str, SourceOutcome]) -> dict[str, StepOutcome]:
        """Run the steps that no earlier attempt has committed, side by side where none waits for another.

        If one fails, those that wait for it are not run; all others are, and then its error is raised.
        """
        done: dict[str, Future[StepOutcome]] = {}
        steps = [_find_merged_nodes(step, steps) if isinstance(step, GraphStep) else step for step in steps]
        with record_span("steps", "steps"), _open_pool() as pool:
            tables = [step.table for step in steps if isinstance(step, GraphStep)]
            folded = pool.submit(self._run_task, "records of the graph", partial(self.fold_records, tables))
            for number, step in enumerate(steps):
                # A step waits for earlier ones only, so the pool has begun with those when its turn comes.
                before = [done[other.name] for other in steps[:number] if step.waits_for(other)]
                done[step.name] = pool.submit(self.run_step, step, folded, sources[step.table.source], before)
            kept = pool.submit(self._run_task, "quarantine", partial(self.quarantine_all, sources.values()))
        self._raise_failures({"quarantine": kept, "records of the graph": folded, **done})
        return {name: future.result() for name, future in done.items()}

    def _run_task(self, name: str, work: Callable[[], ResultT]) -> ResultT:
        """Do work of the run beside its steps, and record its times, if there was anything to do."""
        with collect_spans(self.began) as timeline:
            result = work()
            if timeline.spans:
                self.tasks.append(TaskOutcome(name=name, **timeline.summarise()))
        return result

    def _raise_failures(self, running: Mapping[str, Future[Any]]) -> None:
        failed = {name: error for name, future in running.items() if (error := future.exception()) is not None}
        for name, error in failed.items():
            self.say(f"{name}: not merged. {error}")
        for error in failed.values():
            if not isinstance(error, _NotRunError):
                raise error

    def fold_records(self, tables: list[Node | Edge]) -> dict[str, FileRecords | MerganserError]:
        """Fold the staged rows into the records of graph tables, all at once, for the steps of every format."""
        if self.pipeline.graph is None or not tables:
            return {}
        location = locate(f"{self.folder}/records")
        location.store.remove_folder(location.root)
        location.store.make_folder(location.root)
        distinct = {table.unique_name: self.staged_sources[table.source].plan_records(table) for table in tables}
        with translate_run_errors(self.pipeline.graph, "preparing its records"):
            return dict(zip(distinct, fold_row_files(self.io.spark, list(distinct.values()), location), strict=True))

    def remove_rows(self) -> None:
        """Remove the rows and records that are staged."""
        for staged in self.staged_sources.values():
            staged.remove_rows()
        location = locate(f"{self.folder}/records")
        location.store.remove_folder(location.root)

    def run_step(
        self,
        step: Step,
        folded: Future[dict[str, FileRecords | MerganserError]],
        source: SourceOutcome,
        before: Sequence[Future[StepOutcome]],
    ) -> StepOutcome:
        """Run a step after what it waits for, and record its outcome."""
        with collect_spans(self.began) as timeline:
            if isinstance(step, GraphStep):
                _wait_for([folded], "records")
            _wait_for(before, "earlier steps")
            self.say(f"{step.name}: merging {source.rows_clean:,} rows into {step.target}")
            staged = self.staged_sources[source.name]
            records = folded.result() if isinstance(step, GraphStep) else {}
            rows = StepRows(staged.open_rows("clean"), staged.source.columns, records)
            merged = step.merge(self.batch_prefix, rows, source)
            outcome = replace(merged, **timeline.summarise())
        location = locate(self.folder)
        location.store.write_small(location.to_path(_make_record_name(step)), json.dumps(outcome.to_dict()).encode())
        self._say_outcome(outcome)
        return outcome

    def read_outcomes(self, steps: list[Step]) -> dict[str, StepOutcome]:
        """Read the outcomes of the steps that an earlier attempt has committed."""
        found = {step.name: self._read_record(step) for step in steps}
        done = {name: outcome for name, outcome in found.items() if outcome is not None}
        for outcome in done.values():
            self._say_outcome(outcome)
        return done

    def _say_outcome(self, outcome: StepOutcome) -> None:
        done = "done before" if outcome.state == "replayed" else f"{outcome.seconds:.1f} s"
        self.say(f"{outcome.name}: {outcome.inserted:,} inserted, {outcome.updated:,} updated, {done}")

    def _read_record(self, step: Step) -> StepOutcome | None:
        """Read the outcome of a step in an earlier attempt, if its target still has that commit."""
        location = locate(self.folder)
        data = location.store.read_small(location.to_path(_make_record_name(step)))
        if data is None or not step.is_committed(self.batch_prefix):
            return None
        with translate_record_errors(location.to_display(_make_record_name(step))):
            return replace(StepOutcome.from_dict(load_json(data)), state="replayed", started=None, spans=())


def _make_record_name(step: Step) -> str:
    # Any string may be a type, but not any string a file name.
    return f"step-{hashlib.sha256(step.name.encode()).hexdigest()[:16]}.json"


@contextmanager
def _open_pool() -> Iterator[ThreadPoolExecutor]:
    """Wait for all steps at the end; if this process is interrupted, for those that have begun, and run no other."""
    pool = ThreadPoolExecutor(_MAX_STEPS_AT_ONCE, "step")
    try:
        yield pool
        pool.shutdown(wait=True)
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise


def _find_merged_nodes(step: GraphStep, steps: Sequence[Step]) -> GraphStep:
    """Tell a step whether this attempt merges the nodes of its edges: an earlier one may have had other rows."""
    tables = [one.table for one in steps if isinstance(one, GraphStep) and one.storage_format == step.storage_format]
    return replace(step, are_nodes_merged=are_nodes_merged(step.table, tables))


class _NotRunError(PipelineError):
    """A step was not run, because one that it waits for failed."""


def _wait_for(before: Sequence[Future[Any]], name: str) -> None:
    if not all(future.done() for future in before):
        with record_span("waiting", name):
            wait(before)
    if any(future.exception() is not None for future in before):
        raise _NotRunError("A step that it waits for has failed.")
