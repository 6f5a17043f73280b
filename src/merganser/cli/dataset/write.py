"""`merge`, `plan` and `write`: every option of the library's calls, by the same names."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, cast, get_args

import click
import pyarrow as pa

from merganser.api import merge as merge_rows
from merganser.api import plan as plan_rows
from merganser.api import write_dataset
from merganser.cli.command import (
    CommandOutput,
    columns_option,
    combine,
    confirm,
    locate_target,
    open_filesystem,
    storage_option,
    wrap_command,
)
from merganser.cli.dataset.progress import show_progress
from merganser.cli.options import declared_options, to_arguments
from merganser.cli.sources import make_reading, open_source, reading_options
from merganser.core.merge.driver import WriteMode
from merganser.core.merge.plan_chart import CELLS, format_plan
from merganser.core.model.options import ARGUMENTS
from merganser.core.model.strategy import MergeStrategy
from merganser.core.sources.files import FileSource
from merganser.core.sources.source import add_target_types, stream_source
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from merganser.cli.command import Decorator
    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.model.options import Call
    from merganser.core.model.result import MergeResult, WriteResult
    from merganser.core.storage.location import Location


def _source_options(call: Call) -> Decorator:
    """Give a command SOURCE, TARGET, the options of reading them, and all declared options of a call."""
    engines = click.Choice(list(ENGINES))
    return combine(
        click.argument("source", type=click.Path()),
        click.argument("target", type=click.Path()),
        click.option("--engine", type=engines, default="auto", show_default=True, help="Engine that does the work."),
        reading_options,
        storage_option(),
        declared_options(call),
    )


_strategies = click.Choice(get_args(MergeStrategy))
# The arguments of a merge that are not declared as options.
_merge_options = combine(
    columns_option("--key", "key_columns", help_text=ARGUMENTS["key_columns"], required=True),
    click.option("--strategy", type=_strategies, default="upsert", show_default=True, help=ARGUMENTS["strategy"]),
    columns_option("--compare", help_text="Columns that --skip-unchanged compares; default all."),
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@_merge_options
@_source_options("merge")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `merganser plan` does.")
@_yes_option
@wrap_command
def merge(source: str, target: str, *, dry_run: bool, yes: bool, **given: Any) -> CommandOutput:
    """Merge keyed rows into a dataset.

    SOURCE is a file, pattern or URL (Parquet, CSV, JSON lines, Arrow), a folder of Parquet files, FILE::TABLE of SQLite
    or DuckDB, or - for standard input. TARGET is a folder or URL. Merging the same rows again changes nothing.
    """
    if dry_run:
        return _make_plan(source, target, given)
    if given["use_merge"] is not None and given["engine"] != "duckdb":
        raise click.UsageError("--use-merge is for --engine duckdb. Leave it out, or choose that engine.")
    arguments = _make_merge_arguments("merge", source, target, given)
    if given["strategy"] == "full_merge" and not yes:
        location = locate_target(target, given["storage_option"])
        arguments["source"] = _confirm_if_empty(arguments["source"], target, location)
    with show_progress() as progress:
        result = merge_rows(**arguments, progress=progress)
    return CommandOutput(result.to_dict(), format_merge(result, target))


@click.command()
@_merge_options
@_source_options("plan")
@wrap_command
def plan(source: str, target: str, **given: Any) -> CommandOutput:
    """Show what a merge would do to each file, and why.

    SOURCE and TARGET are those of `merganser merge`. Nothing is written.
    """
    return _make_plan(source, target, given)


@click.command()
@_source_options("write_dataset")
@click.option(
    "--mode", type=click.Choice(get_args(WriteMode)), default="append", show_default=True, help=ARGUMENTS["mode"]
)
@_yes_option
@wrap_command
def write(source: str, target: str, *, mode: str, yes: bool, **given: Any) -> CommandOutput:
    """Append rows to a dataset, or overwrite it.

    SOURCE and TARGET are those of `merganser merge`.
    """
    if mode == "overwrite":
        confirm(f"Replace all rows of {target}?", yes=yes)
    arguments = _make_arguments("write_dataset", source, target, given)
    with show_progress() as progress:
        result = write_dataset(mode=cast("WriteMode", mode), **arguments, progress=progress)
    return CommandOutput(result.to_dict(), _format_write(result, target))


_MAX_AUDIT_ROWS = 20
_STYLES = {
    CELLS["removed"]: click.style(CELLS["removed"], fg="red"),
    CELLS["rewritten"]: click.style(CELLS["rewritten"], fg="yellow"),
    CELLS["scanned"]: click.style(CELLS["scanned"], fg="cyan"),
    CELLS["left out"]: click.style(CELLS["left out"], dim=True),
}
_CELL = re.compile(f"[{''.join(_STYLES)}]")


def _make_plan(source: str, target: str, given: dict[str, Any]) -> CommandOutput:
    return show_plan(plan_rows(**_make_merge_arguments("plan", source, target, given)))


def show_plan(found: MergePlan) -> CommandOutput:
    """Draw a plan as wide as the terminal."""
    lines = format_plan(found, shutil.get_terminal_size((100, 24)).columns)
    return CommandOutput(found.to_dict(), (_CELL.sub(lambda cell: _STYLES[cell[0]], line) for line in lines))


def _make_merge_arguments(call: Call, source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    if given["compare"] and not given["skip_unchanged"]:
        raise click.UsageError("--compare belongs to --skip-unchanged. Give both, or neither.")
    arguments = _make_arguments(call, source, target, given)
    arguments |= {"strategy": given["strategy"], "key_columns": given["key_columns"]}
    return {**arguments, "skip_unchanged": given["compare"] or given["skip_unchanged"]}


def _make_arguments(call: Call, source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    filesystem = open_filesystem(target, given["storage_option"])
    path = resolve_path(target)
    location = locate(path, filesystem, ignore_table_format=given["ignore_table_format"])
    return {
        "source": open_source(source, given["storage_option"], make_reading(given), location),
        "path": path,
        "engine": given["engine"],
        "filesystem": filesystem,
        **to_arguments(call, given),
    }


def resolve_path(target: str) -> str:
    """Resolve `..`, which a path may contain here; the library refuses paths that could lead out of a lake."""
    return os.path.abspath(target) if ".." in target.split("/") and "://" not in target else target


def _confirm_if_empty(source: Any, target: str, location: Location) -> Any:
    """Ask before a full_merge of no rows, which deletes every row; returns a source that still has every row."""
    found = stream_source(add_target_types(source, location) if isinstance(source, FileSource) else source)
    batches = iter(found.to_batches() if isinstance(found, pa.Table) else found)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        confirm(f"The source has no rows, so a full_merge deletes every row of {target}. Continue?", yes=False)
        return found.schema.empty_table()
    if isinstance(source, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(source.schema, itertools.chain([first], batches))
    return source


def format_merge(result: MergeResult, target: str) -> list[str]:
    """List what a merge changed, in rows and in files."""
    if result.replayed:
        return [f"{target}: batch {result.batch_id} was merged before; nothing was done"]
    skipped = f", {result.skipped:,} skipped" if result.skipped else ""
    rows = (
        f"{target}: {result.inserted:,} inserted, {result.updated:,} updated, {result.deleted:,} deleted{skipped}; "
        f"{pluralize(result.target_count_before, 'row')} before, {result.target_count_after:,} after"
    )
    files = (
        f"files: {len(result.rewritten_files):,} rewritten, {len(result.inserted_files):,} new, "
        f"{len(result.removed_files):,} removed, {len(result.preserved_files):,} left alone"
    )
    audited = [f"changed rows: {path}" for path in result.audit_files]
    if result.audit is not None:
        listed = [f"  {row}" for row in result.audit.slice(0, _MAX_AUDIT_ROWS).to_pylist()]
        left = result.audit.num_rows - len(listed)
        audited += ["changed:", *listed, *([f"  … and {left:,} more; --json lists them all"] if left else [])]
    return [rows, files, *audited]


def _format_write(result: WriteResult, target: str) -> list[str]:
    gone = f", {pluralize(len(result.removed_files), 'file')} removed" if result.removed_files else ""
    return [f"{target}: {pluralize(result.row_count, 'row')} in {pluralize(len(result.files), 'new file')}{gone}"]
