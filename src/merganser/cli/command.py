"""What every command shares: where answers and messages go, how it ends, and the options that all of them have.

The answer goes to standard output, as text or as JSON and then nothing else; messages go to standard error.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import re
import shlex
import sys
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import pyarrow as pa

from merganser.cli.option_names import name_options
from merganser.core.commit.commit import has_pending_commit
from merganser.core.storage.location import locate, open_url
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import MerganserError, TargetPathError
from merganser.printable import CONTROL, escape_controls, mask_credentials, to_printable
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from merganser.core.storage.location import Location

    Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

FAILED, UNFINISHED = 1, 3
_COLOURED = re.compile("(\x1b\\[[0-9]+m[█▒·✕]\x1b\\[0m)")
_UNESCAPED = re.compile(f"(?!\\n){CONTROL.pattern}")


class CommandOutput:
    """What a command found or did: lines for people, and plain values for programs."""

    def __init__(self, values: Any, lines: Iterable[str]) -> None:
        self.values = values
        self.lines = lines


def say(text: str) -> None:
    """Tell people something, wherever the answer goes."""
    click.echo(to_printable(text), err=True)


def wrap_command(work: Callable[..., CommandOutput]) -> Callable[..., None]:
    """Give a command the options that all have, print its answer, and end as its exit code says.

    A command that changes a dataset calls it `target`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
    @click.option("--debug", is_flag=True, help="Show where in the code an error comes from.")
    @functools.wraps(work)
    def command(*, as_json: bool, debug: bool, **arguments: Any) -> None:
        try:
            answer = work(**arguments)
        except click.ClickException as error:
            if as_json:
                _print_error(error, to_printable(error.format_message()), error.exit_code)
            raise
        except (MerganserError, OSError, pa.ArrowException, KeyboardInterrupt, click.Abort) as error:
            if debug:
                raise
            sys.exit(_report_failure(error, arguments, as_json=as_json))
        _print([_to_json(answer.values)] if as_json else map(_escape_line, answer.lines))

    return command


def _print(lines: Iterable[str]) -> None:
    """Print an answer. Whoever does not want all of it, or has no room for it, does not undo what was done."""
    try:
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"It is done, but the answer cannot be written: {error}.")
        # Python would try once more when it ends, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _escape_line(text: str) -> str:
    """Leave nothing in a line that a terminal would obey, but our own colours of single cells."""
    parts = _COLOURED.split(mask_credentials(text))
    return "".join(part if at % 2 else escape_controls(part) for at, part in enumerate(parts))


