"""`show` and `changes`: rows of a dataset as a table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, columns_option, open_filesystem, storage_option, wrap_command
from merganser.cli.options import as_of_option, since_option, table_format_option, timeout_option
from merganser.core.storage.location import locate
from merganser.display import pluralize
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from merganser.cli.command import Pairs
    from merganser.core.commit.states import AsOf

_MAX_CELL_WIDTH = 40
_GAP = "  "


@click.command()
@click.argument("target", metavar="PATH", type=click.Path())
@columns_option("--columns", help_text="Columns to show; default all.")
@click.option("--where", help="Condition of SQL that rows have to meet: \"amount > 5 AND day = '2025-01-06'\".")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of rows to show.")
@as_of_option
@storage_option()
@table_format_option
@wrap_command
def show(target: str, *, columns: list[str], where: str | None, limit: int, **given: Any) -> CommandOutput:
    """Show rows of a dataset.

    PATH is a folder or URL.
    """
    from merganser.engines.duckdb.reading import read_rows  # noqa: PLC0415  slow to load

    filesystem = open_filesystem(target, given["storage_option"])
    location = locate(target, filesystem, ignore_table_format=given["ignore_table_format"])
    found = read_rows(location, columns, where, limit + 1, given["as_of"])
    return _show_rows(found, limit)


@click.command()
@click.argument("target", metavar="PATH", type=click.Path())
@since_option
@columns_option("--key", help_text="Columns that identify a row; default those of the last commit that had any.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of rows to show.")
@timeout_option
@storage_option()
@table_format_option
@wrap_command
def changes(
    target: str, *, since: AsOf, key: list[str], limit: int, storage_option: Pairs, **given: Any
) -> CommandOutput:
    """Show the rows that changed since a commit.

    PATH is a folder or URL. Each row has its action, insert, update or delete, and the row as it was. The state after
    that commit must be retained (merge --retain, write --retain).
    """
    from merganser.core.maintenance.changes import changes as list_changes  # noqa: PLC0415  slow to load

    filesystem = open_filesystem(target, storage_option)
    return _show_rows(list_changes(target, since, key or None, filesystem=filesystem, **given), limit)


def _show_rows(found: pa.Table, limit: int) -> CommandOutput:
    rows = found.slice(0, limit)
    width = shutil.get_terminal_size((100, 24)).columns
    values = {name: _to_values(rows.column(name)) for name in rows.column_names}
    listed = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return CommandOutput(listed, _format_rows(values, len(listed), width, has_more=found.num_rows > limit))


def _to_values(column: pa.ChunkedArray) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        # Python has the years from 1 to 9999 only.
        found = column.cast("string").to_pylist()
    return found


def _format_rows(values: dict[str, list[Any]], count: int, width: int, *, has_more: bool) -> Iterator[str]:
    """Draw rows as a table; columns that do not fit are left out and named below it."""
    texts = {
        name: [_shorten(escape_controls(text)) for text in (name, *map(_format_value, column))]
        for name, column in values.items()
    }
    fitting = _choose_columns(texts, width)
    widths = [max(map(len, texts[name])) for name in fitting]
    for line in zip(*(texts[name] for name in fitting), strict=True):
        yield _GAP.join(f"{text:<{size}}" for text, size in zip(line, widths, strict=True)).rstrip()
    yield f"{pluralize(count, 'row')}{'; --limit shows more' if has_more else ''}"
    hidden = list(values)[len(fitting) :]
    if hidden:
        yield f"columns not shown: {', '.join(hidden)}; --columns selects them"


def _choose_columns(texts: dict[str, list[str]], width: int) -> Sequence[str]:
    """Choose the first columns that fit the width, at least one."""
    chosen: list[str] = []
    used = 0
    for name, column in texts.items():
        used += max(map(len, column)) + len(_GAP)
        if chosen and used - len(_GAP) > width:
            break
        chosen.append(name)
    return chosen


def _format_value(value: Any) -> str:
    """Format a value: NULL by its name, the empty string by its quotes."""
    if value is None:
        return "NULL"
    return "''" if value == "" else str(value)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CELL_WIDTH else f"{text[: _MAX_CELL_WIDTH - 1]}…"
