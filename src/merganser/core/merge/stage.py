"""Stage a merge: check its rows, decide, stage files, and make what the commit publishes.

All of it runs where the rows of the source are: in this process, or in one task on an executor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.take import empty_table
from merganser.core.commit.batches import make_batch
from merganser.core.commit.history import make_merge_record, record_schemas
from merganser.core.commit.journal import Move
from merganser.core.commit.staged_files import (
    NewFile,
    list_preserved,
    make_journal,
    make_new_file,
    read_footers,
    rebase_journal,
)
from merganser.core.dataset.target import Template
from merganser.core.merge.audit import make_audit
from merganser.core.merge.filter_pruning import rebase_filters
from merganser.core.merge.planner import decide
from merganser.core.merge.prepare import check_rows, format_null_partition
from merganser.core.model.engine import Layout
from merganser.core.model.result import MergeResult, check_counts
from merganser.core.model.schema import make_key_values, to_plain_schema
from merganser.core.model.validation import check_writable
from merganser.core.parquet.encode import derive_schema_options
from merganser.core.rows.append import write_rows
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import CountMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.commit.history import HistoryRecord
    from merganser.core.commit.journal import Journal
    from merganser.core.dataset.target import Target
    from merganser.core.merge.audit import Audit
    from merganser.core.merge.filter_pruning import FilterPruning
    from merganser.core.merge.planner import Decision
    from merganser.core.merge.prepare import FittedMerge, PreparedMerge
    from merganser.core.model.engine import (
        AppendedFile,
        ConformedSource,
        Engine,
        RewriteJob,
        RewrittenFile,
    )
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging
    from merganser.progress import ProgressReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMerge:
    """A merge that only has to be committed; `journal` is None if it changes nothing.

    `touched_files` are replaced or removed, `matched_files` have rows with a source key, by path in the dataset.
    """

    result: MergeResult
    journal: Journal | None
    file_count: int
    touched_files: frozenset[str]
    matched_files: frozenset[str]
    pruning: FilterPruning

    def rebase(self, before: Target, after: Target) -> StagedMerge:
        """Give counts and lists of files as they are after other commits, which changed none of these files."""
        added, journal = after.rows - before.rows, self.journal
        preserved = list_preserved(after, after.find_numbers(self.touched_files))
        changed = [file for file in self.result.files if file.operation != "preserved"]
        result = replace(
            self.result,
            target_count_before=self.result.target_count_before + added,
            target_count_after=self.result.target_count_after + added,
            files=[*changed, *preserved],
            preserved_files=[file.path for file in preserved],
        )
        if journal is not None:
            journal = replace(rebase_journal(journal, before, after), batch=_make_batch(result))
        return replace(self, result=result, journal=journal, pruning=rebase_filters(self.pruning, before, after))


def stage_merge(
    engine: Engine,
    source: ConformedSource,
    *,
    fitted: FittedMerge,
    staging: Staging,
    feed: Location | None,
    progress: ProgressReporter,
) -> StagedMerge:
    """Check the rows of a source, decide what changes, and stage it."""
    prepared = check_rows(fitted, source)
    progress.begin("plan", rows=prepared.source_count)
    decision = decide(engine, prepared)
    with explain_staging_errors(staging):
        progress.begin("rewrite" if decision.jobs else "add", len(decision.jobs))
        staged = _stage_files(prepared, decision, staging)
        audit = make_audit(prepared, decision, staging, feed)
        result = replace(_make_result(prepared, decision, staged, audit), engine=engine.name)
        return StagedMerge(
            result=result,
            journal=_make_journal(engine.name, prepared, decision, staged, audit, result),
            file_count=len(staged.files),
            touched_files=prepared.target.list_paths(decision.touched_files),
            matched_files=prepared.target.list_paths(decision.matched.counts.file[decision.matched.counts.rows > 0]),
            pruning=decision.pruning,
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


def _stage_files(prepared: PreparedMerge, decision: Decision, staging: Staging) -> _Staged:
    layout = make_layout(prepared) if decision.appended else None
    rewritten: Sequence[RewrittenFile] = ()
    appended: Sequence[AppendedFile] = ()
    if decision.jobs or layout is not None:
        rewritten, appended = decision.matched.stage(decision.jobs, layout, staging)
    new_files = make_rewritten_files(prepared, decision.jobs, rewritten, staging)
    added = make_new_files(prepared, appended, staging)
    check_row_count(decision.appended, added)
    return _Staged(new_files, added, sum(one.replaced for one in rewritten), sum(one.removed for one in rewritten))


def make_rewritten_files(
    prepared: PreparedMerge, jobs: Sequence[RewriteJob], rewritten: Sequence[RewrittenFile], staging: Staging
) -> list[NewFile]:
    """Give each staged replacement the path of its file."""
    footers = read_footers(staging, [one.staged_path for one in rewritten])
    return [
        NewFile(one.staged_path, prepared.target.files[job.number].rel, footer, job.number)
        for job, one, footer in zip(jobs, rewritten, footers, strict=True)
    ]


def make_new_files(prepared: PreparedMerge, appended: Sequence[AppendedFile], staging: Staging) -> list[NewFile]:
    """Give each staged file of new rows a path in the folder of its partition."""
    footers = read_footers(staging, [one.staged_path for one in appended])
    return [
        make_new_file(one.staged_path, prepared.folders[one.partition], footer)
        for one, footer in zip(appended, footers, strict=True)
    ]


def make_layout(prepared: PreparedMerge) -> Layout:
    """Decide how new files are written: like those of the target, or as the options say."""
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


def stage_schema_file(prepared: PreparedMerge, staging: Staging) -> NewFile:
    """Stage a file without rows, which keeps the schema of a dataset without rows."""
    layout = make_layout(prepared)
    staged = write_rows(empty_table(layout.schema), np.arange(0), layout, staging)
    (footer,) = read_footers(staging, [staged])
    return make_new_file(staged, format_null_partition(prepared.target), footer)


def check_row_count(expected: int, appended: Sequence[NewFile]) -> None:
    """Fail if another number of rows was staged than planned."""
    staged = sum(new.footer.metadata.num_rows for new in appended)
    if staged != expected:
        raise CountMismatchError(
            f"Internal error: {staged} rows were staged, {expected} planned. Nothing was published; please report this."
        )


def add_schemas(record: HistoryRecord, prepared: PreparedMerge) -> HistoryRecord:
    """Record the schema before and after, if files get another one."""
    target, before = prepared.target, prepared.target.schema_before
    if before is None or target.schema is None or not prepared.facts.rows:
        return record
    return record_schemas(record, before, target.schema)


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
    counts = {
        "inserted": decision.inserted,
        "updated": decision.updated,
        "deleted": decision.deleted,
        "total": after,
    }
    stats = check_counts(counts, target.rows, request.actions, request.strategy)
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
        deduplicated=0 if request.applies_in_order else prepared.source_count - prepared.facts.rows,
        audit_files=audit.display_paths,
        clauses=request.clause_texts,
    )


def _make_journal(
    engine: str, prepared: PreparedMerge, decision: Decision, staged: _Staged, audit: Audit, result: MergeResult
) -> Journal | None:
    """Make the journal of a merge; None if there is nothing to commit."""
    removed, request = decision.removed_files, prepared.request
    batch = _make_batch(result)
    if not (staged.files or removed or batch):
        return None
    record = add_schemas(make_merge_record(engine, request, result), prepared)
    journal = make_journal(prepared.target, staged.files, removed, record, request.options.retain)
    partitions = prepared.partition_record if staged.files or removed else None
    feed = [Move(path.rpartition("/")[2], final) for path, final in audit.files]
    return replace(journal, record=partitions, batch=batch, feed=feed)


def _make_batch(result: MergeResult) -> dict[str, Any] | None:
    return None if result.batch_id is None else make_batch(result.batch_id, result)
