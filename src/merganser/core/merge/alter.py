"""Alter: change the schema of every file of a dataset in one commit (E2).

Column chunks that stay are copied byte for byte. Added columns are one small chunk per row group, dropped ones are left
out, renamed ones change the footer only, and widened ones are encoded anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from merganser.core.commit.commit import check_no_pending_commit, has_pending_commit, open_session
from merganser.core.commit.history import make_maintenance_record, record_schemas
from merganser.core.commit.staged_files import NewFile, commit_files, make_journal, make_new_file, read_footers
from merganser.core.dataset.listing import check_target, has_files
from merganser.core.dataset.mixed_schemas import check_names_differ, check_one_schema, find_differences
from merganser.core.dataset.snapshot import load_existing, make_no_files_error
from merganser.core.merge.evolution import describe_changes
from merganser.core.model.file_shape import make_shape
from merganser.core.model.result import AlteredFile, AlterResult
from merganser.core.parquet.footer import read_footer
from merganser.core.rows.rewrite import rewrite_file
from merganser.core.storage.location import locate
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import CountMismatchError
from merganser.progress import ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.dataset.file_statistics import Summaries
    from merganser.core.dataset.target import Target
    from merganser.core.merge.operation import OperationContext
    from merganser.core.model.engine import Engine
    from merganser.core.model.file_shape import FileShape
    from merganser.core.model.schema_changes import SchemaChanges
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store


def alter(engine: Engine, context: OperationContext, changes: SchemaChanges, *, plans: bool) -> AlterResult:
    """Change the schema of a dataset or, if it only `plans`, report what would change."""
    started, options = time.monotonic(), context.options
    location = locate(context.path, options.filesystem, ignore_table_format=options.ignore_table_format)
    check_target(location, lists_later=True)
    if plans:
        check_no_pending_commit(location)
        target = load_existing(location, refuse_nested=True)
        altered = _apply(target, changes)
        sizes = engine.run_tasks(partial(_measure_file, location.store), altered.items)
        return altered.make_result(sizes, [target.files[item.number].rel for item in altered.items], plans=True)
    if not has_files(location) and not has_pending_commit(location):
        raise make_no_files_error(location)
    progress = ProgressReporter(options.progress)
    with open_session(location, options.lock_timeout, started, checked=True) as session:
        target = load_existing(location, refuse_nested=True)
        altered = _apply(target, changes)
        staged, new = list[_StagedFile](), list[NewFile]()
        if altered.items:
            progress.begin("rewrite", len(altered.items), target.rows)
            with session.staging(progress.on_file_done) as staging, explain_staging_errors(staging):
                task = partial(_stage_file, staging)
                staged = engine.run_tasks(task, altered.items, large=True, in_driver=False)
                new = _make_new_files(altered, staged, staging)
                removed = [item.number for item in altered.items if item.needs_new_path]
                progress.begin("commit", len(new))
                record = make_maintenance_record("alter", options, changes.to_plain(), (target.rows, target.rows))
                record = record_schemas(record, altered.before, altered.after)
                commit_files(session, staging, make_journal(target, new, removed, record, options.retain), target)
    progress.begin("done")
    return altered.make_result([one.sizes for one in staged], [one.rel for one in new], plans=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileItem:
    """One file to change."""

    number: int
    path: str
    display_path: str
    shape: FileShape
    # A reader that planned with the old file would read NULL for a column that has gone, unless the path has gone, too.
    needs_new_path: bool


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The stored bytes of a file that are copied, and of columns that are encoded anew."""

    copied: int
    encoded: int


@dataclass(frozen=True, slots=True)
class _StagedFile:
    path: str
    sizes: _Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlteredTarget:
    """A dataset, its schema before and after, and the files that change."""

    target: Target
    before: pa.Schema
    after: pa.Schema
    lines: Sequence[str]
    items: Sequence[_FileItem]

    def make_result(self, sizes: Sequence[_Sizes], paths: Sequence[str], *, plans: bool) -> AlterResult:
        """Make the result for the files that changed, or would, with the bytes and the path of each."""
        target = self.target
        changed = {item.number: at for at, item in enumerate(self.items)}
        files = [
            AlteredFile(
                path=target.location.to_display(file.rel if (at := changed.get(number)) is None else paths[at]),
                row_count=target.file_rows[number],
                operation="preserved" if at is None else "rewritten",
                bytes_copied=0 if at is None else sizes[at].copied,
                bytes_encoded=0 if at is None else sizes[at].encoded,
            )
            for number, file in enumerate(target.files)
        ]
        return AlterResult(
            path=target.location.display,
            changes=list(self.lines),
            schema_before={field.name: str(field.type) for field in self.before},
            schema_after={field.name: str(field.type) for field in self.after},
            row_count=target.rows,
            files=files,
            rewritten_files=[file.path for file in files if file.operation == "rewritten"],
            preserved_files=[file.path for file in files if file.operation == "preserved"],
            bytes_copied=sum(size.copied for size in sizes),
            bytes_encoded=sum(size.encoded for size in sizes),
            is_plan=plans,
        )


