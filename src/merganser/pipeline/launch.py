"""A pipeline from its TOML file to its reports, with a Spark session of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from merganser.engines import load as load_extra
from merganser.errors import ConfigurationError
from merganser.pipeline.config.toml_file import load
from merganser.pipeline.report.files import write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from merganser.pipeline.run_result import RunOutcome


def launch(
    file: str,
    parameters: Mapping[str, str],
    *,
    master: str | None,
    settings: Mapping[str, str],
    run_id: str | None,
    report: str | None,
    say: Callable[[str], None],
) -> tuple[RunOutcome, list[str]]:
    """Run a pipeline and write its reports, whose places come with the outcome."""
    try:
        pipeline = load(file, parameters)
        # Configurations are checked without Spark, and on machines without it.
        run = load_extra("merganser.pipeline.runner.driver", "run", "merganser[spark]")
        open_session = load_extra("merganser.pipeline.runner.session", "open_session", "merganser[spark]")
        with open_session(pipeline.name, master, settings, progress=sys.stderr.isatty()) as spark:
            outcome = run(pipeline, spark=spark, parameters=parameters, run_id=run_id, say=say)
    except ConfigurationError as error:
        if error.file:
            raise
        raise ConfigurationError(error.message, error.table, error.key, file) from error
    return outcome, write_report(outcome, report or f"{pipeline.state.rstrip('/')}/reports")
