"""`run`: a pipeline on Spark, from its TOML file to its reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from merganser.cli.command import CommandOutput, pair, say, shows_progress, wrap_command
from merganser.engines import load as load_extra
from merganser.errors import ConfigurationError
from merganser.pipeline.config.toml_file import load
from merganser.pipeline.report.files import write_report
from merganser.pipeline.report.terminal import report_lines

if TYPE_CHECKING:
    from merganser.cli.command import Pairs
    from merganser.pipeline.run_result import RunOutcome


@click.command()
@click.argument("file", metavar="PIPELINE.toml", type=click.Path())
@click.option(
    "--param",
    type=pair,
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of a parameter that the file declares; repeatable.",
)
@click.option("--master", help="Spark master: local[4], yarn, spark://…, sc://….  [default: local[*]]")
@click.option("--conf", type=pair, multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable.")
@click.option("--run-id", help="Name of this run.  [default: derived from the configuration and the input files]")
@click.option("--report", metavar="FOLDER", help="Folder for the reports.  [default: reports in the state folder]")
@wrap_command
def run(
    file: str, param: Pairs, master: str | None, conf: Pairs, run_id: str | None, report: str | None
) -> CommandOutput:
    """Run a pipeline from its TOML file, on Spark.

    If a step fails, the steps before it stay committed; run the same command again to complete the rest.
    """
    parameters = dict(param)
    pipeline = load(file, parameters)
    # Loaded here: a configuration is checked without Spark, and on machines that do not have it.
    open_session = load_extra("merganser.pipeline.runner.session", "open_session", "merganser[spark]")
    run_pipeline = load_extra("merganser.pipeline.runner.driver", "run", "merganser[spark]")
    is_shown = shows_progress()
    tell = say if is_shown else lambda _: None
    try:
        with open_session(pipeline.name, master, dict(conf), progress=is_shown) as spark:
            outcome: RunOutcome = run_pipeline(pipeline, spark=spark, parameters=parameters, run_id=run_id, say=tell)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, error.table, error.key, file) from error
    reports = write_report(outcome, report or f"{pipeline.state.rstrip('/')}/reports")
    lines = [*report_lines(outcome), "", *(f"report: {path}" for path in reports)]
    return CommandOutput({**outcome.to_dict(), "reports": reports}, lines)
