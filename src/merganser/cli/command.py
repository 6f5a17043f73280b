"""What every command shares: where answers and messages go, how it ends, and the options that all of them have.

The answer goes to standard output, as text or as JSON and then nothing else; messages go to standard error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import pyarrow as pa

from merganser.core.commit import pending_commit
from merganser.core.errors import MerganserError
from merganser.core.store import locate, open_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

DONE, FAILED, UNFINISHED = 0, 1, 3


class Answer:
    """What a command found or did: lines for people, and plain values for programs."""

    def __init__(self, values: Any, lines: Iterable[str]) -> None:
        self.values = values
        self.lines = lines


def say(text: str) -> None:
    """Tell people something, wherever the answer goes."""
    click.echo(text, err=True)


def answering(work: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command the options that all have, print its answer, and end as its exit code says.

    A command that changes a dataset calls it `target`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
    @click.option("--debug", is_flag=True, help="Show where in the code an error comes from.")
    @functools.wraps(work)
    def command(*, as_json: bool, debug: bool, **arguments: Any) -> None:
        try:
            answer = work(**arguments)
        except (MerganserError, OSError, pa.ArrowException, KeyboardInterrupt) as error:
            if debug:
                raise
            sys.exit(_failed(error, arguments, as_json=as_json))
        if as_json:
            click.echo(json.dumps(answer.values, indent=2, default=str, ensure_ascii=False))
        else:
            for line in answer.lines:
                click.echo(line)

    return command


def _failed(error: BaseException, arguments: dict[str, Any], *, as_json: bool) -> int:
    code = UNFINISHED if _is_unfinished(arguments) else FAILED
    told = "Interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    if isinstance(error, OSError) and not isinstance(error, MerganserError):
        told = f"{told}. Check the path, its permissions and the space there."
    if code == UNFINISHED:
        after = (
            f"A commit is unfinished; the next merge finishes it, and so does: merganser recover {arguments['target']}"
        )
        told = f"{told}. {after}" if isinstance(error, KeyboardInterrupt) else f"{told}\n{after}"
    elif isinstance(error, KeyboardInterrupt):
        told = "Interrupted. Nothing was changed."
    say(f"Error: {told}")
    if as_json:
        kind = type(error).__name__
        click.echo(
            json.dumps({"error": {"type": kind, "message": told, "exit_code": code}}, indent=2, ensure_ascii=False)
        )
    return code


def _is_unfinished(arguments: dict[str, Any]) -> bool:
    try:
        place = locate(arguments["target"], filesystem_of(arguments["target"], arguments.get("storage_option", ())))
        return pending_commit(place)
    except (KeyError, MerganserError, OSError):
        return False


def storage_option() -> Decorator:
    """Take what a remote filesystem needs, as `key=value`."""
    return click.option(
        "--storage-option",
        type=pair,
        multiple=True,
        metavar="KEY=VALUE",
        help="For fsspec, of a URL: endpoint_url, key, secret, … Repeatable.",
    )


def filesystem_of(path: str, options: Sequence[tuple[str, str]]) -> Any:
    """Open the filesystem of a URL with storage options; None leaves that to merganser."""
    if not options or "://" not in path:
        return None
    return open_url(path, **{key: _plain(value) for key, value in options})[0]


def _plain(text: str) -> Any:
    """Take a value for what it would be in JSON, else for a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def pair(text: str) -> tuple[str, str]:
    """Take an option of the form `name=value`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        message = f"{text!r} is not of the form name=value."
        raise click.BadParameter(message)
    return name, value


def columns(text: str) -> list[str]:
    """Take an option that names columns, with commas between them; it may be given several times as well."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        message = f"{text!r} names no column between two commas."
        raise click.BadParameter(message)
    return names


def named(given: Sequence[Sequence[str]]) -> list[str]:
    """Put together what an option named in several places."""
    return [name for names in given for name in names]


def paired(given: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """Put together the values that an option gave to each name, several with commas between them."""
    found: dict[str, list[Any]] = {}
    for name, text in given:
        found.setdefault(name, []).extend(_plain(part) for part in text.split(","))
    return found


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back; where nobody can answer, `--yes` has to."""
    if yes:
        return
    if not os.isatty(0):
        message = f"{question} Nobody is there to answer; say --yes."
        raise click.UsageError(message)
    click.confirm(question, abort=True, err=True)
