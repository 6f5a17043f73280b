"""`undo`, `recover` and `vacuum`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.api import history as records_of
from merganser.api import recover as recover_dataset
from merganser.api import undo as undo_commit
from merganser.api import vacuum as vacuum_dataset
from merganser.cli.command import Answer, answering, confirmed, filesystem_of, storage_option
from merganser.cli.look import record_line
from merganser.core.commit import LOCK_TIMEOUT
from merganser.core.shown import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

_timeout = click.option(
    "--lock-timeout", type=float, default=LOCK_TIMEOUT, show_default=True, help="Seconds to wait for another writer."
)
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@click.argument("target")
@_timeout
@_yes
@storage_option()
@answering
def undo(target: str, *, lock_timeout: float, yes: bool, storage_option: Sequence[tuple[str, str]]) -> Answer:
    """Take the last commit back.

    TARGET is the dataset. What the commit replaced must have been retained (--retain of merge and write), unless it
    only added files. Called again, it takes back the commit before.
    """
    filesystem = filesystem_of(target, storage_option)
    found = next((one for one in records_of(target, filesystem=filesystem) if one.operation != "undo"), None)
    if found is not None:
        confirmed(f"Take back the last commit into {target}?", yes=yes)
    record = undo_commit(target, filesystem=filesystem, lock_timeout=lock_timeout)
    return Answer(record.to_dict(), [f"taken back: {record_line(record)}"])


@click.command()
@click.argument("target")
@_timeout
@storage_option()
@answering
def recover(target: str, *, lock_timeout: float, storage_option: Sequence[tuple[str, str]]) -> Answer:
    """Finish or remove what a killed merge left behind.

    TARGET is the dataset. Every merge does this first; call it to have the dataset whole before the next one.
    """
    found = recover_dataset(target, filesystem=filesystem_of(target, storage_option), lock_timeout=lock_timeout)
    told = "recovered what an interrupted merge had left" if found else "nothing to recover"
    return Answer({"path": target, "recovered": found}, [f"{target}: {told}"])


@click.command()
@click.argument("target")
@click.option(
    "--retain", type=int, help="Keep what the newest so many commits retained; default all that undo can use."
)
@_timeout
@_yes
@storage_option()
@answering
def vacuum(
    target: str, *, retain: int | None, lock_timeout: float, yes: bool, storage_option: Sequence[tuple[str, str]]
) -> Answer:
    """Remove retained files that no undo needs.

    TARGET is the dataset. With --retain N, older commits than the newest N cannot be undone any more.
    """
    confirmed(f"Remove retained files of {target} for good?", yes=yes)
    removed = vacuum_dataset(
        target, retain=retain, filesystem=filesystem_of(target, storage_option), lock_timeout=lock_timeout
    )
    return Answer(
        {"path": target, "removed": removed}, [f"{target}: removed what {counted(len(removed), 'commit')} had retained"]
    )
