"""The driver. Read it from top to bottom: source, validate, plan, rewrite, append, commit, result.

It decides everything and moves no row; rows are the engine's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from merganser.core.columnar.take import empty_table
from merganser.core.commit.batches import find_batch, forget_lost_batches, make_batch
from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_merge_record, make_write_record
from merganser.core.commit.journal import Journal, Move
from merganser.core.commit.staged_files import (
    NewFile,
    commit_files,
    list_preserved_files,
    list_touched_files,
    make_moves,
    make_new_file,
    make_removals,
    read_staged_footers,
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
    import os
    from collections.abc import Sequence

    from merganser.core.commit.commit import Session
    from merganser.core.merge.audit import Audit
    from merganser.core.merge.planner import Decision
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.model.engine import AppendedFile, Engine, GivenT, MatchesT, RewrittenFile, SourceT
    from merganser.core.model.options import Options
    from merganser.core.model.strategy import MergeStrategy
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging

WriteMode = Literal["append", "overwrite"]


def merge(
    engine: Engine[GivenT, SourceT, MatchesT],
    source: Any,
    path: str | os.PathLike[str],
    strategy: MergeStrategy,
    key_columns: Sequence[str] | str,
    filesystem: Any,
    options: Options,
) -> MergeResult:
    """Merge a source into a dataset."""
    started = time.monotonic()
    request = make_request(strategy, key_columns, options)
    location = _locate_target(path, filesystem, options)
    _check_exists(location, request)
    feed = find_feed(options.audit, location, filesystem)
    given = engine.open(source)
    teller = ProgressReporter(options.progress)
    teller.begin("read")
    with open_session(location, options.lock_timeout, started, checked=True) as session:
        forget_lost_batches(location, session.control)
        if options.batch_id is not None:
            before = find_batch(location.store, session.control, options.batch_id)
            if before is not None:
                return before
        with session.staging(teller.on_file_done) as staging:
            prepared = prepare(engine, given, location, request, staging)
            teller.begin("plan", rows=prepared.source_count)
            decision = decide(engine, prepared, request, staging)
            with explain_staging_errors(staging):
                teller.begin("rewrite" if decision.jobs else "add", len(decision.jobs))
                staged = _stage(engine, prepared, decision, staging, options, request.keys)
                audit = make_audit(engine, prepared, decision, request, staging, feed)
                result = _make_result(prepared, decision, staged, request, audit)
                teller.begin("commit", len(staged.rewritten) + len(staged.appended))
                _commit(session, staging, prepared, decision, staged, result, request, engine.name, audit)
    teller.begin("done")
    return result


def plan(
    engine: Engine[GivenT, SourceT, MatchesT],
    source: Any,
    path: str | os.PathLike[str],
    strategy: MergeStrategy,
    key_columns: Sequence[str] | str,
    filesystem: Any,
    options: Options,
) -> MergePlan:
    """Decide what a merge would do, and do nothing (P5)."""
    request = make_request(strategy, key_columns, options)
    location = _locate_target(path, filesystem, options)
    check_no_pending_commit(location)
    _check_exists(location, request)
    prepared = prepare(engine, engine.open(source), location, request, None)
    decision = decide(engine, prepared, request, None)
    before = prepared.target.rows
    return MergePlan(
        location.display,
        strategy,
        tuple(request.keys),
        tuple(prepared.target.partition_columns),
        prepared.source_count,
        before,
        before + decision.inserted - decision.deleted,
        decision.inserted,
        decision.updated,
        decision.deleted,
        decision.skipped,
        decision.files,
    )


def write_dataset(
    engine: Engine[GivenT, SourceT, MatchesT],
    source: Any,
    path: str | os.PathLike[str],
    mode: WriteMode,
    filesystem: Any,
    options: Options,
) -> WriteResult:
    """Append rows to a dataset, or put them in the place of all its rows."""
    if mode not in get_args(WriteMode):
        message = f"Unknown mode {mode!r}. Choose append or overwrite."
        raise InvalidArgumentError(message)
    started = time.monotonic()
    location = _locate_target(path, filesystem, options)
    given = engine.open(source)
    teller = ProgressReporter(options.progress)
    teller.begin("read")
    with (
        open_session(location, options.lock_timeout, started, checked=True) as session,
        session.staging(teller.on_file_done) as staging,
    ):
        if mode == "append":
            prepared = prepare(engine, given, location, Request("insert", [], options), staging)
            removed: Sequence[int] = ()
        else:
            prepared = prepare_overwrite(engine, given, location, options, staging)
            removed = range(len(prepared.target.files))
        with explain_staging_errors(staging):
            teller.begin("add", rows=prepared.facts.rows)
            layout = _make_layout(prepared, options)
            handle, partitions = prepared.handle, prepared.facts.partitions
            _, staged = engine.stage(handle, None, (), layout, partitions, staging, prepared.policy)
            appended = _make_new_files(prepared, staged, staging)
            if not appended and (removed or not prepared.target.files):
                appended = [_stage_schema_file(prepared, staging, options)]
            elif appended and not removed and not prepared.target.rows:
                # New files keep the schema now, so that those without rows go (W3).
                removed = prepared.target.unlinked
            _check_row_count(prepared.facts.rows, appended)
            files = [new.to_metadata(location) for new in appended]
            gone = [location.to_display(prepared.target.files[number].rel) for number in removed]
            result = WriteResult(mode, prepared.facts.rows, files, gone)
            if appended:
                before = prepared.target.rows if mode == "append" else None
                history = make_write_record(
                    engine.name, options, result, before, list_touched_files(prepared.target, appended, removed)
                )
                moves, removals = make_moves(prepared.target, appended), make_removals(prepared.target, removed)
                journal = Journal(moves, removals, prepared.partition_record, history=history, retain=options.retain)
                teller.begin("commit", len(appended))
                commit_files(session, staging, journal, prepared.target)
    teller.begin("done")
    return result


def _locate_target(path: str | os.PathLike[str], filesystem: Any, options: Options) -> Location:
    location = locate(path, filesystem, ignore_table_format=options.ignore_table_format)
    check_target(location, lists_later=True)
    return location


def _check_exists(location: Location, request: Request) -> None:
    """Refuse to update or delete rows of a path that does not exist: it may be misspelled (T4)."""
    if (
        not request.rule.inserts
        and location.store.get_path_type(location.root) is None
        and not has_pending_commit(location)
    ):
        message = (
            f"There is no dataset at {location.display}, so strategy {request.strategy!r} could change no row. Check "
            "the path, or load rows first with insert or upsert."
        )
        raise TargetPathError(message)


@dataclass(frozen=True, slots=True)
class _Staged:
    """Everything a merge staged, and what the engine says it did."""

    rewritten: Sequence[NewFile]
    appended: Sequence[NewFile]
    replaced: int
    removed: int


def _stage(
    engine: Engine[GivenT, SourceT, MatchesT],
    prepared: PreparedMerge[SourceT],
    decision: Decision[MatchesT],
    staging: Staging,
    options: Options,
    keys: Sequence[str],
) -> _Staged:
    target = prepared.target
    layout = _make_layout(prepared, options, keys) if decision.appended else None
    rewritten: Sequence[RewrittenFile] = ()
    appended: Sequence[AppendedFile] = ()
    if decision.jobs or layout is not None:
        handle, partitions = prepared.handle, prepared.facts.partitions
        rewritten, appended = engine.stage(
            handle, decision.matches, decision.jobs, layout, partitions, staging, prepared.policy
        )
    footers = read_staged_footers(staging, [one.staged_path for one in rewritten])
    new_files = [
        NewFile(one.staged_path, target.files[job.number].rel, footer, job.number)
        for job, one, footer in zip(decision.jobs, rewritten, footers, strict=True)
    ]
    added = _make_new_files(prepared, appended, staging)
    _check_row_count(decision.appended, added)
    replaced, removed = (sum(getattr(one, name) for one in rewritten) for name in ("replaced", "removed"))
    return _Staged(new_files, added, replaced, removed)


def _make_new_files(
    prepared: PreparedMerge[SourceT], appended: Sequence[AppendedFile], staging: Staging
) -> list[NewFile]:
    footers = read_staged_footers(staging, [one.staged_path for one in appended])
    return [
        make_new_file(one.staged_path, prepared.folders[one.partition], footer)
        for one, footer in zip(appended, footers, strict=True)
    ]


def _make_layout(prepared: PreparedMerge[SourceT], options: Options, keys: Sequence[str] = ()) -> Layout:
    columns = [field for field in prepared.schema if field.name not in prepared.target.partition_columns]
    schema = pa.schema(columns, prepared.schema.metadata)
    template = prepared.target.template or Template(None, derive_schema_options(None), None)
    check_writable(template.unwritable_column, prepared.target.location.display)
    return Layout(
        to_plain_schema(schema).remove_metadata(),
        prepared.insert_columns,
        make_key_values(schema) if template.key_values is None else template.key_values,
        template.writer_options,
        options.compression,
        options.max_rows_per_file,
        options.row_group_size,
        template.bloom_filter_columns & {*keys},
    )


def _stage_schema_file(prepared: PreparedMerge[SourceT], staging: Staging, options: Options) -> NewFile:
    """Stage a file of zero rows, which keeps the schema of a dataset that has none."""
    layout = _make_layout(prepared, options)
    staged = write_rows(empty_table(layout.schema), np.arange(0), layout, staging)
    (footer,) = read_staged_footers(staging, [staged])
    return make_new_file(staged, format_null_partition(prepared.target), footer)


def _check_row_count(expected: int, appended: Sequence[NewFile]) -> None:
    staged = sum(new.footer.metadata.num_rows for new in appended)
    if staged != expected:
        message = f"{staged} rows are staged where {expected} were to be. Nothing was published; please report this."
        raise CountMismatchError(message)


def _make_result(
    prepared: PreparedMerge[SourceT], decision: Decision[MatchesT], staged: _Staged, request: Request, audit: Audit
) -> MergeResult:
    """Check the counts against the staged footers (C2), and say what the merge will have done."""
    target, location = prepared.target, prepared.target.location
    gone = set(decision.removed_files) | {job.number for job in decision.jobs}
    kept = [number for number in range(len(target.files)) if number not in gone]
    removed = staged.removed + sum(target.file_rows[number] for number in decision.removed_files)
    new = [*staged.rewritten, *staged.appended]
    after = sum(target.file_rows[number] for number in kept) + sum(one.footer.metadata.num_rows for one in new)
    planned = decision.updated - decision.moved, decision.deleted + decision.moved
    if (staged.replaced, removed) != planned:
        message = (
            f"The plan has {planned[0]} rows replaced and {planned[1]} removed, the staged files {staged.replaced} and "
            f"{removed}. Nothing was published; please report this."
        )
        raise CountMismatchError(message)
    stats = compute_merge_stats(
        strategy=request.strategy,
        target_before=target.rows,
        target_after=after,
        inserted_rows=decision.inserted,
        updated_rows=decision.updated,
        deleted_rows=decision.deleted,
        by_operation=prepared.policy.delete_column is not None,
    )
    preserved = list_preserved_files(target, gone)
    rewritten = [one.to_metadata(location) for one in staged.rewritten]
    inserted = [one.to_metadata(location) for one in staged.appended]
    return MergeResult(
        request.strategy,
        prepared.source_count,
        target.rows,
        stats.total,
        stats.inserted,
        stats.updated,
        stats.deleted,
        [*rewritten, *inserted, *preserved],
        [file.path for file in rewritten],
        [file.path for file in inserted],
        [file.path for file in preserved],
        [location.to_display(target.files[number].rel) for number in decision.removed_files],
        audit.table,
        request.options.batch_id,
        skipped=decision.skipped,
        audit_files=audit.display_paths,
    )


def _commit(
    session: Session,
    staging: Staging,
    prepared: PreparedMerge[SourceT],
    decision: Decision[MatchesT],
    staged: _Staged,
    result: MergeResult,
    request: Request,
    engine: str,
    audit: Audit,
) -> None:
    target = prepared.target
    moves = make_moves(target, [*staged.rewritten, *staged.appended])
    removals = make_removals(target, decision.removed_files)
    batch = None if result.batch_id is None else make_batch(result.batch_id, result)
    if moves or removals or batch:
        touched = list_touched_files(target, [*staged.rewritten, *staged.appended], decision.removed_files)
        journal = Journal(
            moves,
            removals,
            record=prepared.partition_record if moves or removals else None,
            batch=batch,
            feed=[Move(staged.rpartition("/")[2], target) for staged, target in audit.files],
            history=make_merge_record(engine, request, result, touched),
            retain=request.options.retain,
        )
        commit_files(session, staging, journal, target)
        save_filters(
            decision.pruning, target, [*decision.removed_files, *(job.number for job in decision.jobs)], staging
        )
