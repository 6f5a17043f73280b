"""`merge`, `plan` and `write`: every option of the library's calls, by the same names."""

from __future__ import annotations

import functools
import itertools
import os
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
    confirm,
    flatten_names,
    group_pairs,
    max_rows_option,
    open_filesystem,
    pair,
    parse_value,
    retain_option,
    row_group_option,
    storage_option,
    table_format_option,
    timeout_option,
    wrap_command,
)
from merganser.cli.dataset.plan_chart import format_plan
from merganser.cli.dataset.progress import show_progress
from merganser.cli.sources import make_reading, open_source, reading_options, use_target_types
from merganser.core.merge.driver import WriteMode
from merganser.core.model.options import CODECS, PartitionMove
from merganser.core.model.strategy import MergeStrategy
from merganser.core.sources.source import stream_source
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from merganser.core.merge.planner import MergePlan
    from merganser.core.model.result import MergeResult, WriteResult

    Function = Callable[..., Any]


def _combine_options(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Give a command several options, in this order."""
    return lambda work: functools.reduce(lambda made, option: option(made), reversed(options), work)


_io_options = _combine_options(
    click.argument("source", type=click.Path()),
    click.argument("target", type=click.Path()),
    click.option(
        "--engine", type=click.Choice(list(ENGINES)), default="duckdb", show_default=True, help="What does the work."
    ),
    *reading_options,
    storage_option(),
    table_format_option,
)
_merge_options = _combine_options(
    columns_option("--key", "key_columns", help_text="Columns that name a row.", required=True),
    click.option(
        "--strategy",
        type=click.Choice(get_args(MergeStrategy)),
        default="upsert",
        show_default=True,
        help="What to do.",
    ),
    columns_option("--update-columns", help_text="What matched rows take; default all."),
    columns_option("--insert-columns", help_text="What new rows take; default all."),
    columns_option("--dedup-order-by", help_text="Of rows of one key, the highest counts."),
    click.option("--sequence-column", help="Tells which row of a key is newest; late rows are skipped."),
    click.option("--operation-column", help="Says of each row whether it inserts, updates or deletes."),
    click.option(
        "--operation-values",
        type=pair,
        multiple=True,
        metavar="OPERATION=VALUE,…",
        help="What that column holds for insert, update and delete.",
    ),
    click.option("--skip-unchanged", is_flag=True, help="Leave rows alone that are equal already."),
    columns_option("--compare", help_text="With --skip-unchanged: compare these columns only."),
    click.option(
        "--scope", type=pair, multiple=True, metavar="COLUMN=VALUE,…", help="Partitions that a full_merge speaks for."
    ),
    click.option(
        "--on-partition-move",
        type=click.Choice(get_args(PartitionMove)),
        default="refuse",
        show_default=True,
        help="What to do with matched rows whose partition changes.",
    ),
    click.option(
        "--check-partition-moves/--no-check-partition-moves", default=True, help="Look for rows that move; default yes."
    ),
)
_partition_option = columns_option("--partition-by", help_text="Columns for folders, of a dataset that is new.")
_file_options = _combine_options(
    click.option("--compression", type=click.Choice(CODECS), default="snappy", show_default=True, help="Of new files."),
    max_rows_option,
    row_group_option,
    retain_option,
    timeout_option,
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@_io_options
@_merge_options
@_partition_option
@_file_options
@click.option("--audit", help="'rows', or a folder for the changed rows; 'keys' lists keys and actions.")
@click.option("--batch-id", help="A name for this batch, which is then merged once only.")
@click.option("--use-merge/--no-use-merge", default=None, help="DuckDB: by MERGE, or by UNION ALL.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `merganser plan` does.")
@_yes_option
@wrap_command
def merge(source: str, target: str, *, dry_run: bool, yes: bool, **given: Any) -> CommandOutput:
    """Merge keyed rows into a dataset.

    SOURCE is a file, pattern or URL (Parquet, CSV, JSON lines, Arrow), a folder of Parquet files, FILE::TABLE of SQLite
    or DuckDB, or - for standard input. TARGET is a folder or URL. Running it twice is the same as running it once.
    """
    if dry_run:
        return _make_plan(source, target, given)
    arguments = _make_arguments(source, target, given)
    if given["strategy"] == "full_merge" and not yes:
        arguments["source"] = _confirm_if_empty(arguments["source"], target)
    audit = {"keys": True, None: False}.get(given["audit"], given["audit"])
    use_merge = {} if given["use_merge"] is None else {"use_merge": given["use_merge"]}
    committed = {name: given[name] for name in ("batch_id", *_FILE_OPTION_NAMES)}
    with show_progress() as progress:
        result = merge_rows(
            **arguments, **_make_merge_arguments(given), **committed, audit=audit, progress=progress, **use_merge
        )
    return CommandOutput(result.to_dict(), _format_merge(result, target))


@click.command()
@_io_options
@_merge_options
@_partition_option
@wrap_command
def plan(source: str, target: str, **given: Any) -> CommandOutput:
    """Show what a merge would do to each file, and why.

    SOURCE and TARGET are those of `merganser merge`. Nothing is written.
    """
    return _make_plan(source, target, given)


@click.command()
@_io_options
@_partition_option
@_file_options
@click.option(
    "--mode",
    type=click.Choice(get_args(WriteMode)),
    default="append",
    show_default=True,
    help="Keep the rows that are there, or not.",
)
@_yes_option
@wrap_command
def write(source: str, target: str, *, mode: str, yes: bool, **given: Any) -> CommandOutput:
    """Append rows to a dataset, or overwrite it.

    SOURCE and TARGET are those of `merganser merge`.
    """
    if mode == "overwrite":
        confirm(f"Put these rows in the place of all that is in {target}?", yes=yes)
    place = _make_io_arguments(source, target, given)
    with show_progress() as progress:
        result = write_dataset(
            mode=cast("WriteMode", mode),
            **place,
            progress=progress,
            **{name: given[name] for name in _FILE_OPTION_NAMES},
        )
    return CommandOutput(result.to_dict(), _format_write(result, target))


_MAX_AUDIT_ROWS = 20
_FILE_OPTION_NAMES = ("compression", "max_rows_per_file", "row_group_size", "retain", "lock_timeout")


def _make_plan(source: str, target: str, given: dict[str, Any]) -> CommandOutput:
    found: MergePlan = plan_rows(**_make_arguments(source, target, given), **_make_merge_arguments(given))
    width = shutil.get_terminal_size((100, 24)).columns
    return CommandOutput(found.to_dict(), format_plan(found, width))


def _make_arguments(source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    if given.get("use_merge") is not None and given["engine"] != "duckdb":
        raise click.UsageError("--use-merge is for --engine duckdb. Leave it out, or choose that.")
    place = _make_io_arguments(source, target, given)
    return {**place, "strategy": given["strategy"], "key_columns": flatten_names(given["key_columns"])}


def _make_io_arguments(source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    filesystem = open_filesystem(target, given["storage_option"])
    # A shell's path may go up; the library refuses what could lead out of a lake.
    path = os.path.abspath(target) if ".." in target.split("/") and "://" not in target else target
    reading, on_spark, ignored = make_reading(given), given["engine"] == "spark", given["ignore_table_format"]
    if not on_spark:
        reading = use_target_types(source, reading, locate(path, filesystem, ignore_table_format=ignored))
    return {
        "source": open_source(source, given["storage_option"], reading, allow_path=on_spark),
        "path": path,
        "engine": given["engine"],
        "filesystem": filesystem,
        "partition_by": flatten_names(given["partition_by"]) or None,
        "ignore_table_format": ignored,
    }


def _make_merge_arguments(given: dict[str, Any]) -> dict[str, Any]:
    compared = flatten_names(given["compare"])
    if compared and not given["skip_unchanged"]:
        raise click.UsageError("--compare belongs to --skip-unchanged. Give both, or neither.")
    return {
        "update_columns": flatten_names(given["update_columns"]) or None,
        "insert_columns": flatten_names(given["insert_columns"]) or None,
        "dedup_order_by": flatten_names(given["dedup_order_by"]) or None,
        "sequence_column": given["sequence_column"],
        "operation_column": given["operation_column"],
        "operation_values": _parse_operations(given["operation_values"]) or None,
        "skip_unchanged": compared or given["skip_unchanged"],
        "scope": group_pairs(given["scope"]) or None,
        "on_partition_move": given["on_partition_move"],
        "check_partition_moves": given["check_partition_moves"],
    }


def _parse_operations(given: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    return {name: [parse_value(text) for text in texts] for name, texts in group_pairs(given).items()}


def _confirm_if_empty(source: Any, target: str) -> Any:
    """Ask before a full_merge of no rows, which deletes every row; what was read to see it is given back."""
    found = stream_source(source)
    batches = iter(found.to_batches() if isinstance(found, pa.Table) else found)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        confirm(f"The source has no rows, so a full_merge deletes every row of {target}. Go on?", yes=False)
        return found.schema.empty_table()
    if isinstance(source, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(source.schema, itertools.chain([first], batches))
    return source


def _format_merge(result: MergeResult, target: str) -> list[str]:
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
