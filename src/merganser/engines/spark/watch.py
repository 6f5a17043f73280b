"""How far a job of Spark's has come, told while it runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from merganser.core.progress import nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

_EVERY = 0.2


@contextmanager
def watched(spark: SparkSession, tasks: int, task_done: Callable[[], None]) -> Iterator[None]:
    """Tell of every task of the job that runs meanwhile, when it ends or, through Connect, when the job ends."""
    if task_done is nobody:
        yield
        return
    end = Event()
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(_watch, spark, tasks, task_done, end)
        try:
            yield
        finally:
            end.set()
    for _ in range(tasks - watch.result()):
        task_done()


def _watch(spark: SparkSession, tasks: int, task_done: Callable[[], None], end: Event) -> int:
    """Look again and again at the stage with so many tasks; of how many was told."""
    told = 0
    if is_remote():
        return told
    tracker = spark.sparkContext.statusTracker()
    while not end.wait(_EVERY):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = max((one.numCompletedTasks for one in stages if one is not None and one.numTasks == tasks), default=0)
        for _ in range(done - told):
            task_done()
        told = max(told, done)
    return told
