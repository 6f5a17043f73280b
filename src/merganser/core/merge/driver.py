"""The driver. Read it from top to bottom: source, validate, plan, rewrite, append, commit, result.

It decides everything and touches no row; row work is the engine's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa

from merganser.core.columnar.take import empty_table
from merganser.core.commit.batches import find_batch, forget_lost_batches, make_batch
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_merge_record, make_write_record
from merganser.core.commit.journal import Move
from merganser.core.commit.staged_files import (
    NewFile,
    commit_files,
    list_preserved,
    make_journal,
    make_new_file,
    read_footers,
)
from merganser.core.dataset.listing import check_target
from merganser.core.dataset.target import Template
from merganser.core.merge.audit import find_feed, make_audit
from merganser.core.merge.filter_pruning import save_filters
from merganser.core.merge.planner import MergePlan, decide
from merganser.core.merge.prepare import format_null_partition, prepare, prepare_overwrite
from merganser.core.model.engine import Layout
from merganser.core.model.options import Request, make_request
from merganser.core.model.result import MergeResult, WriteResult, compute_merge_stats
from merganser.core.model.schema import make_key_values, to_plain_schema
from merganser.core.model.validation import check_writable
from merganser.core.parquet.encode import derive_schema_options
from merganser.core.rows.append import write_rows
from merganser.core.storage.location import locate
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import CountMismatchError, InvalidArgumentError, TargetPathError
from merganser.progress import ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.commit.journal import Journal
    from merganser.core.merge.audit import Audit
    from merganser.core.merge.dataset_io import OperationContext
    from merganser.core.merge.planner import Decision
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.model.engine import AppendedFile, Engine, RewrittenFile
    from merganser.core.model.strategy import MergeStrategy
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging

WriteMode = Literal["append", "overwrite"]


def merge(engine: Engine, source: Any, context: OperationContext) -> MergeResult:
    """Merge a source into a dataset."""
    started, options = time.monotonic(), context.options
    request = make_request(cast("MergeStrategy", context.strategy), context.keys, options)
    location = _locate_target(context)
    _check_exists(location, request)
    feed = find_feed(options.audit, location, options.filesystem)
    opened = engine.open(source)
    progress = ProgressReporter(options.progress)
    progress.begin("read")
    with open_session(location, options.lock_timeout, started, checked=True) as session:
        forget_lost_batches(location, session.control)
        if options.batch_id is not None:
            before = find_batch(location.store, session.control, options.batch_id)
            if before is not None:
                return before
        with session.staging(progress.on_file_done) as staging:
            prepared = prepare(engine, opened, location, request, staging)
            progress.begin("plan", rows=prepared.source_count)
            decision = decide(engine, prepared)
            with explain_staging_errors(staging):
                progress.begin("rewrite" if decision.jobs else "add", len(decision.jobs))
                staged = _stage(prepared, decision, staging)
                audit = make_audit(prepared, decision, staging, feed)
                result = _make_result(prepared, decision, staged, audit)
                progress.begin("commit", len(staged.files))
                journal = _make_journal(engine.name, prepared, decision, staged, audit, result)
                if journal is not None:
                    commit_files(session, staging, journal, prepared.target)
                    save_filters(decision.pruning, prepared.target, decision.touched_files, staging)
    progress.begin("done")
    return result


def plan(engine: Engine, source: Any, context: OperationContext) -> MergePlan:
    """Decide what a merge would do, and do nothing (P5)."""
    request = make_request(cast("MergeStrategy", context.strategy), context.keys, context.options)
    location = _locate_target(context)
    check_no_pending_commit(location)
    _check_exists(location, request)
    prepared = prepare(engine, engine.open(source), location, request, None)
    decision = decide(engine, prepared)
    before = prepared.target.rows
    return MergePlan(
        path=location.display,
        strategy=request.strategy,
        key_columns=tuple(request.keys),
        partition_columns=tuple(prepared.target.partition_columns),
        source_count=prepared.source_count,
        target_count_before=before,
        target_count_after=before + decision.inserted - decision.deleted,
        inserted=decision.inserted,
        updated=decision.updated,
        deleted=decision.deleted,
        skipped=decision.skipped,
        files=decision.files,
    )


def write_dataset(engine: Engine, source: Any, context: OperationContext, mode: WriteMode) -> WriteResult:
    """Append rows to a dataset, or replace all its rows."""
    if mode not in get_args(WriteMode):
        raise InvalidArgumentError(f"Unknown mode {mode!r}. Choose append or overwrite.")
    started, options = time.monotonic(), context.options
    location = _locate_target(context)
    opened = engine.open(source)
    progress = ProgressReporter(options.progress)
    progress.begin("read")
    with (
        open_session(location, options.lock_timeout, started, checked=True) as session,
        session.staging(progress.on_file_done) as staging,
    ):
        if mode == "append":
            prepared = prepare(engine, opened, location, Request("insert", [], options), staging)
        else:
            prepared = prepare_overwrite(opened, location, options, staging)
        with explain_staging_errors(staging):
            progress.begin("add", rows=prepared.facts.rows)
            appended, removed = _stage_write(prepared, staging, overwrites=mode == "overwrite")
            written = [new.to_metadata(location) for new in appended]
            removed_files = [location.to_display(prepared.target.files[number].rel) for number in removed]
            result = WriteResult(mode, prepared.facts.rows, written, removed_files)
            if appended:
                progress.begin("commit", len(appended))
                journal = _make_write_journal(engine.name, prepared, appended, removed, result)
                commit_files(session, staging, journal, prepared.target)
    progress.begin("done")
    return result


def _stage_write(prepared: PreparedMerge, staging: Staging, *, overwrites: bool) -> tuple[list[NewFile], Sequence[int]]:
    target, facts = prepared.target, prepared.facts
    _, staged = prepared.source.match((), facts).stage((), _make_layout(prepared), staging)
    appended = _make_new_files(prepared, staged, staging)
    removed: Sequence[int] = range(len(target.files)) if overwrites else ()
    if not appended and (removed or not target.files):
        appended = [_stage_schema_file(prepared, staging)]
    elif appended and not removed and not target.rows:
        # New files have the schema now, so those without rows are removed (W3).
        removed = target.unlinked
    _check_row_count(facts.rows, appended)
    return appended, removed


def _make_write_journal(
    engine: str, prepared: PreparedMerge, appended: Sequence[NewFile], removed: Sequence[int], result: WriteResult
) -> Journal:
    target, options = prepared.target, prepared.request.options
    record = make_write_record(engine, options, result, target.rows if result.mode == "append" else None)
    journal = make_journal(target, appended, removed, record, options.retain)
    return replace(journal, record=prepared.partition_record)


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


@dataclass(frozen=True, slots=True)
class _Staged:
    """The files that a merge staged, and the counts that the engine reports."""

    rewritten: Sequence[NewFile]
    appended: Sequence[NewFile]
    replaced: int
    removed: int

    @property
    def files(self) -> list[NewFile]:
        return [*self.rewritten, *self.appended]


def _stage(prepared: PreparedMerge, decision: Decision, staging: Staging) -> _Staged:
    layout = _make_layout(prepared) if decision.appended else None
    rewritten: Sequence[RewrittenFile] = ()
    appended: Sequence[AppendedFile] = ()
    if decision.jobs or layout is not None:
        rewritten, appended = decision.matched.stage(decision.jobs, layout, staging)
    footers = read_footers(staging, [one.staged_path for one in rewritten])
    new_files = [
        NewFile(one.staged_path, prepared.target.files[job.number].rel, footer, job.number)
        for job, one, footer in zip(decision.jobs, rewritten, footers, strict=True)
    ]
    added = _make_new_files(prepared, appended, staging)
    _check_row_count(decision.appended, added)
    return _Staged(new_files, added, sum(one.replaced for one in rewritten), sum(one.removed for one in rewritten))


def _make_new_files(prepared: PreparedMerge, appended: Sequence[AppendedFile], staging: Staging) -> list[NewFile]:
    footers = read_footers(staging, [one.staged_path for one in appended])
    return [
        make_new_file(one.staged_path, prepared.folders[one.partition], footer)
        for one, footer in zip(appended, footers, strict=True)
    ]


def _make_layout(prepared: PreparedMerge) -> Layout:
    options = prepared.request.options
    fields = [field for field in prepared.schema if field.name not in prepared.target.partition_columns]
    schema = pa.schema(fields, prepared.schema.metadata)
    template = prepared.target.template or Template(None, derive_schema_options(None), None)
    check_writable(template.unwritable_column, prepared.target.location.display)
    return Layout(
        schema=to_plain_schema(schema).remove_metadata(),
        columns=prepared.insert_columns,
        key_values=make_key_values(schema) if template.key_values is None else template.key_values,
        writer_options=template.writer_options,
        compression=options.compression,
        max_rows_per_file=options.max_rows_per_file,
        row_group_size=options.row_group_size,
        bloom_filter_columns=template.bloom_filter_columns & {*prepared.request.keys},
    )


def _stage_schema_file(prepared: PreparedMerge, staging: Staging) -> NewFile:
    """Stage a file without rows, which keeps the schema of a dataset without rows."""
    layout = _make_layout(prepared)
    staged = write_rows(empty_table(layout.schema), np.arange(0), layout, staging)
    (footer,) = read_footers(staging, [staged])
    return make_new_file(staged, format_null_partition(prepared.target), footer)


def _check_row_count(expected: int, appended: Sequence[NewFile]) -> None:
    staged = sum(new.footer.metadata.num_rows for new in appended)
    if staged != expected:
        raise CountMismatchError(
            f"Internal error: {staged} rows were staged, {expected} planned. Nothing was published; please report this."
        )


def _make_result(prepared: PreparedMerge, decision: Decision, staged: _Staged, audit: Audit) -> MergeResult:
    """Check the counts against the staged footers (C2), and make the result that the commit will have."""
    target, location, request = prepared.target, prepared.target.location, prepared.request
    touched = decision.touched_files
    kept = [number for number in range(len(target.files)) if number not in touched]
    removed = staged.removed + sum(target.file_rows[number] for number in decision.removed_files)
    after = sum(target.file_rows[number] for number in kept)
    after += sum(one.footer.metadata.num_rows for one in staged.files)
    planned = decision.updated - decision.moved, decision.deleted + decision.moved
    if (staged.replaced, removed) != planned:
        raise CountMismatchError(
            f"Internal error: {planned[0]} rows replaced and {planned[1]} removed were planned, {staged.replaced} and "
            f"{removed} were staged. Nothing was published; please report this."
        )
    stats = compute_merge_stats(
        strategy=request.strategy,
        target_before=target.rows,
        target_after=after,
        inserted_rows=decision.inserted,
        updated_rows=decision.updated,
        deleted_rows=decision.deleted,
        by_operation=prepared.policy.delete_column is not None,
    )
    preserved = list_preserved(target, touched)
    rewritten = [one.to_metadata(location) for one in staged.rewritten]
    inserted = [one.to_metadata(location) for one in staged.appended]
    return MergeResult(
        strategy=request.strategy,
        source_count=prepared.source_count,
        target_count_before=target.rows,
        target_count_after=stats.total,
        inserted=stats.inserted,
        updated=stats.updated,
        deleted=stats.deleted,
        files=[*rewritten, *inserted, *preserved],
        rewritten_files=[file.path for file in rewritten],
        inserted_files=[file.path for file in inserted],
        preserved_files=[file.path for file in preserved],
        removed_files=[location.to_display(target.files[number].rel) for number in decision.removed_files],
        audit=audit.table,
        batch_id=request.options.batch_id,
        skipped=decision.skipped,
        audit_files=audit.display_paths,
    )


def _make_journal(
    engine: str, prepared: PreparedMerge, decision: Decision, staged: _Staged, audit: Audit, result: MergeResult
) -> Journal | None:
    """Make the journal of a merge; None if there is nothing to commit."""
    removed, request = decision.removed_files, prepared.request
    batch = None if result.batch_id is None else make_batch(result.batch_id, result)
    if not (staged.files or removed or batch):
        return None
    record = make_merge_record(engine, request, result)
    journal = make_journal(prepared.target, staged.files, removed, record, request.options.retain)
    partitions = prepared.partition_record if staged.files or removed else None
    feed = [Move(path.rpartition("/")[2], final) for path, final in audit.files]
    return replace(journal, record=partitions, batch=batch, feed=feed)
