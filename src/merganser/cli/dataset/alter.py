"""`alter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from merganser.api import alter as alter_dataset
from merganser.cli.command import (
    CommandOutput,
    columns_option,
    confirm,
    open_filesystem,
    pair,
    storage_option,
    wrap_command,
)
from merganser.cli.dataset.progress import show_progress
from merganser.cli.options import retain_option, table_format_option, timeout_option
from merganser.display import pluralize
from merganser.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from merganser.cli.command import Decorator
    from merganser.core.model.result import AlterResult


def _pairs_option(name: str, metavar: str, help_text: str) -> Decorator:
    return click.option(name, type=pair, multiple=True, metavar=metavar, help=f"{help_text} Repeatable.")


@click.command()
@click.argument("target", type=click.Path())
@_pairs_option("--add", "COLUMN=TYPE", "New column, the last one.")
@_pairs_option("--default", "COLUMN=VALUE", "Value of a new column in existing rows; default NULL.")
@columns_option("--drop", help_text="Columns to remove with their values.")
@_pairs_option("--rename", "OLD=NEW", "New name of a column.")
@_pairs_option("--widen", "COLUMN=TYPE", "Wider type of a column, which holds every value of the old one.")
@click.option("--unify", is_flag=True, help="Give files with different columns or types one schema.")
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), default="arrow", show_default=True, help="Engine that does the work."
)
@retain_option
@timeout_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@storage_option()
@table_format_option
@wrap_command
def alter(target: str, *, dry_run: bool, yes: bool, **given: Any) -> CommandOutput:
    """Add, drop, rename and widen columns of a dataset, in one commit.

    TARGET is a folder or URL. Columns that stay as they are are copied byte for byte. TYPE is a name of Arrow or SQL:
    int64, BIGINT, "timestamp[us, tz=UTC]", "decimal128(12, 2)". A change that is made already changes nothing.
    """
    if given["drop"] and not given["retain"] and not dry_run:
        confirm(f"Delete all values of {', '.join(given['drop'])} in {target}?", yes=yes)
    for name in ("add", "default", "rename", "widen"):
        given[name] = dict(given[name])
    filesystem = open_filesystem(target, given.pop("storage_option"))
    with show_progress() as progress:
        result = alter_dataset(target, plan=dry_run, filesystem=filesystem, progress=progress, **given)
    return CommandOutput(result.to_dict(), _format_alter(result, target))


def _format_alter(result: AlterResult, target: str) -> Iterator[str]:
    if not result.rewritten_files:
        yield f"{target}: nothing to change in {pluralize(len(result.files), 'file')}"
        return
    yield f"{target}: {'would ' if result.is_plan else ''}{'; '.join(result.changes) or 'order columns alike'}"
    would = "would be " if result.is_plan else ""
    yield (
        f"files: {len(result.rewritten_files):,} {would}rewritten, {len(result.preserved_files):,} left alone; "
        f"{result.bytes_copied:,} bytes {would}copied, {result.bytes_encoded:,} encoded anew"
    )
