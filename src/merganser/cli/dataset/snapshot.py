"""`snapshot`: a folder with one state of a dataset, for other programs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, open_filesystem, storage_option, wrap_command
from merganser.cli.options import as_of_option, table_format_option, timeout_option
from merganser.core.commit.snapshots import keep_snapshot
from merganser.core.storage.location import locate
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from merganser.core.commit.states import AsOf

_DURATION = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _parse_duration(_: click.Context, __: click.Parameter, given: str) -> timedelta:
    found = _DURATION.fullmatch(given)
    if found is None:
        raise click.BadParameter(f"{given!r} is not a duration: write 90s, 30m, 1h or 7d.")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise click.BadParameter(f"{given!r} is too long.") from None


@click.command()
@click.argument("target", metavar="PATH", type=click.Path())
@click.option(
    "--keep",
    default="1h",
    show_default=True,
    callback=_parse_duration,
    help="How long the folder is kept: 90s, 30m, 1h or 7d. The next writer after that removes it.",
)
@as_of_option
@timeout_option
@storage_option()
@table_format_option
@wrap_command
def snapshot(target: str, *, keep: timedelta, as_of: AsOf | None, lock_timeout: float, **given: Any) -> CommandOutput:
    """Print a folder with one state of a dataset.

    PATH is a folder or URL. No commit changes the folder, and any program that reads Parquet can read it. Its files are
    hard links, which take no space; where the disk has none, and on object stores, they are copies. Remove the folder
    when it is not needed any more, or leave that to the next writer.
    """
    filesystem = open_filesystem(target, given["storage_option"])
    location = locate(target, filesystem, ignore_table_format=given["ignore_table_format"])
    folder = mask_credentials(keep_snapshot(location, as_of, lock_timeout, keep))
    return CommandOutput({"path": mask_credentials(target), "folder": folder}, [folder])
