"""Run a pipeline from the command line: `python -m merganser.pipeline jobs.toml --param date=2026-01-02`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from merganser.errors import MerganserError
from merganser.pipeline.launch import launch
from merganser.pipeline.report.terminal import report_lines
from merganser.printable import escape_controls, to_printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline that the arguments name; 0 if it ran, 1 if it was refused or failed."""
    given = _make_parser().parse_args(arguments)
    try:
        outcome, places = launch(
            given.file,
            dict(given.param),
            master=given.master,
            settings=dict(given.conf),
            run_id=given.run_id,
            report=given.report,
            say=_say,
        )
    except MerganserError as error:
        if given.debug:
            raise
        _say(f"{type(error).__name__}: {error}")
        return 1
    lines = [*report_lines(outcome), "", *(f"report: {place}" for place in places)]
    print("\n".join(map(escape_controls, lines)))  # noqa: T201 - the answer
    return 0


def _say(text: str) -> None:
    print(to_printable(text), file=sys.stderr, flush=True)  # noqa: T201 - told while it runs


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m merganser.pipeline",
        description="Run a pipeline: raw files in; merged Parquet datasets and a merged graph out.",
    )
    parser.add_argument("file", help="the pipeline's TOML file")
    parser.add_argument(
        "--param", type=_parse_pair, action="append", default=[], metavar="NAME=VALUE", help="a parameter; repeatable"
    )
    parser.add_argument("--master", help="where Spark runs: local[4], yarn, spark://…, sc://…; default local[*]")
    parser.add_argument(
        "--conf", type=_parse_pair, action="append", default=[], metavar="KEY=VALUE", help="a Spark setting; repeatable"
    )
    parser.add_argument("--run-id", help="the name of this run; default: made of the configuration and the files")
    parser.add_argument("--report", metavar="FOLDER", help="where reports go; default: reports in the state folder")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        message = f"{text!r} is not NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value


if __name__ == "__main__":
    sys.exit(main())
