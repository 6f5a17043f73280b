"""The commands by name. A command is loaded when it is run, so that help comes at once."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

# The module of each command, and its help in a line.
COMMANDS = {
    "merge": ("merganser.cli.change", "Merge keyed rows into a dataset."),
    "plan": ("merganser.cli.change", "Show what a merge would do to each file, and why."),
    "write": ("merganser.cli.change", "Append rows to a dataset, or overwrite it."),
    "inspect": ("merganser.cli.look", "Describe a dataset, and what could be better about it."),
    "history": ("merganser.cli.look", "List the commits into a dataset."),
    "compact": ("merganser.cli.tidy", "Put small files of a dataset together."),
    "dedupe": ("merganser.cli.tidy", "Remove rows whose key another row has."),
    "undo": ("merganser.cli.keep", "Take the last commit back."),
    "recover": ("merganser.cli.keep", "Finish or remove what a killed merge left behind."),
    "vacuum": ("merganser.cli.keep", "Remove retained files that no undo needs."),
    "graph": ("merganser.cli.graph", "Merge into a property graph, ask it and look at it."),
    "run": ("merganser.cli.pipeline", "Run a pipeline from its TOML file, on Spark."),
    "demo": ("merganser.cli.pipeline", "Run three days of a made-up feed through the pipeline, on Spark."),
}


class _Commands(click.Group):
    """Commands that are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  they are always the same
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        if cmd_name not in COMMANDS:
            return None
        return cast("click.Command", getattr(import_module(COMMANDS[cmd_name][0]), cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="merganser")
def app() -> None:
    """Idempotent MERGE of keyed rows into plain Parquet datasets.

    Exit codes: 0 done; 1 refused or failed, and nothing changed; 2 wrong usage; 3 a commit is unfinished, run recover.
    """
