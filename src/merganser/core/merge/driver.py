"""The driver. Read it from top to bottom: source, fit, stage (see `stage`), commit, result.

It decides everything and touches no row; row work is the engine's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from merganser.core.commit.batches import find_batch, forget_lost_batches
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_write_record
from merganser.core.commit.staged_files import commit_files, make_journal, rebase_journal
from merganser.core.dataset.listing import check_target
from merganser.core.dataset.mixed_schemas import find_differences
from merganser.core.merge.attempt import Stager
from merganser.core.merge.audit import find_feed
from merganser.core.merge.evolution import describe_changes
from merganser.core.merge.filter_pruning import save_filters
from merganser.core.merge.merge_plan import MergePlan
from merganser.core.merge.planner import decide, make_schema_jobs
from merganser.core.merge.prepare import check_rows, derive_clauses, prepare, prepare_overwrite
from merganser.core.merge.stage import (
    add_schemas,
    check_row_count,
    make_layout,
    make_new_files,
    make_rewritten_files,
    stage_merge,
    stage_schema_file,
)
from merganser.core.model.engine import FileNumber
from merganser.core.model.options import make_request, make_write_request
from merganser.core.model.result import WriteResult
from merganser.core.sources.source import describe_source
from merganser.core.storage.location import locate
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import InvalidArgumentError, TargetPathError
from merganser.progress import ProgressReporter
from merganser.timeline import record_span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.commit.journal import Journal
    from merganser.core.commit.staged_files import NewFile
    from merganser.core.dataset.target import Target
    from merganser.core.merge.operation import OperationContext
    from merganser.core.merge.prepare import FittedMerge, PreparedMerge
    from merganser.core.merge.stage import StagedMerge
    from merganser.core.model.engine import ConformedSource, Engine
    from merganser.core.model.options import Options, Request
    from merganser.core.model.result import MergeResult
    from merganser.core.model.strategy import MergeStrategy
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging

WriteMode = Literal["append", "overwrite"]


def merge(engine: Engine, source: Any, context: OperationContext) -> MergeResult:
    """Merge a source into a dataset."""
    started, options = time.monotonic(), context.options
    # The callback for progress stays here; the rest of the request may go elsewhere.
    request = _make_request(context, replace(options, progress=None))
    location = _locate_target(context)
    _check_exists(location, request)
    feed = find_feed(options.audit, location, options.filesystem)
    opened, request = derive_clauses(engine.open(describe_source(source, options, location)), request)
    progress = ProgressReporter(options.progress)
    progress.begin("read")
    with open_session(location, options.lock_timeout, started, checked=True, locks_late=True) as session:
        if (before := _find_committed(session, options.batch_id)) is not None:
            return before
        with session.staging(progress.on_file_done) as staging:
            stage = partial(stage_merge, staging=staging, feed=feed, progress=progress)
            # Elsewhere nobody would hear of the stages.
            stage = partial(_stage_here if options.progress is not None else _stage_where_rows_are, engine, stage)
            stager = Stager(session, engine, opened, request, staging, stage)
            early = stager.stage_early()
            with session.lock():
                if (before := _find_committed(session, options.batch_id)) is not None:
                    return before
                attempt = stager.settle(early)
                staged, target = attempt.staged, attempt.fitted.target
                with explain_staging_errors(staging), record_span("commit", "commit"):
                    progress.begin("commit", staged.file_count, staged.result.source_count)
                    if staged.journal is not None:
                        commit_files(session, staging, staged.journal, target, is_settled=attempt.is_settled)
                        save_filters(staged.pruning, target, staged.touched_files, staging)
    progress.begin("done")
    return staged.result


def _stage_here(
    engine: Engine, stage: Callable[..., StagedMerge], source: ConformedSource, fitted: FittedMerge
) -> StagedMerge:
    return stage(engine, source, fitted=fitted)


def _stage_where_rows_are(
    engine: Engine, stage: Callable[..., StagedMerge], source: ConformedSource, fitted: FittedMerge
) -> StagedMerge:
    return engine.run_merge(partial(stage, fitted=fitted), source, fitted.target.size)


def _find_committed(session: Session, batch_id: str | None) -> MergeResult | None:
    """Return the result of a committed batch, once it is published."""
    store, control = session.location.store, session.control
    if batch_id is None or find_batch(store, control, batch_id) is None:
        return None
    with session.lock():
        forget_lost_batches(session.location, control)
        return find_batch(store, control, batch_id)


def plan(engine: Engine, source: Any, context: OperationContext) -> MergePlan:
    """Decide what a merge would do, and do nothing (P5)."""
    request = _make_request(context, context.options)
    location = _locate_target(context)
    check_no_pending_commit(location)
    _check_exists(location, request)
    opened, request = derive_clauses(engine.open(describe_source(source, context.options, location)), request)
    prepared = prepare(engine, opened, location, request, None)
    decision = decide(engine, prepared)
    target, before = prepared.target, prepared.target.rows
    schema_before = target.schema_before if prepared.facts.rows else None
    return MergePlan(
        path=location.display,
        strategy=request.strategy,
        clauses=tuple(request.clause_texts),
        key_columns=tuple(request.keys),
        partition_columns=tuple(target.partition_columns),
        source_count=prepared.source_count,
        target_count_before=before,
        target_count_after=before + decision.inserted - decision.deleted,
        inserted=decision.inserted,
        updated=decision.updated,
        deleted=decision.deleted,
        skipped=decision.skipped,
        files=decision.plan_files(),
        schema_changes=tuple(describe_changes(schema_before, target.schema)) if schema_before and target.schema else (),
        schema_differences=tuple(find_differences(target)),
    )


def write_dataset(engine: Engine, source: Any, context: OperationContext, mode: WriteMode) -> WriteResult:
    """Append rows to a dataset, or replace all its rows."""
    if mode not in get_args(WriteMode):
        raise InvalidArgumentError(f"Unknown mode {mode!r}. Choose append or overwrite.")
    if mode == "overwrite" and context.options.schema_mode != "strict":
        message = "schema_mode does not go with mode='overwrite', which takes the schema of the source. Leave it out."
        raise InvalidArgumentError(message)
    started, options = time.monotonic(), context.options
    location = _locate_target(context)
    opened = engine.open(describe_source(source, options, location if mode == "append" else None))
    progress = ProgressReporter(options.progress)
    progress.begin("read")
    appends = mode == "append"
    with (
        open_session(location, options.lock_timeout, started, checked=True, locks_late=appends) as session,
        session.staging(progress.on_file_done) as staging,
    ):
        stage = partial(_stage_write, engine.name, staging, progress)
        stager = Stager(session, engine, opened, make_write_request(options), staging, partial(_stage_append, stage))
        early = stager.stage_early() if appends else None
        with session.lock():
            if appends:
                attempt = stager.settle(early)
                staged, target, is_settled = attempt.staged, attempt.fitted.target, attempt.is_settled
            else:
                prepared = prepare_overwrite(opened, location, options, staging)
                staged, target, is_settled = stage(prepared, overwrites=True), prepared.target, False
            if staged.journal is not None:
                with explain_staging_errors(staging):
                    progress.begin("commit", staged.file_count)
                    commit_files(session, staging, staged.journal, target, is_settled=is_settled)
    progress.begin("done")
    return staged.result


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWrite:
    """A plain write that only has to be committed; `journal` is None if it changes nothing."""

    result: WriteResult
    journal: Journal | None
    file_count: int
    touched_files: frozenset[str]
    matched_files: frozenset[str] = frozenset()

    def rebase(self, before: Target, after: Target) -> StagedWrite:
        """Give counts as they are after other commits."""
        return self if self.journal is None else replace(self, journal=rebase_journal(self.journal, before, after))


def _stage_append(
    stage: Callable[[PreparedMerge], StagedWrite], source: ConformedSource, fitted: FittedMerge
) -> StagedWrite:
    return stage(check_rows(fitted, source))


def _stage_write(
    engine: str, staging: Staging, progress: ProgressReporter, prepared: PreparedMerge, *, overwrites: bool = False
) -> StagedWrite:
    location, facts = prepared.target.location, prepared.facts
    with explain_staging_errors(staging):
        progress.begin("add", rows=facts.rows)
        staged, removed = _stage_files(prepared, staging, overwrites=overwrites)
        written = [new.to_metadata(location) for new in staged]
        removed_files = [location.to_display(prepared.target.files[number].rel) for number in removed]
        result = WriteResult("overwrite" if overwrites else "append", facts.rows, written, removed_files)
        journal = _make_write_journal(engine, prepared, staged, removed, result) if staged else None
        touched = {*removed, *(new.replaces for new in staged if new.replaces is not None)}
        return StagedWrite(
            result=result,
            journal=journal,
            file_count=len(staged),
            touched_files=prepared.target.list_paths(touched),
        )


def _stage_files(prepared: PreparedMerge, staging: Staging, *, overwrites: bool) -> tuple[list[NewFile], Sequence[int]]:
    target, facts = prepared.target, prepared.facts
    removed: Sequence[int] = range(len(target.files)) if overwrites else ()
    if facts.rows and not target.rows:
        # New files have the schema now, so those without rows are removed (W3).
        removed = removed or target.unlinked
    jobs = [] if overwrites else make_schema_jobs(prepared, {*map(FileNumber, removed)})
    done, staged = prepared.source.match((), facts).stage(jobs, make_layout(prepared), staging)
    appended = make_new_files(prepared, staged, staging)
    if not appended and (removed or not target.files):
        appended = [stage_schema_file(prepared, staging)]
    check_row_count(facts.rows, appended)
    return [*make_rewritten_files(prepared, jobs, done, staging), *appended], removed


def _make_write_journal(
    engine: str, prepared: PreparedMerge, staged: Sequence[NewFile], removed: Sequence[int], result: WriteResult
) -> Journal:
    target, options = prepared.target, prepared.request.options
    record = make_write_record(engine, options, result, target.rows if result.mode == "append" else None)
    journal = make_journal(target, staged, removed, add_schemas(record, prepared), options.retain)
    return replace(journal, record=prepared.partition_record)


def _make_request(context: OperationContext, options: Options) -> Request:
    return make_request(cast("MergeStrategy", context.strategy), context.keys, options, context.clauses)


def _locate_target(context: OperationContext) -> Location:
    options = context.options
    location = locate(context.path, options.filesystem, ignore_table_format=options.ignore_table_format)
    check_target(location, lists_later=True)
    return location


def _check_exists(location: Location, request: Request) -> None:
    """Refuse to update or delete rows of a path that does not exist: it may be misspelled (T4)."""
    is_missing = not request.rule.inserts and location.store.get_path_type(location.root) is None
    if is_missing and not has_pending_commit(location):
        raise TargetPathError(
            f"There is no dataset at {location.display}, so strategy {request.strategy!r} could change no row. Check "
            "the path, or load rows first with insert or upsert."
        )
