"""The demo's pipeline by merganser and by hand: `python -m benchmarks.pipeline FOLDER [--rows N]`.

Three days of postings are generated in FOLDER, unless they exist. Each contender runs them one after the other and the
third one again, in one process with one Spark session. By hand means Delta Lake's MERGE, or Parquet folders that are
overwritten, and sqlite3: see `benchmarks/by_hand`. Both lakes must hold the same rows, nodes, edges and quarantined
rows. With `--large`, one large day goes through merganser twice: see `benchmarks/pipeline_large.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import pipeline_large
from benchmarks.contest import CONTENDERS
from benchmarks.contest.feed import make_feed
from benchmarks.contest.run import hold_contest

ROWS = 100_000


def main() -> None:
    """Run the contest, or the large day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the feed, the lakes, reports and logs")
    parser.add_argument("--rows", type=int, help=f"a day; default {ROWS:,}, with --large {pipeline_large.ROWS:,}")
    hand = [name for name in CONTENDERS if name != "merganser"]
    parser.add_argument("--contender", choices=hand, default="delta", help="the tables of the pipeline by hand")
    parser.add_argument("--only", choices=["merganser", "by-hand"], help="run one of both")
    parser.add_argument("--large", action="store_true", help="run one large day twice, by merganser alone")
    parser.add_argument("--pipeline", type=Path, default=pipeline_large.PIPELINE, help="with --large: the pipeline")
    parser.add_argument("--feed-only", action="store_true", help="generate the feed and stop")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.large:
        rows = arguments.rows or pipeline_large.ROWS
        pipeline_large.run_twice(folder, rows, arguments.pipeline, feed_only=arguments.feed_only)
        return
    feed = make_feed(folder, arguments.rows or ROWS)
    if arguments.feed_only:
        return
    chosen = {"merganser": ["merganser"], "by-hand": [arguments.contender]}
    contenders = chosen.get(arguments.only, ["merganser", arguments.contender])
    hold_contest(folder, feed, contenders)


if __name__ == "__main__":
    main()
