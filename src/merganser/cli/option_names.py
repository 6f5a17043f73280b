"""Errors of the library in the words of the shell: `order_by` becomes `--order-by`, `recover(path)` a command."""

from __future__ import annotations

import re
import shlex

import click

# Names of the library's parameters and functions that the command line spells in another way.
_ALIASES = {
    "partition_columns": "partition_by",
    "target_file_bytes": "target_file_mb",
    "filesystem": "storage_option",
    "column_types": "column_type",
    "null_values": "null_value",
}
_COMMANDS = {"write_dataset": "write"}
# Options of other commands that remedies name.
_OTHER_OPTIONS = {
    name: click.Option([f"--{name.replace('_', '-')}"])
    for name in ("retain", "mode", "add", "drop", "rename", "widen", "unify", "schema_mode")
}

_LITERAL = r"'[^']*'|\w+(?:\.\w+)*"
_MAPPING = r"\{[^{}]*\}"
_ARGUMENT = re.compile(rf"(?:([a-z_]+)=)?({_MAPPING}|{_LITERAL}|<[^>]*>)")
_PAIR = re.compile(r"'([^']*)': '([^']*)'")
_TOKENS = re.compile(
    # Calls are the only place where quoted text is translated: recover('lake/orders').
    r"(?:(?P<call>[Cc])all )?\b(?P<function>[a-z_]+)\((?P<arguments>(?:'[^']*'|[^()'])*)\)"
    # What the user or the data named stays: quoted text, lists of columns, example keys.
    r"|(?<!\w)'(?:\\.|[^'\\])*'(?!\w)|\"[^\"]*\"|[Cc]olumns[^.:]*: [^.]*|for example .*?(?=\. |$)"
    rf"|(?P<verb>\b(?:[Uu]se|[Pp]ass|[Ss]et|[Gg]ive|with|or) )(?P<option>[a-z_]+)=(?P<value>{_LITERAL})"
    r"|(?:^|(?<=\. ))(?P<subject>[a-z]+)(?= )"
    r"|(?<![\w./=-])(?P<name>[a-z]+(?:_[a-z]+)+)(?![\w/=(-]|\.\w)",
    re.DOTALL,
)


def name_options(message: str) -> str:
    """Spell the parameters and functions that a message names as the options and commands of the shell."""
    context = click.get_current_context()
    group = context.find_root().command
    commands = {name: name for name in group.list_commands(context)} if isinstance(group, click.Group) else {}
    commands |= _COMMANDS
    options = {one.name: one for one in context.command.params if isinstance(one, click.Option) and one.name}
    options |= {alias: options[name] for alias, name in _ALIASES.items() if name in options}

    def spell_option(name: str, value: str) -> str | None:
        option = (_OTHER_OPTIONS | options).get(name)
        if option is None:
            return None
        if value.startswith("{"):
            return " ".join(f"{option.opts[-1]} {shlex.quote('='.join(one))}" for one in _PAIR.findall(value))
        if value in {"True", "False"}:
            return next(iter(option.opts if value == "True" else option.secondary_opts), None)
        return f"{option.opts[-1]} {_quote(value)}"

    def spell_argument(name: str, value: str) -> str:
        return spell_option(name, value) or _quote(value)

    def replace(found: re.Match[str]) -> str:
        text = found[0]
        if found["function"] in commands:
            verb = {"C": "Run ", "c": "run "}.get(found["call"], "")
            words = [spell_argument(*one.groups("")) for one in _ARGUMENT.finditer(found["arguments"])]
            return " ".join([f"{verb}merganser {commands[found['function']]}", *words])
        if found["option"]:
            spelled = spell_option(found["option"], found["value"])
            return text if spelled is None else found["verb"] + spelled
        name = found["subject"] or found["name"]
        if name in options:
            return options[name].opts[-1]
        return f"merganser {_COMMANDS[name]}" if name in _COMMANDS else text

    return _TOKENS.sub(replace, message)


def _quote(value: str) -> str:
    """Write a Python literal as a word of the shell, and a placeholder such as `path` in capitals."""
    if value.startswith("'"):
        return shlex.quote(value[1:-1])
    return value if value[:1].isdigit() else value.strip("<>").replace(" ", "_").upper()