def _to_json(values: Any) -> str:
    text = json.dumps(_to_json_value(values), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON itself escapes only the first 32 characters; the others stand in strings, where this means the same.
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _to_json_value(value: Any) -> Any:
    """Give a value a form that JSON has: times as ISO 8601, bytes in hexadecimal, and what is no number as its name."""
    if isinstance(value, dict):
        return {str(name): _to_json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, str | int | float | None) else str(value)


def _report_failure(error: BaseException, arguments: dict[str, Any], *, as_json: bool) -> int:
    code = UNFINISHED if _is_unfinished(error, arguments) else FAILED
    told = to_printable(_format_error(error))
    if code == UNFINISHED:
        told = (
            f"{told}\nA commit is unfinished; the next merge finishes it, and so does: merganser recover "
            f"{shlex.quote(mask_credentials(arguments['target']))}"
        )
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        told = f"{told} Nothing was changed."
    say(f"Error: {told}")
    if as_json:
        _print_error(error, told, code)
    return code


def _format_error(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    if isinstance(error, click.Abort):
        return "Not confirmed."
    if isinstance(error, MerganserError):
        return name_options(str(error))
    if isinstance(error, OSError):
        return f"{error}. Check the path, its permissions and the free space."
    return str(error)


def _print_error(error: BaseException, message: str, code: int) -> None:
    _print([_to_json({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})])


def _is_unfinished(error: BaseException, arguments: dict[str, Any]) -> bool:
    """Say whether a commit waits for recovery; an error of what was given, or of waiting, tells nothing of that."""
    if isinstance(error, ValueError | TypeError | TimeoutError):
        return False
    try:
        return has_pending_commit(locate_target(arguments["target"], arguments.get("storage_option", ())))
    except (KeyError, MerganserError, OSError):
        return False


def locate_target(target: str, options: Sequence[tuple[str, str]]) -> Location:
    """Find the place of a dataset."""
    return locate(target, open_filesystem(target, options))


def check_exists(target: str, options: Sequence[tuple[str, str]]) -> None:
    """Refuse a place where there is no dataset, nor the control folder of one."""
    location = locate_target(target, options)
    if all(location.store.get_path_type(path) is None for path in (location.root, choose_control_folder(location))):
        message = f"There is no dataset at {target}. Check the path."
        raise TargetPathError(message)


def storage_option() -> Decorator:
    """Take what a remote filesystem needs, as `key=value`."""
    return click.option(
        "--storage-option",
        type=pair,
        multiple=True,
        metavar="KEY=VALUE",
        help="For fsspec, of a URL: endpoint_url, key, secret, … Repeatable.",
    )


def columns_option(name: str, *spelled: str, help_text: str, required: bool = False) -> Decorator:
    """Take names of columns."""
    return click.option(
        name, *spelled, type=columns, metavar="COLUMN,…", multiple=True, required=required, help=help_text
    )


retain_option = click.option(
    "--retain", type=click.IntRange(min=0), default=0, show_default=True, help="Commits that can be undone."
)
max_rows_option = click.option(
    "--max-rows-per-file", type=click.IntRange(min=1), default=5_000_000, show_default=True, help="Of new files."
)
row_group_option = click.option(
    "--row-group-size", type=click.IntRange(min=1), default=500_000, show_default=True, help="Rows, of new files."
)
timeout_option = click.option(
    "--lock-timeout",
    type=click.FloatRange(min=0),
    default=LOCK_TIMEOUT,
    show_default=True,
    help="Seconds to wait for another writer.",
)


table_format_option = click.option(
    "--ignore-table-format",
    is_flag=True,
    help="Use TARGET as plain Parquet files although it was a Delta Lake, Iceberg, Hudi, Lance or DuckLake table.",
)


def open_filesystem(path: str, options: Sequence[tuple[str, str]]) -> Any:
    """Open the filesystem of a URL with storage options; None leaves that to merganser."""
    if not options or "://" not in path:
        return None
    return open_url(path, **{key: parse_value(value) for key, value in options})[0]


def parse_value(text: str) -> Any:
    """Take a value for what it would be in JSON, else for a text."""
    try:
        return load_json(text)
    except ValueError:
        return text


def pair(text: str) -> tuple[str, str]:
    """Take an option of the form `name=value`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        # Not quoted: it may be a secret.
        message = "it is not of the form name=value."
        raise click.BadParameter(message)
    return name, value


def columns(text: str) -> list[str]:
    """Take an option that names columns, with commas between them; it may be given several times as well."""
    names = _split_commas(text)
    if not all(names):
        message = f"{text!r} names no column between two commas."
        raise click.BadParameter(message)
    return names


def _split_commas(text: str) -> list[str]:
    """Take apart what has commas between it, or in it if it is quoted."""
    try:
        return [part.strip() for part in next(csv.reader([text], skipinitialspace=True))]
    except csv.Error as error:
        message = f"{text!r} cannot be taken apart at its commas: {error}. Put double quotes around each name."
        raise click.BadParameter(message) from error


def flatten_names(given: Sequence[Sequence[str]]) -> list[str]:
    """Put together what an option named in several places."""
    return [name for names in given for name in names]


def group_pairs(given: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Put together the values that an option gave to each name, several with commas between them."""
    found: dict[str, list[str]] = {}
    for name, text in given:
        found.setdefault(name, []).extend(_split_commas(text))
    return found


class _ConfirmationRequired(click.ClickException):
    exit_code = 2


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back; where nobody can answer, `--yes` has to."""
    if yes:
        return
    if not os.isatty(0):
        raise _ConfirmationRequired(f"{question} Nobody is there to answer; say --yes if that is meant.")
    click.confirm(to_printable(question), abort=True, err=True)
