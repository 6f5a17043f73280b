"""What all commands share: output, messages, exit codes and common options.

The result goes to standard output, as text or as JSON alone; messages go to standard error.
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
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import pyarrow as pa

from merganser.cli.option_names import name_options
from merganser.core.commit.commit import has_pending_commit
from merganser.core.storage.location import locate, open_url
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import MerganserError, TargetPathError
from merganser.printable import CONTROL, escape_controls, mask_credentials, to_printable
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from merganser.core.storage.location import Location

    Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
    # The values of a repeated option of the form name=value.
    Pairs: TypeAlias = Sequence[tuple[str, str]]

FAILED, UNFINISHED = 1, 3
_QUIET = "merganser.quiet"
_TARGET = "merganser.target"
_COLOURED = re.compile("(\x1b\\[[0-9]+m[█▒·✕]\x1b\\[0m)")
_UNESCAPED = re.compile(f"(?!\\n){CONTROL.pattern}")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The result of a command: lines for people, plain values for programs."""

    values: Any
    lines: Iterable[str]


def say(text: str) -> None:
    """Print a message to standard error."""
    click.echo(to_printable(text), err=True)


def wrap_command(work: Callable[..., CommandOutput]) -> Callable[..., None]:
    """Add the common options to a command, print its result, and turn errors into messages and exit codes.

    A command that changes a dataset names that argument `target`, or calls `name_target`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @click.option("--quiet", is_flag=True, help="Print errors and warnings only, and JSON if --json is given.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(work)
    def command(*, as_json: bool, quiet: bool, debug: bool, **arguments: Any) -> None:
        click.get_current_context().meta[_QUIET] = quiet
        try:
            output = work(**arguments)
        except click.ClickException as error:
            if as_json:
                _print_error(error, to_printable(error.format_message()), error.exit_code)
            raise
        except (MerganserError, OSError, pa.ArrowException, KeyboardInterrupt, click.Abort) as error:
            if debug:
                raise
            named = click.get_current_context().meta.get(_TARGET)
            sys.exit(_report_failure(error, arguments | ({"target": named} if named else {}), as_json=as_json))
        if as_json or not quiet:
            _print([_to_json(output.values)] if as_json else map(_escape_line, output.lines))

    return command


def name_target(target: str) -> None:
    """Name the dataset that a command changes, where it is not an argument."""
    click.get_current_context().meta[_TARGET] = target


def shows_progress() -> bool:
    """Whether a command shows its progress: standard error is a terminal, and `--quiet` is not given."""
    is_quiet = click.get_current_context().meta.get(_QUIET)
    return not is_quiet and sys.stderr is not None and sys.stderr.isatty()


def _print(lines: Iterable[str]) -> None:
    """Print lines; a closed pipe or a full disk does not make a finished command fail."""
    try:
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"The command succeeded, but its output cannot be written: {error}.")
        # Python would flush again at exit, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _escape_line(text: str) -> str:
    """Escape control characters in a line, except the colours of a plan's cells."""
    pieces = _COLOURED.split(mask_credentials(text))
    return "".join(piece if at % 2 else escape_controls(piece) for at, piece in enumerate(pieces))


def _to_json(values: Any) -> str:
    text = json.dumps(_to_json_value(values), indent=2, ensure_ascii=False, allow_nan=False)
    # json.dumps escapes only the first 32 characters. The others occur in strings only, where \\u means the same.
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _to_json_value(value: Any) -> Any:
    """Convert a value to JSON types: times to ISO 8601, bytes to hexadecimal, NaN and infinities to their names."""
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
    message = to_printable(_format_error(error))
    if code == UNFINISHED:
        message = (
            f"{message}\nA commit is unfinished. The next merge completes it, and so does: merganser recover "
            f"{shlex.quote(mask_credentials(arguments['target']))}"
        )
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        message = f"{message} Nothing was changed."
    say(f"Error: {message}")
    if as_json:
        _print_error(error, message, code)
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
    """Check whether a commit waits for recovery; wrong arguments and lock timeouts are not about that."""
    if isinstance(error, ValueError | TypeError | TimeoutError):
        return False
    try:
        return has_pending_commit(locate_target(arguments["target"], arguments.get("storage_option", ())))
    except (KeyError, MerganserError, OSError):
        return False


def locate_target(target: str, options: Pairs) -> Location:
    """Locate a dataset."""
    return locate(target, open_filesystem(target, options))


def check_exists(target: str, options: Pairs) -> None:
    """Refuse a path that has neither a dataset nor a control folder."""
    location = locate_target(target, options)
    if all(location.store.get_path_type(path) is None for path in (location.root, choose_control_folder(location))):
        raise TargetPathError(f"There is no dataset at {target}. Check the path.")


def storage_option() -> Decorator:
    """Add the options of a remote filesystem, as `key=value`."""
    help_text = "Option of the fsspec filesystem of a URL: endpoint_url, key, secret, … Repeatable."
    return click.option("--storage-option", type=pair, multiple=True, metavar="KEY=VALUE", help=help_text)


def columns_option(name: str, *spelled: str, help_text: str, required: bool = False) -> Decorator:
    """Add an option that takes column names."""
    return click.option(name, *spelled, **COLUMNS, required=required, help=help_text)


def open_filesystem(path: str, options: Pairs) -> Any:
    """Open the filesystem of a URL with storage options; None: the default one."""
    if not options or "://" not in path:
        return None
    return open_url(path, **{key: parse_value(value) for key, value in options})[0]


def parse_value(text: str) -> Any:
    """Parse a value as JSON; what is not JSON is a string."""
    try:
        return load_json(text)
    except ValueError:
        return text


def pair(text: str) -> tuple[str, str]:
    """Parse an option of the form `name=value`."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        # Not quoted: it may be a secret.
        raise click.BadParameter("it does not have the form name=value.")
    return name, value


def columns(text: str) -> list[str]:
    """Parse column names separated by commas."""
    names = _split_commas(text)
    if not all(names):
        raise click.BadParameter(f"{text!r} has an empty column name.")
    return names


def _split_commas(text: str) -> list[str]:
    """Split at commas outside of double quotes."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]
    except csv.Error as error:
        message = f"{text!r} cannot be split at its commas: {error}. Put double quotes around each name."
        raise click.BadParameter(message) from error


def flatten_names(given: Sequence[Sequence[str]]) -> list[str]:
    """Join the names of a repeated option."""
    return [name for names in given for name in names]


# The arguments of `click.option` for column names; the command gets one list of them.
COLUMNS: dict[str, Any] = {
    "type": columns,
    "metavar": "COLUMN,…",
    "multiple": True,
    "callback": lambda _context, _option, given: flatten_names(given),
}


def combine(*decorators: Decorator) -> Decorator:
    """Combine decorators; the first one is applied last."""
    return lambda work: functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), work)


def group_pairs(given: Pairs) -> dict[str, list[str]]:
    """Collect the comma-separated values of each name of a repeated option."""
    found: dict[str, list[str]] = {}
    for name, text in given:
        found.setdefault(name, []).extend(_split_commas(text))
    return found


class _ConfirmationRequired(click.ClickException):
    exit_code = 2


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal, require `--yes`."""
    if yes:
        return
    if not os.isatty(0):
        raise _ConfirmationRequired(f"{question} There is no terminal to answer on; pass --yes to confirm.")
    click.confirm(to_printable(question), abort=True, err=True)
