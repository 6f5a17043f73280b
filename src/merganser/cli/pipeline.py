"""`run` and `demo`: pipelines on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.cli.command import CommandOutput, pair, say, wrap_command
from merganser.engines import load
from merganser.errors import MerganserError
from merganser.pipeline.launch import launch
from merganser.pipeline.report.terminal import report_lines

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("file", metavar="PIPELINE.toml", type=click.Path())
@click.option("--param", type=pair, multiple=True, metavar="NAME=VALUE", help="A parameter; repeatable.")
@click.option("--master", help="Where Spark runs: local[4], yarn, spark://…, sc://…; default local[*].")
@click.option("--conf", type=pair, multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@click.option("--run-id", help="The name of this run; default: made of the configuration and the files.")
@click.option("--report", metavar="FOLDER", help="Where reports go; default: reports in the state folder.")
@wrap_command
def run(
    file: str,
    param: Sequence[tuple[str, str]],
    master: str | None,
    conf: Sequence[tuple[str, str]],
    run_id: str | None,
    report: str | None,
) -> CommandOutput:
    """Run a pipeline from its TOML file, on Spark.

    Where a step fails, those before it are done; the same command does the rest.
    """
    outcome, places = launch(
        file, dict(param), master=master, settings=dict(conf), run_id=run_id, report=report, say=say
    )
    lines = [*report_lines(outcome), "", *(f"report: {place}" for place in places)]
    return CommandOutput({**outcome.to_dict(), "reports": places}, lines)


@click.command()
@click.argument("folder", default="demo", type=click.Path())
@click.option("--rows", type=click.IntRange(min=1), default=100_000, show_default=True, help="Postings a day.")
def demo(folder: str, rows: int) -> None:
    """Run three days of a made-up feed through the pipeline, on Spark.

    Everything is written into FOLDER.
    """
    try:
        load("merganser.demo.story", "main", "merganser[spark]")(folder, rows)
    except MerganserError as error:
        raise click.ClickException(str(error)) from error
