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
    Answer,
    answering,
    columns_option,
    confirmed,
    filesystem_of,
    group_option,
    max_rows_option,
    named,
    pair,
    paired,
    plain_value,
    retain_option,
    storage_option,
    table_format_option,
    timeout_option,
)
from merganser.cli.dataset.plan_chart import plan_lines
from merganser.cli.dataset.progress import watching
from merganser.cli.sources import like_target, open_source, reading_of, reading_options
from merganser.core.merge.driver import WriteMode
from merganser.core.model.options import CODECS, PartitionMove
from merganser.core.model.strategy import MergeStrategy
from merganser.core.sources.source import stream_source
from merganser.core.storage.location import locate
from merganser.display import counted
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from merganser.core.merge.planner import MergePlan
    from merganser.core.model.result import MergeResult, WriteResult

    Function = Callable[..., Any]


def _together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Give a command several options, in this order."""
    return lambda work: functools.reduce(lambda made, option: option(made), reversed(options), work)


_place = _together(
    click.argument("source", type=click.Path()),
    click.argument("target", type=click.Path()),
    click.option(
        "--engine", type=click.Choice(list(ENGINES)), default="duckdb", show_default=True, help="What does the work."
    ),
    *reading_options,
    storage_option(),
    table_format_option,
)
_change = _together(
    columns_option("--key", "key_columns", told="Columns that name a row.", required=True),
    click.option(
        "--strategy",
        type=click.Choice(get_args(MergeStrategy)),
        default="upsert",
        show_default=True,
        help="What to do.",
    ),
    columns_option("--update-columns", told="What matched rows take; default all."),
    columns_option("--insert-columns", told="What new rows take; default all."),
    columns_option("--dedup-order-by", told="Of rows of one key, the highest counts."),
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
    columns_option("--compare", told="With --skip-unchanged: compare these columns only."),
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
_partitions = columns_option("--partition-by", told="Columns for folders, of a dataset that is new.")
_files = _together(
    click.option("--compression", type=click.Choice(CODECS), default="snappy", show_default=True, help="Of new files."),
    max_rows_option,
    group_option,
    retain_option,
    timeout_option,
)
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@_place
@_change
@_partitions
@_files
@click.option("--audit", help="'rows', or a folder for the changed rows; 'keys' lists keys and actions.")
@click.option("--batch-id", help="A name for this batch, which is then merged once only.")
@click.option("--use-merge/--no-use-merge", default=None, help="DuckDB: by MERGE, or by UNION ALL.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `merganser plan` does.")
@_yes
@answering
def merge(source: str, target: str, *, dry_run: bool, yes: bool, **given: Any) -> Answer:
    """Merge keyed rows into a dataset.

    SOURCE is a file, pattern or URL (Parquet, CSV, JSON lines, Arrow), a folder of Parquet files, FILE::TABLE of SQLite
    or DuckDB, or - for standard input. TARGET is a folder or URL. Running it twice is the same as running it once.
    """
    if dry_run:
        return _planned(source, target, given)
    arguments = _arguments(source, target, given)
    if given["strategy"] == "full_merge" and not yes:
        arguments["source"] = _looked_at(arguments["source"], target)
    audit = {"keys": True, None: False}.get(given["audit"], given["audit"])
    use_merge = {} if given["use_merge"] is None else {"use_merge": given["use_merge"]}
    committed = {name: given[name] for name in ("batch_id", *_FILE_OPTIONS)}
    with watching() as progress:
        result = merge_rows(**arguments, **_changes(given), **committed, audit=audit, progress=progress, **use_merge)
    return Answer(result.to_dict(), _merged_lines(result, target))


@click.command()
@_place
@_change
@_partitions
@answering
def plan(source: str, target: str, **given: Any) -> Answer:
    """Show what a merge would do to each file, and why.

    SOURCE and TARGET are those of `merganser merge`. Nothing is written.
    """
    return _planned(source, target, given)


@click.command()
@_place
@_partitions
@_files
@click.option(
    "--mode",
    type=click.Choice(get_args(WriteMode)),
    default="append",
    show_default=True,
    help="Keep the rows that are there, or not.",
)
@_yes
@answering
def write(source: str, target: str, *, mode: str, yes: bool, **given: Any) -> Answer:
    """Append rows to a dataset, or overwrite it.

    SOURCE and TARGET are those of `merganser merge`.
    """
    if mode == "overwrite":
        confirmed(f"Put these rows in the place of all that is in {target}?", yes=yes)
    place = _place_of(source, target, given)
    with watching() as progress:
        result = write_dataset(
            mode=cast("WriteMode", mode),
            **place,
            progress=progress,
            **{name: given[name] for name in _FILE_OPTIONS},
        )
    return Answer(result.to_dict(), _written_lines(result, target))


_MOST_AUDITED = 20
_FILE_OPTIONS = ("compression", "max_rows_per_file", "row_group_size", "retain", "lock_timeout")


def _planned(source: str, target: str, given: dict[str, Any]) -> Answer:
    found: MergePlan = plan_rows(**_arguments(source, target, given), **_changes(given))
    width = shutil.get_terminal_size((100, 24)).columns
    return Answer(found.to_dict(), plan_lines(found, width))


def _arguments(source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    if given.get("use_merge") is not None and given["engine"] != "duckdb":
        raise click.UsageError("--use-merge is for --engine duckdb. Leave it out, or choose that.")
    place = _place_of(source, target, given)
    return {**place, "strategy": given["strategy"], "key_columns": named(given["key_columns"])}


def _place_of(source: str, target: str, given: dict[str, Any]) -> dict[str, Any]:
    filesystem = filesystem_of(target, given["storage_option"])
    # A shell's path may go up; the library refuses what could lead out of a lake.
    path = os.path.abspath(target) if ".." in target.split("/") and "://" not in target else target
    reading, on_spark, ignored = reading_of(given), given["engine"] == "spark", given["ignore_table_format"]
    if not on_spark:
        reading = like_target(source, reading, locate(path, filesystem, ignore_table_format=ignored))
    return {
        "source": open_source(source, given["storage_option"], reading, far=on_spark),
        "path": path,
        "engine": given["engine"],
        "filesystem": filesystem,
        "partition_by": named(given["partition_by"]) or None,
        "ignore_table_format": ignored,
    }


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    compared = named(given["compare"])
    if compared and not given["skip_unchanged"]:
        raise click.UsageError("--compare belongs to --skip-unchanged. Give both, or neither.")
    return {
        "update_columns": named(given["update_columns"]) or None,
        "insert_columns": named(given["insert_columns"]) or None,
        "dedup_order_by": named(given["dedup_order_by"]) or None,
        "sequence_column": given["sequence_column"],
        "operation_column": given["operation_column"],
        "operation_values": _operations(given["operation_values"]) or None,
        "skip_unchanged": compared or given["skip_unchanged"],
        "scope": paired(given["scope"]) or None,
        "on_partition_move": given["on_partition_move"],
        "check_partition_moves": given["check_partition_moves"],
    }


def _operations(given: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    return {name: [plain_value(text) for text in texts] for name, texts in paired(given).items()}


def _looked_at(source: Any, target: str) -> Any:
    """Ask before a full_merge of no rows, which deletes every row; what was read to see it is given back."""
    found = stream_source(source)
    batches = iter(found.to_batches() if isinstance(found, pa.Table) else found)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        confirmed(f"The source has no rows, so a full_merge deletes every row of {target}. Go on?", yes=False)
        return found.schema.empty_table()
    if isinstance(source, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(source.schema, itertools.chain([first], batches))
    return source


def _merged_lines(result: MergeResult, target: str) -> list[str]:
    if result.replayed:
        return [f"{target}: batch {result.batch_id} was merged before; nothing was done"]
    skipped = f", {result.skipped:,} skipped" if result.skipped else ""
    rows = (
        f"{target}: {result.inserted:,} inserted, {result.updated:,} updated, {result.deleted:,} deleted{skipped}; "
        f"{counted(result.target_count_before, 'row')} before, {result.target_count_after:,} after"
    )
    files = (
        f"files: {len(result.rewritten_files):,} rewritten, {len(result.inserted_files):,} new, "
        f"{len(result.removed_files):,} removed, {len(result.preserved_files):,} left alone"
    )
    audited = [f"changed rows: {path}" for path in result.audit_files]
    if result.audit is not None:
        listed = [f"  {row}" for row in result.audit.slice(0, _MOST_AUDITED).to_pylist()]
        left = result.audit.num_rows - len(listed)
        audited += ["changed:", *listed, *([f"  … and {left:,} more; --json lists them all"] if left else [])]
    return [rows, files, *audited]


def _written_lines(result: WriteResult, target: str) -> list[str]:
    gone = f", {counted(len(result.removed_files), 'file')} removed" if result.removed_files else ""
    return [f"{target}: {counted(result.row_count, 'row')} in {counted(len(result.files), 'new file')}{gone}"]
