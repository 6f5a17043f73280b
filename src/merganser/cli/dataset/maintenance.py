"""`compact` and `dedupe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, columns_option, open_filesystem, storage_option, wrap_command
from merganser.cli.dataset.progress import show_progress
from merganser.cli.options import max_rows_option, retain_option, row_group_option, table_format_option, timeout_option
from merganser.core.maintenance.compact import TARGET_FILE_BYTES
from merganser.core.maintenance.compact import compact as compact_dataset
from merganser.core.maintenance.dedupe import dedupe as dedupe_dataset
from merganser.core.model.option_types import CODECS
from merganser.display import pluralize

if TYPE_CHECKING:
    from merganser.core.model.result import CompactResult, DedupeResult

_MB = 1 << 20
_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")


@click.command()
@click.argument("target", type=click.Path())
@columns_option("--sort-by", help_text="Columns to sort the rows of a folder by.")
@click.option(
    "--target-file-mb",
    type=click.FloatRange(min=0, max=1 << 20, min_open=True),
    default=TARGET_FILE_BYTES / _MB,
    show_default=True,
    help="Size of new files in MB; smaller files are compacted.",
)
@click.option("--compression", type=click.Choice(CODECS), help="Codec for new files; default: that of the old ones.")
@max_rows_option
@row_group_option
@retain_option
@timeout_option
@_dry_run_option
@storage_option()
@table_format_option
@wrap_command
def compact(target: str, *, target_file_mb: float, **given: Any) -> CommandOutput:
    """Rewrite small files into fewer large ones.

    TARGET is a folder or URL. Small files of a folder become files of about --target-file-mb. Larger files are kept,
    unless --sort-by is given and they are not sorted yet. No row changes, and running it again does nothing.
    """
    with show_progress() as progress:
        size = max(1, round(target_file_mb * _MB))
        result = compact_dataset(target, target_file_bytes=size, progress=progress, **_make_arguments(target, given))
    return CommandOutput(result.to_dict(), [_format_compact(result, target)])


@click.command()
@click.argument("target", type=click.Path())
@columns_option("--key", "key_columns", help_text="Columns that identify a row.", required=True)
@columns_option("--order-by", help_text="Columns that order rows of one key; the highest is kept.")
@retain_option
@timeout_option
@_dry_run_option
@storage_option()
@table_format_option
@wrap_command
def dedupe(target: str, **given: Any) -> CommandOutput:
    """Remove rows with duplicate keys.

    TARGET is a folder or URL. The row that is highest by --order-by is kept for each key. Without --order-by, only rows
    that are equal in every column are removed. Files without duplicates are kept as they are.
    """
    with show_progress() as progress:
        result = dedupe_dataset(target, progress=progress, **_make_arguments(target, given))
    return CommandOutput(result.to_dict(), _format_dedupe(result, target))


def _make_arguments(target: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"filesystem": open_filesystem(target, given.pop("storage_option")), **given}


def _format_compact(result: CompactResult, target: str) -> str:
    if not result.removed_files:
        return f"{target}: nothing to compact in {pluralize(result.file_count_before, 'file')}"
    removed, kept = pluralize(len(result.removed_files), "file"), len(result.preserved_files)
    if result.dry_run:
        return f"{target}: {removed} would be compacted, {kept:,} left alone"
    if not result.inserted_files:
        return f"{target}: {removed} without rows removed, {kept:,} left alone"
    return (
        f"{target}: {removed} compacted into {len(result.inserted_files):,}, {kept:,} left alone; "
        f"{pluralize(result.row_count, 'row')} as before"
    )


def _format_dedupe(result: DedupeResult, target: str) -> list[str]:
    if not result.deleted:
        return [f"{target}: no duplicate keys in {pluralize(result.target_count_before, 'row')}"]
    would = "would be " if result.dry_run else ""
    keys = pluralize(result.duplicate_keys, "duplicate key")
    rows = (
        f"{target}: {pluralize(result.deleted, 'row')} of {keys} {would}deleted; "
        f"{pluralize(result.target_count_before, 'row')} before, {result.target_count_after:,} after"
    )
    files = (
        f"files: {len(result.rewritten_files):,} {would}rewritten, {len(result.removed_files):,} {would}removed, "
        f"{len(result.preserved_files):,} left alone"
    )
    return [rows, files]
