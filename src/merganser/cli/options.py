"""The command line's form of the declared options: how they are spelled, and what they are converted to."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import COLUMNS, combine, group_pairs, pair, parse_value
from merganser.core.model import option_types as types
from merganser.core.model.options import DECLARATIONS, Options, list_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from merganser.cli.command import Decorator
    from merganser.core.model.option_types import OptionType
    from merganser.core.model.options import Call

_DEFAULTS = {one.name: one.default for one in fields(Options)}
# The arguments of `click.option` for a type; other types take a string.
_SPELLINGS: dict[OptionType, dict[str, Any]] = {
    types.POSITIVE: {"type": click.IntRange(min=1), "show_default": True},
    types.COMMITS: {"type": click.IntRange(min=0), "show_default": True},
    types.SECONDS: {"type": click.FloatRange(min=0), "show_default": True},
    **dict.fromkeys((types.COLUMNS, types.SOME_COLUMNS, types.ORDER), COLUMNS),
    types.VALUES: {"type": pair, "metavar": "COLUMN=VALUE,…", "multiple": True},
    types.OPERATION_VALUES: {"type": pair, "metavar": "OPERATION=VALUE,…", "multiple": True},
}


def _parse_values(given: Any) -> dict[str, list[Any]]:
    return {name: [parse_value(text) for text in texts] for name, texts in group_pairs(given).items()}


# What a call gets for the value that click found.
_CONVERSIONS: dict[OptionType, Callable[[Any], Any]] = {
    **dict.fromkeys((types.COLUMNS, types.SOME_COLUMNS, types.ORDER), lambda given: given or None),
    types.VALUES: lambda given: group_pairs(given) or None,
    types.OPERATION_VALUES: lambda given: _parse_values(given) or None,
    types.AUDIT: lambda given: {"keys": True, None: False}.get(given, given),
}


def declared_option(name: str) -> Decorator:
    """Make the option of the command line for a declared one."""
    declared, default = DECLARATIONS[name], _DEFAULTS[name]
    flag = f"--{name.replace('_', '-')}"
    spelling: dict[str, Any] = {"default": None if default is False else default}
    if declared.type.choices:
        spelling |= {"type": click.Choice(declared.type.choices), "show_default": True}
    elif declared.type in (types.BOOLEAN, types.COMPARED_COLUMNS) and not default:
        spelling = {"is_flag": True}
    elif declared.type in (types.BOOLEAN, types.OPTIONAL_BOOLEAN):
        flag = f"{flag}/--no-{flag[2:]}"
    else:
        spelling |= _SPELLINGS.get(declared.type, {})
    help_text = declared.help or declared.description.replace("the source", "SOURCE").replace("the target", "TARGET")
    return click.option(flag, help=help_text, **spelling)


def declared_options(call: Call, without: Collection[str] = ()) -> Decorator:
    """Make all options of a call, or all but some, in the order of their declaration."""
    names = [name for name in list_options(call) if DECLARATIONS[name].has_flag and name not in without]
    return combine(*map(declared_option, names))


def to_arguments(call: Call, given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values that click found to the options of a call."""
    return {
        name: _CONVERSIONS.get(DECLARATIONS[name].type, lambda value: value)(given[name])
        for name in list_options(call)
        if name in given
    }


def _parse_as_of(_: click.Context, __: click.Parameter, given: str | None) -> str | int | None:
    """Read a number of commits; ids and times are longer."""
    return int(given) if given is not None and given.isdecimal() and len(given) < _DATE_DIGITS else given


_DATE_DIGITS = len("20250106")
_STATE_HELP = "the id of a commit, the number of commits to go back, or a time such as 2025-01-06T12:00 in UTC."
as_of_option = click.option(
    "--as-of", metavar="COMMIT", callback=_parse_as_of, help=f"A past state to read: {_STATE_HELP}"
)
since_option = click.option(
    "--since", metavar="COMMIT", callback=_parse_as_of, required=True, help=f"The state to compare with: {_STATE_HELP}"
)
retain_option = declared_option("retain")
max_rows_option = declared_option("max_rows_per_file")
row_group_option = declared_option("row_group_size")
timeout_option = declared_option("lock_timeout")
table_format_option = declared_option("ignore_table_format")
