"""While a job of Spark's runs, its tasks are counted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from merganser.core.progress import nobody
from merganser.engines.spark.run import spread
from merganser.engines.spark.watch import watched


def test_tasks_are_told_of_when_they_end(spark: Any) -> None:
    heard: list[float] = []
    with watched(spark, 6, lambda: heard.append(time.monotonic())):
        spread(spark, time.sleep, [0.7] * 6)
        end = time.monotonic()
    assert len(heard) == 6
    assert heard[0] < end - 0.5


def test_a_listener_that_fails_fails_the_job(spark: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watched(spark, 6, stop):
        spread(spark, time.sleep, [0.5] * 6)
    with watched(spark, 6, nobody):
        assert spread(spark, time.sleep, [0.0]) == [None]
