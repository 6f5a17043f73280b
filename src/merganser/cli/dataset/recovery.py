"""`undo`, `recover` and `vacuum`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, check_exists, confirm, open_filesystem, storage_option, wrap_command
from merganser.cli.dataset.inspect import format_record
from merganser.cli.options import table_format_option, timeout_option
from merganser.core.commit.commit import recover as recover_dataset
from merganser.core.commit.history import history as records_of
from merganser.core.commit.undo import undo as undo_commit
from merganser.core.commit.undo import vacuum as vacuum_dataset
from merganser.display import pluralize
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from merganser.cli.command import Pairs

_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@click.argument("target", type=click.Path())
@timeout_option
@_yes_option
@storage_option()
@table_format_option
@wrap_command
def undo(target: str, *, yes: bool, storage_option: Pairs, **given: Any) -> CommandOutput:
    """Undo the last commit.

    TARGET is a folder or URL. The files that the commit replaced must have been retained (merge --retain, write
    --retain); a commit that only added files can always be undone. Run it again to undo the commit before.
    """
    filesystem = open_filesystem(target, storage_option)
    records = records_of(target, filesystem=filesystem)
    undone = {record.undoes for record in records}
    last = next((record for record in records if record.operation != "undo" and record.id not in undone), None)
    if last is not None:
        confirm(f"Undo the last commit to {target}, {format_record(last)}?", yes=yes)
    record = undo_commit(target, filesystem=filesystem, **given)
    return CommandOutput(record.to_dict(), [f"undone: {format_record(record)}"])


@click.command()
@click.argument("target", type=click.Path())
@timeout_option
@storage_option()
@wrap_command
def recover(target: str, *, lock_timeout: float, storage_option: Pairs) -> CommandOutput:
    """Complete or roll back an interrupted commit.

    TARGET is a folder or URL. Every merge does this first; run it to repair the dataset before
    the next merge.
    """
    check_exists(target, storage_option)
    found = recover_dataset(target, filesystem=open_filesystem(target, storage_option), lock_timeout=lock_timeout)
    outcome = "recovered from an interrupted merge" if found else "nothing to recover"
    return CommandOutput({"path": mask_credentials(target), "recovered": found}, [f"{target}: {outcome}"])


@click.command()
@click.argument("target", type=click.Path())
@click.option(
    "--retain", type=int, help="Number of latest commits that can still be undone; default: all that can be undone now."
)
@timeout_option
@_yes_option
@storage_option()
@wrap_command
def vacuum(target: str, *, yes: bool, storage_option: Pairs, **given: Any) -> CommandOutput:
    """Remove retained files that undo no longer needs.

    TARGET is a folder or URL. With --retain N, only the latest N commits can be undone afterwards.
    """
    check_exists(target, storage_option)
    confirm(f"Remove retained files of {target} permanently?", yes=yes)
    removed = vacuum_dataset(target, filesystem=open_filesystem(target, storage_option), **given)
    line = f"{target}: removed retained files of {pluralize(len(removed), 'commit')}"
    return CommandOutput({"path": mask_credentials(target), "removed": removed}, [line])
