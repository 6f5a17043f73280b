"""`undo`, `recover` and `vacuum`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.api import history as records_of
from merganser.api import recover as recover_dataset
from merganser.api import undo as undo_commit
from merganser.api import vacuum as vacuum_dataset
from merganser.cli.command import (
    CommandOutput,
    check_exists,
    confirm,
    open_filesystem,
    storage_option,
    table_format_option,
    timeout_option,
    wrap_command,
)
from merganser.cli.dataset.inspect import format_record
from merganser.display import pluralize
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@click.argument("target", type=click.Path())
@timeout_option
@_yes_option
@storage_option()
@table_format_option
@wrap_command
def undo(
    target: str,
    *,
    lock_timeout: float,
    yes: bool,
    storage_option: Sequence[tuple[str, str]],
    ignore_table_format: bool,
) -> CommandOutput:
    """Take the last commit back.

    TARGET is the dataset. What the commit replaced must have been retained (--retain of merge and write), unless it
    only added files. Called again, it takes back the commit before.
    """
    filesystem = open_filesystem(target, storage_option)
    records = records_of(target, filesystem=filesystem)
    done = {record.undoes for record in records}
    last = next((record for record in records if record.operation != "undo" and record.id not in done), None)
    if last is not None:
        confirm(f"Take back the last commit into {target}, {format_record(last)}?", yes=yes)
    record = undo_commit(
        target, filesystem=filesystem, lock_timeout=lock_timeout, ignore_table_format=ignore_table_format
    )
    return CommandOutput(record.to_dict(), [f"taken back: {format_record(record)}"])


@click.command()
@click.argument("target", type=click.Path())
@timeout_option
@storage_option()
@wrap_command
def recover(target: str, *, lock_timeout: float, storage_option: Sequence[tuple[str, str]]) -> CommandOutput:
    """Finish or remove what a killed merge left behind.

    TARGET is the dataset. Every merge does this first; call it to have the dataset whole before the next one.
    """
    check_exists(target, storage_option)
    found = recover_dataset(target, filesystem=open_filesystem(target, storage_option), lock_timeout=lock_timeout)
    told = "recovered what an interrupted merge had left" if found else "nothing to recover"
    return CommandOutput({"path": mask_credentials(target), "recovered": found}, [f"{target}: {told}"])


@click.command()
@click.argument("target", type=click.Path())
@click.option(
    "--retain", type=int, help="Keep what the newest so many commits retained; default all that undo can use."
)
@timeout_option
@_yes_option
@storage_option()
@wrap_command
def vacuum(
    target: str, *, retain: int | None, lock_timeout: float, yes: bool, storage_option: Sequence[tuple[str, str]]
) -> CommandOutput:
    """Remove retained files that no undo needs.

    TARGET is the dataset. With --retain N, older commits than the newest N cannot be undone any more.
    """
    check_exists(target, storage_option)
    confirm(f"Remove retained files of {target} for good?", yes=yes)
    removed = vacuum_dataset(
        target, retain=retain, filesystem=open_filesystem(target, storage_option), lock_timeout=lock_timeout
    )
    return CommandOutput(
        {"path": mask_credentials(target), "removed": removed},
        [f"{target}: removed what {pluralize(len(removed), 'commit')} had retained"],
    )
