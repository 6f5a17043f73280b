"""Run a pipeline from the command line: `python -m merganser.pipeline jobs.toml --param date=2026-01-02`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from merganser.core.errors import ConfigurationError, MerganserError
from merganser.engines import load as load_extra
from merganser.pipeline.report import write_report
from merganser.pipeline.terminal import report_lines
from merganser.pipeline.toml_file import load

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline that the arguments name; 0 if it ran, 1 if it was refused or failed."""
    given = _parser().parse_args(arguments)
    try:
        parameters = dict(given.param)
        pipeline = load(given.file, parameters)
        # Configurations are checked without Spark, and on machines without it.
        run = load_extra("merganser.pipeline.driver", "run", "merganser[spark]")
        open_session = load_extra("merganser.pipeline.session", "open_session", "merganser[spark]")
        with open_session(pipeline.name, given.master, dict(given.conf), progress=sys.stderr.isatty()) as spark:
            outcome = run(pipeline, spark=spark, parameters=parameters, run_id=given.run_id, say=_say)
        places = write_report(outcome, given.report or f"{pipeline.state.rstrip('/')}/reports")
    except MerganserError as error:
        if given.debug:
            raise
        if isinstance(error, ConfigurationError) and not error.file:
            error = ConfigurationError(error.message, error.table, error.key, given.file)
        _say(f"{type(error).__name__}: {error}")
        return 1
    print("\n".join([*report_lines(outcome), "", *(f"report: {place}" for place in places)]))  # noqa: T201 - the answer
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - told while it runs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m merganser.pipeline",
        description="Run a pipeline: raw files in; merged Parquet datasets and a merged graph out.",
    )
    parser.add_argument("file", help="the pipeline's TOML file")
    parser.add_argument(
        "--param", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="a parameter; repeatable"
    )
    parser.add_argument("--master", help="where Spark runs: local[4], yarn, spark://…, sc://…; default local[*]")
    parser.add_argument(
        "--conf", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="a Spark setting; repeatable"
    )
    parser.add_argument("--run-id", help="the name of this run; default: made of the configuration and the files")
    parser.add_argument("--report", metavar="FOLDER", help="where reports go; default: reports in the state folder")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        message = f"{text!r} is not NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value


if __name__ == "__main__":
    sys.exit(main())
