"""The commands of `merganser`."""

from __future__ import annotations

import click

from merganser.cli.group import LazyGroup

COMMANDS = {
    "merge": ("merganser.cli.dataset.write:merge", "Merge keyed rows into a dataset."),
    "plan": ("merganser.cli.dataset.write:plan", "Show what a merge would do to each file, and why."),
    "sql": ("merganser.cli.dataset.sql:sql", "Run a MERGE statement."),
    "write": ("merganser.cli.dataset.write:write", "Append rows to a dataset, or overwrite it."),
    "show": ("merganser.cli.dataset.show:show", "Show rows of a dataset."),
    "changes": (
        "merganser.cli.dataset.show:changes",
        "Show the rows that changed since a commit.",
    ),
    "snapshot": (
        "merganser.cli.dataset.snapshot:snapshot",
        "Print a folder with one state of a dataset.",
    ),
    "inspect": ("merganser.cli.dataset.inspect:inspect", "Describe a dataset and suggest improvements."),
    "history": ("merganser.cli.dataset.inspect:history", "List the commits to a dataset."),
    "alter": ("merganser.cli.dataset.alter:alter", "Add, drop, rename and widen columns of a dataset, in one commit."),
    "compact": ("merganser.cli.dataset.maintenance:compact", "Rewrite small files into fewer large ones."),
    "dedupe": ("merganser.cli.dataset.maintenance:dedupe", "Remove rows with duplicate keys."),
    "undo": ("merganser.cli.dataset.recovery:undo", "Undo the last commit."),
    "recover": ("merganser.cli.dataset.recovery:recover", "Complete or roll back an interrupted commit."),
    "vacuum": ("merganser.cli.dataset.recovery:vacuum", "Remove retained files that undo no longer needs."),
    "graph": ("merganser.cli.graph.commands:graph", "Merge into a property graph, query it and draw it."),
    "run": ("merganser.cli.pipeline:run", "Run a pipeline from its TOML file, on Spark."),
    "demo": ("merganser.demo.command:demo", "Run a pipeline over three days of synthetic job postings, on Spark."),
}


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="merganser")
def app() -> None:
    """Idempotent MERGE of keyed rows into plain Parquet datasets.

    Exit codes: 0 success; 1 refused or failed, nothing changed; 2 wrong usage; 3 a commit is unfinished: run recover.
    """
