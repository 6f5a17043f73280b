"""What `merganser demo` does: three days of job postings through a pipeline, then the third day again."""

from __future__ import annotations

import os
import sys
import time
import uuid
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from merganser.demo.feed import write_day
from merganser.graph import GraphDatabase
from merganser.pipeline.config.toml_file import load
from merganser.pipeline.report.files import write_report
from merganser.pipeline.report.terminal import report_lines
from merganser.pipeline.runner.driver import run
from merganser.pipeline.runner.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from merganser.pipeline.run_result import RunOutcome

FILE = Path(__file__).with_name("pipeline.toml")
FIRST_DAY = date(2026, 1, 5)
DAYS = 3


def main(folder: str, rows: int) -> None:
    """Write the feed into a folder and run its days; completed work of an earlier demo there is reused."""
    started = time.monotonic()
    days = [FIRST_DAY + timedelta(days=number) for number in range(DAYS)]
    for number, day in enumerate(days):
        if not os.path.isdir(f"{folder}/feed/{day}"):
            say(f"Writing the feed of {day}: {rows:,} job postings ...")
            # Renamed when it is complete, so that an interrupted demo leaves no half a day.
            write_day(f"{folder}/feed/.unfinished", day, rows, days_before=number)
            os.rename(f"{folder}/feed/.unfinished/{day}", f"{folder}/feed/{day}")
    say("Starting Spark on this machine ...")
    with open_session("demo", None, {}, progress=sys.stderr.isatty()) as spark:
        for number, day in enumerate(days, 1):
            say(f"\nDay {number}, {day}:")
            print("\n".join(report_lines(run_day(spark, folder, day))))
        before = list_data_files(folder)
        say(f"\nDay {DAYS} again, under a new run id:")
        print("\n".join(report_lines(run_day(spark, folder, days[-1], f"again-{uuid.uuid4().hex[:12]}"))))
        changed = before.items() ^ list_data_files(folder).items()
        print(f"\nData files that day {DAYS} changed when it was run again: {len(changed)} of {len(before)}.")
    describe_results(folder)
    print(f"\nThe demo took {time.monotonic() - started:.0f} seconds.")


def run_day(spark: SparkSession, folder: str, day: date, run_id: str | None = None) -> RunOutcome:
    """Run the pipeline for one day."""
    parameters = {"folder": os.path.abspath(folder), "date": day.isoformat()}
    outcome = run(load(FILE, parameters), spark=spark, parameters=parameters, run_id=run_id, say=say)
    write_report(outcome, f"{folder}/reports")
    return outcome


def list_data_files(folder: str) -> dict[str, tuple[int, int]]:
    """Map every Parquet file of the datasets and the graph to its size and modification time."""
    datasets = ("jobs", "companies", "graph", "quarantine")
    files = [file for name in datasets for file in (Path(folder) / name).rglob("*.parquet")]
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def describe_results(folder: str) -> None:
    """Print how many nodes the graph has, and which folder holds what."""
    with GraphDatabase(f"{folder}/graph.db") as graph:
        counts = {type_: graph.nodes(type_).count() for type_ in ("Job", "Company")}
        print("\nThe graph has " + ", ".join(f"{count:,} {type_} nodes" for type_, count in counts.items()) + ".")
    print("\nWhere to look:")
    for name, text in {
        "jobs": "Parquet dataset partitioned by country; any Parquet reader can read it",
        "companies": "the companies, stored the same way",
        "graph": "nodes and edges as Parquet",
        "graph.db": "the same graph in SQLite; merganser.GraphDatabase opens it",
        "quarantine": "rows that failed a rule, each with the rule and its source file",
        "reports": "an HTML page and a JSON file for each run",
    }.items():
        print(f"  {os.path.join(folder, name):24} {text}")


def say(text: str) -> None:
    """Print a progress message at once."""
    print(text, flush=True)
