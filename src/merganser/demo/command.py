"""The command `demo` of the command line."""

from __future__ import annotations

import click

from merganser.engines import load
from merganser.errors import MerganserError


@click.command()
@click.argument("folder", default="demo", type=click.Path())
@click.option("--rows", type=click.IntRange(min=1), default=100_000, show_default=True, help="Job postings per day.")
def demo(folder: str, rows: int) -> None:
    """Run a pipeline over three days of synthetic job postings, on Spark.

    Writes the feed, the datasets, the graph and the reports to FOLDER, by default ./demo.
    """
    try:
        load("merganser.demo.story", "main", "merganser[spark]")(folder, rows)
    except MerganserError as error:
        raise click.ClickException(str(error)) from error