def _apply(target: Target, changes: SchemaChanges) -> _AlteredTarget:
    """Apply changes to the schema of a dataset, and find the files that they change."""
    if changes.unify:
        check_names_differ(target)
    else:
        check_one_schema(target)
    old, partitions = cast("pa.Schema", target.file_schema), target.partition_columns
    altered = changes.leave_out_done(old.names).apply(old, partitions)
    origins = {**altered.origins, **{name: name for name in partitions}}
    summaries = cast("Summaries", target.summaries)
    shapes = [
        (
            own,
            make_shape(
                own,
                [*altered.schema, *(field for field in own if field.name in partitions)],
                origins,
                altered.defaults,
                optional=[new for new, name in origins.items() if name in target.optional_columns],
                is_ordered=changes.unify,
            ),
        )
        for own in summaries.schemas
    ]
    items = [
        _FileItem(
            number=number,
            path=target.location.to_path(file.rel),
            display_path=target.location.to_display(file.rel),
            shape=shape,
            # A file behind a link stays where it is.
            needs_new_path=file.real is None and not {*own.names} <= {*shape.kept},
        )
        for number, file in enumerate(target.files)
        for own, shape in [shapes[int(summaries.schema_numbers[number])]]
        if shape is not None
    ]
    kept = pa.schema([old.field(name).with_name(new) for new, name in altered.origins.items()])
    return _AlteredTarget(
        target=target,
        before=cast("pa.Schema", target.schema),
        after=pa.schema([*altered.schema, *target.partition_types.items()]),
        lines=[
            *(f"unify files: {one}" for one in find_differences(target)),
            *(f"rename column {name!r} to {new!r}" for new, name in altered.origins.items() if new != name),
            *describe_changes(kept, altered.schema),
            *(f"drop column {name!r}" for name in old.names if name not in altered.origins.values()),
        ],
        items=items,
    )


def _measure_file(store: Store, item: _FileItem) -> _Sizes:
    return _measure(read_footer(store, item.path, item.display_path), item.shape)


def _measure(footer: Footer, shape: FileShape) -> _Sizes:
    copied = {column.origin for column in shape.columns if column.is_copied}
    encoded = {column.origin for column in shape.columns if not column.is_copied}
    sizes = {True: 0, False: 0}
    for chunks in footer.load_chunks(range(footer.metadata.num_row_groups)).values():
        for chunk in chunks:
            column = chunk.path[0].decode("utf-8", "replace")
            if column in copied or column in encoded:
                sizes[column in copied] += chunk.compressed_size
    return _Sizes(sizes[True], sizes[False])


def _stage_file(staging: Staging, item: _FileItem) -> _StagedFile:
    """Stage a file with its new schema, where the engine has room."""
    store, staged = staging.location.store, staging.make_path()
    footer = read_footer(store, item.path, item.display_path)
    rewrite_file(store, item.path, staged, {}, footer=footer, shape=item.shape)
    staging.on_file_done()
    return _StagedFile(staged, _measure(footer, item.shape))


def _make_new_files(altered: _AlteredTarget, staged: Sequence[_StagedFile], staging: Staging) -> list[NewFile]:
    """Give each staged file the path of the one that it replaces, or a new one; it must have as many rows."""
    target, footers = altered.target, read_footers(staging, [one.path for one in staged])
    new = []
    for item, one, footer in zip(altered.items, staged, footers, strict=True):
        rows = footer.metadata.num_rows
        if rows != target.file_rows[item.number]:
            raise CountMismatchError(
                f"Internal error: {rows} rows of {item.display_path} were staged, {target.file_rows[item.number]} were "
                "planned. Nothing was published; please report this."
            )
        rel = target.files[item.number].rel
        folder = rel[: rel.rfind("/") + 1]
        replacement = NewFile(one.path, rel, footer, item.number)
        new.append(make_new_file(one.path, folder, footer) if item.needs_new_path else replacement)
    return new
