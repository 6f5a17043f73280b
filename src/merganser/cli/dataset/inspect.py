"""`inspect` and `history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import (
    CommandOutput,
    check_exists,
    columns_option,
    open_filesystem,
    storage_option,
    wrap_command,
)
from merganser.cli.options import table_format_option
from merganser.core.commit.history import history as records_of
from merganser.core.maintenance.inspect import inspect as inspect_dataset
from merganser.display import pluralize, to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.cli.command import Pairs
    from merganser.core.commit.history import HistoryRecord
    from merganser.core.maintenance.inspect import Inspection


@click.command()
@click.argument("target", type=click.Path())
@columns_option(
    "--key", "key_columns", help_text="Columns that identify a row; their ranges and duplicate keys are reported."
)
@storage_option()
@table_format_option
@wrap_command
def inspect(target: str, *, key_columns: list[str], **given: Any) -> CommandOutput:
    """Describe a dataset and suggest improvements.

    TARGET is a folder or URL. With --key, also show the range of the keys, how many files may contain one key, and the
    number of duplicate keys.
    """
    filesystem = open_filesystem(target, given.pop("storage_option"))
    found = inspect_dataset(target, key_columns, filesystem=filesystem, **given)
    return CommandOutput(found.to_dict(), _format_inspection(found))


def _format_inspection(found: Inspection) -> Iterator[str]:
    partitions = f" in {pluralize(found.partition_count, 'partition')} by {', '.join(found.partition_columns)}"
    yield f"{found.path}: {pluralize(found.rows, 'row')}, {_format_bytes(found.size_bytes)}"
    yield (
        f"files: {found.file_count:,}{partitions if found.partition_columns else ''}, "
        f"{pluralize(found.row_group_count, 'row group')}; "
        f"smallest {_format_bytes(found.smallest_file)}, median {_format_bytes(found.median_file)}, "
        f"largest {_format_bytes(found.largest_file)}"
    )
    yield "columns:"
    width = max(map(len, found.columns))
    yield from (f"  {name:<{width}}  {data_type}" for name, data_type in found.columns.items())
    for key in found.keys:
        yield (
            f"key {key.column}: from {key.lowest} to {key.highest}; {key.mean_files:.3g} of "
            f"{pluralize(found.file_count, 'file')} may contain a given key, at most {key.most_files:,}"
        )
    if found.duplicate_keys is not None:
        yield f"duplicate keys: {found.duplicate_keys:,}"
    yield from (f"* {finding}" for finding in found.findings)


def _format_bytes(size: int) -> str:
    for unit, below in (("kB", 10**6), ("MB", 10**9), ("GB", 10**12)):
        if size < below:
            return f"{size / (below / 1000):,.1f} {unit}"
    return f"{size / 10**12:,.1f} TB"


@click.command()
@click.argument("target", type=click.Path())
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of commits to list.")
@storage_option()
@wrap_command
def history(target: str, limit: int, storage_option: Pairs) -> CommandOutput:
    """List the commits to a dataset.

    TARGET is a folder or URL. The newest commit comes first.
    """
    check_exists(target, storage_option)
    records = records_of(target, filesystem=open_filesystem(target, storage_option))[:limit]
    lines = [line for record in records for line in (format_record(record), *_format_clauses(record))]
    return CommandOutput(to_plain(records), lines or [f"{target}: no commits"])


def format_record(record: HistoryRecord) -> str:
    """Format a commit as one line."""
    kind = "by clauses" if record.strategy == "merge" else record.strategy or record.mode
    name = " ".join(filter(None, (record.operation, kind)))
    found = {word: getattr(record, word) for word in ("inserted", "updated", "deleted")}
    changes = ", ".join(f"{count:,} {word}" for word, count in found.items() if count) or "no row changed"
    if record.schema_after != record.schema_before:
        changes = f"{changes}, columns changed"
    batch = f" (batch {record.batch_id})" if record.batch_id else ""
    return f"{record.committed_at:%Y-%m-%d %H:%M:%S} UTC  {name}: {changes}{batch}"


def _format_clauses(record: HistoryRecord) -> list[str]:
    """List the clauses of a commit below its line, if it has any."""
    return [f"    {clause}" for clause in record.options.get("clauses", ())]
