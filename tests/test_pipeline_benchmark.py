"""The pipeline by hand does the same work as merganser, and the contest takes no wrong result."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import streaming
from benchmarks.by_hand import overwrite
from benchmarks.contest.by_hand import ByHand
from benchmarks.contest.contents import read_contents
from benchmarks.contest.feed import Feed, make_feed
from benchmarks.contest.ours import Merganser
from benchmarks.contest.run import Run, check_counts, compare_contents, report_lines
from benchmarks.digest import Digest
from benchmarks.watch import Peak, watch_processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTENTS = {"jobs": Digest(3, 10), "Job nodes": Digest(3, 20), "Job nodes, SQLite": Digest(3, 20)}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_pipeline_by_hand_has_the_same_result_as_merganser_also_when_a_day_is_run_again(
    tmp_path: Path, spark: Any, configured: Callable[..., None]
) -> None:
    configured({"spark.sql.session.timeZone": "UTC"})
    made = make_feed(tmp_path, 400)
    feed = Feed(made.folder, dict(list(made.days.items())[:2]))
    ours, hand = tmp_path / "ours", tmp_path / "hand"
    ours.mkdir()
    hand.mkdir()
    (ours / "feed").symlink_to(feed.folder, target_is_directory=True)
    merganser = Merganser(spark, ours, ExitStack())
    by_hand = ByHand(spark, feed.folder, hand, overwrite.Storage(spark, hand))
    for day in feed.days:
        merganser.run_day(day, again=False)
        by_hand.run_day(day, again=False)
    by_hand.run_day(day, again=True)
    found = {"merganser": read_contents(merganser, ours), "by hand": read_contents(by_hand, hand)}
    for name, contents in found.items():
        assert len(contents) == 9
        check_counts(name, contents, feed.expected_rows)
    compare_contents(found)


@pytest.mark.parametrize("name", CONTENTS)
def test_other_values_in_one_table_are_a_wrong_result(name: str) -> None:
    compare_contents({"merganser": CONTENTS, "delta": CONTENTS})
    wrong = {**CONTENTS, name: Digest(3, 99)}
    with pytest.raises(AssertionError, match="have different values"):
        compare_contents({"merganser": CONTENTS, "delta": wrong})


def test_a_missing_row_is_a_wrong_result_even_if_all_contenders_agree() -> None:
    expected = {"jobs": 3, "Job nodes": 3}
    check_counts("delta", CONTENTS, expected)
    with pytest.raises(AssertionError, match="delta: jobs has 3 rows, not 4"):
        check_counts("delta", CONTENTS, {**expected, "jobs": 4})


def test_the_table_has_the_ratio_of_each_day_and_of_all() -> None:
    ours = Run(
        5.0, (10.0, 4.0), (15.0, 6.0), Peak(java=2_000_000_000, python=500_000_000, written=50_000_000), CONTENTS
    )
    hand = replace(ours, days=(20.0, 5.0))
    lines = report_lines(["2026-01-05"], {"merganser": ours, "delta": hand})
    assert "| 2026-01-05, s | 10.0 | 20.0 | 0.50 |" in lines
    assert "| 2026-01-05 again, s | 4.0 | 5.0 | 0.80 |" in lines
    assert "| all days, s | 14.0 | 25.0 | 0.56 |" in lines
    assert "| processor, all days, s | 21.0 | 21.0 | 1.00 |" in lines
    assert "| peak of the JVM, MB | 2,000 | 2,000 | 1.00 |" in lines
    assert report_lines(["2026-01-05"], {"delta": hand})[2:4] == [
        "| start of Spark, s | 5.0 |",
        "| 2026-01-05, s | 20.0 |",
    ]


def test_a_stream_reads_the_feed_in_order_by_files_of_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "BATCH", 30)
    feed = make_feed(tmp_path, 100)
    assert streaming.cut_files(feed, tmp_path / "arrivals") == 12
    files = sorted((tmp_path / "arrivals").iterdir(), key=lambda file: file.stat().st_mtime)
    days = [(feed.folder / day / "postings-0000.json").read_bytes() for day in feed.days]
    assert b"".join(file.read_bytes() for file in files) == b"".join(days)
    assert [len(file.read_bytes().splitlines()) for file in files] == [30, 30, 30, 10] * 3


def test_memory_of_workers_is_counted_apart_from_that_of_the_driver() -> None:
    worker = "import time; held = b'x' * 90_000_000; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", worker]) as process, watch_processes(os.getpid()) as peak:
        end = time.monotonic() + 20
        while peak.workers < 90_000_000 and time.monotonic() < end:
            time.sleep(0.1)
        process.kill()
    assert 90_000_000 <= peak.workers < peak.python <= peak.all
