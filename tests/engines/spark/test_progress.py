"""While executors write staged files, those are counted."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from merganser.core.commit.commit import open_session
from merganser.core.storage.location import locate
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.progress import report_staged_files


def test_new_files_are_reported_when_published(spark: Any, lake: str) -> None:
    heard: list[float] = []
    with (
        open_session(locate(f"{lake}/t")) as session,
        session.staging(lambda: heard.append(time.monotonic())) as staging,
    ):
        orders = [["sh", "-c", f"sleep 0.7; touch {staging.folder}/{number}"] for number in range(6)]
        with report_staged_files(staging, 7):
            run_tasks(spark, subprocess.call, orders)
            end = time.monotonic()
    # One was never seen, and is reported at the end.
    assert len(heard) == 7
    assert heard[0] < end - 0.5
    assert heard[-1] >= end


def test_a_callback_that_fails_fails_the_job(spark: Any, lake: str) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with open_session(locate(f"{lake}/t")) as session, session.staging() as staging:
        orders = [["true"]] * 6
        with pytest.raises(KeyboardInterrupt), report_staged_files(replace(staging, on_file_done=stop), 6):
            run_tasks(spark, subprocess.call, orders)
        with report_staged_files(staging, 6):
            assert run_tasks(spark, subprocess.call, orders) == [0] * 6
