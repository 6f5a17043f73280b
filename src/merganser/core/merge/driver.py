"""The driver. Read it from top to bottom: source, fit, stage (see `stage`), commit, result.

It decides everything and touches no row; row work is the engine's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from merganser.core.commit.batches import find_batch, forget_lost_batches
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_write_record
from merganser.core.commit.staged_files import commit_files, make_journal
from merganser.core.dataset.listing import check_target
from merganser.core.dataset.mixed_schemas import find_differences
from merganser.core.merge.audit import find_feed
from merganser.core.merge.evolution import describe_changes
from merganser.core.merge.filter_pruning import save_filters
from merganser.core.merge.merge_plan import MergePlan
from merganser.core.merge.planner import decide, make_schema_jobs
from merganser.core.merge.prepare import derive_clauses, fit_source, prepare, prepare_overwrite
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
    from collections.abc import Sequence

    from merganser.core.commit.journal import Journal
    from merganser.core.commit.staged_files import NewFile
    from merganser.core.merge.operation import OperationContext
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.model.engine import Engine
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
    with open_session(location, options.lock_timeout, started, checked=True) as session:
        forget_lost_batches(location, session.control)
        if options.batch_id is not None:
            before = find_batch(location.store, session.control, options.batch_id)
            if before is not None:
                return before
        with session.staging(progress.on_file_done) as staging:
            fitted = fit_source(engine, opened, location, request, staging)
            source = opened.conform(fitted.spec)
            work = partial(stage_merge, fitted=fitted, staging=staging, feed=feed, progress=progress)
            # Elsewhere nobody would hear of the stages.
            is_watched = options.progress is not None
            staged = work(engine, source) if is_watched else engine.run_merge(work, source, fitted.target.size)
            with explain_staging_errors(staging), record_span("commit", "commit"):
                progress.begin("commit", staged.file_count, staged.result.source_count)
                if staged.journal is not None:
                    commit_files(session, staging, staged.journal, fitted.target)
                    save_filters(staged.pruning, fitted.target, staged.touched_files, staging)
    progress.begin("done")
    return staged.result


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
        files=decision.files,
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
    with (
        open_session(location, options.lock_timeout, started, checked=True) as session,
        session.staging(progress.on_file_done) as staging,
    ):
        if mode == "append":
            prepared = prepare(engine, opened, location, make_write_request(options), staging)
        else:
            prepared = prepare_overwrite(opened, location, options, staging)
        with explain_staging_errors(staging):
            progress.begin("add", rows=prepared.facts.rows)
            staged, removed = _stage_write(prepared, staging, overwrites=mode == "overwrite")
            written = [new.to_metadata(location) for new in staged]
            removed_files = [location.to_display(prepared.target.files[number].rel) for number in removed]
            result = WriteResult(mode, prepared.facts.rows, written, removed_files)
            if staged:
                progress.begin("commit", len(staged))
                journal = _make_write_journal(engine.name, prepared, staged, removed, result)
                commit_files(session, staging, journal, prepared.target)
    progress.begin("done")
    return result


def _stage_write(prepared: PreparedMerge, staging: Staging, *, overwrites: bool) -> tuple[list[NewFile], Sequence[int]]:
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
