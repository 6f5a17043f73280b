"""`compact` and `dedupe`: what keeps a dataset in order without bringing in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.api import compact as compact_dataset
from merganser.api import dedupe as dedupe_dataset
from merganser.cli.command import (
    CommandOutput,
    columns_option,
    flatten_names,
    max_rows_option,
    open_filesystem,
    retain_option,
    row_group_option,
    storage_option,
    table_format_option,
    timeout_option,
    wrap_command,
)
from merganser.cli.dataset.progress import show_progress
from merganser.core.maintenance.compact import TARGET_FILE_BYTES
from merganser.core.model.options import CODECS
from merganser.display import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.model.result import CompactResult, DedupeResult

_MB = 1 << 20
_dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")


@click.command()
@click.argument("target", type=click.Path())
@columns_option("--sort-by", help_text="Columns that the rows of a folder are sorted by.")
@click.option(
    "--target-file-mb",
    type=click.FloatRange(min=0, max=1 << 20, min_open=True),
    default=TARGET_FILE_BYTES / _MB,
    show_default=True,
    help="Smaller files are put together.",
)
@click.option("--compression", type=click.Choice(CODECS), help="Of new files; default that of the old ones.")
@max_rows_option
@row_group_option
@retain_option
@timeout_option
@_dry_run_option
@storage_option()
@table_format_option
@wrap_command
def compact(
    target: str,
    *,
    sort_by: Sequence[Sequence[str]],
    target_file_mb: float,
    compression: str | None,
    max_rows_per_file: int,
    row_group_size: int,
    retain: int,
    lock_timeout: float,
    dry_run: bool,
    storage_option: Sequence[tuple[str, str]],
    ignore_table_format: bool,
) -> CommandOutput:
    """Put small files of a dataset together.

    TARGET is a folder or URL. Files of one folder become few of about --target-file-mb; larger ones are left alone,
    unless --sort-by is given and they are not sorted yet. No row changes, and running it again does nothing.
    """
    with show_progress() as progress:
        result = compact_dataset(
            target,
            sort_by=flatten_names(sort_by),
            target_file_bytes=max(1, round(target_file_mb * _MB)),
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            retain=retain,
            lock_timeout=lock_timeout,
            progress=progress,
            filesystem=open_filesystem(target, storage_option),
            dry_run=dry_run,
            ignore_table_format=ignore_table_format,
        )
    return CommandOutput(result.to_dict(), [_format_compact(result, target)])


@click.command()
@click.argument("target", type=click.Path())
@columns_option("--key", "key_columns", help_text="Columns that name a row.", required=True)
@columns_option("--order-by", help_text="Of rows of one key, the highest stays.")
@retain_option
@timeout_option
@_dry_run_option
@storage_option()
@table_format_option
@wrap_command
def dedupe(
    target: str,
    *,
    key_columns: Sequence[Sequence[str]],
    order_by: Sequence[Sequence[str]],
    retain: int,
    lock_timeout: float,
    dry_run: bool,
    storage_option: Sequence[tuple[str, str]],
    ignore_table_format: bool,
) -> CommandOutput:
    """Remove rows whose key another row has.

    TARGET is a folder or URL. Of the rows of one key the highest by --order-by stays; without it, rows go only if they
    are the same in every column. Files that lose no row are left alone.
    """
    with show_progress() as progress:
        result = dedupe_dataset(
            target,
            flatten_names(key_columns),
            flatten_names(order_by),
            retain=retain,
            lock_timeout=lock_timeout,
            progress=progress,
            filesystem=open_filesystem(target, storage_option),
            dry_run=dry_run,
            ignore_table_format=ignore_table_format,
        )
    return CommandOutput(result.to_dict(), _format_dedupe(result, target))


def _format_compact(result: CompactResult, target: str) -> str:
    if not result.removed_files:
        return f"{target}: nothing to compact in {pluralize(result.file_count_before, 'file')}"
    together, left = pluralize(len(result.removed_files), "file"), len(result.preserved_files)
    if result.dry_run:
        return f"{target}: {together} would be put together, {left:,} left alone"
    if not result.inserted_files:
        return f"{target}: {together} without rows removed, {left:,} left alone"
    return (
        f"{target}: {together} put together in {len(result.inserted_files):,}, {left:,} left alone; "
        f"{pluralize(result.row_count, 'row')} as before"
    )


def _format_dedupe(result: DedupeResult, target: str) -> list[str]:
    if not result.deleted:
        return [f"{target}: no key is there more than once in {pluralize(result.target_count_before, 'row')}"]
    would = "would be " if result.dry_run else ""
    rows = (
        f"{target}: {pluralize(result.deleted, 'row')} of {pluralize(result.duplicate_keys, 'key')} {would}deleted; "
        f"{pluralize(result.target_count_before, 'row')} before, {result.target_count_after:,} after"
    )
    files = (
        f"files: {len(result.rewritten_files):,} {would}rewritten, {len(result.removed_files):,} {would}removed, "
        f"{len(result.preserved_files):,} left alone"
    )
    return [rows, files]
