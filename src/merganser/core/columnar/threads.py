"""Many small tasks at once, and a single one without a thread: starting one takes longer than a small file."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
TaskP = ParamSpec("TaskP")
# How many row groups, or files, are worked on at a time; memory follows.
WORKERS = max(2, min(8, os.cpu_count() or 2))
_READ_THREADS = 8
_WORK_THREADS = 4
# Seconds that a disk takes which has to look; what the system has in memory comes in a tenth of it.
_WAIT_THRESHOLD_SECONDS = 0.0005
# Seconds of work that are worth a thread.
_WORK_THRESHOLD_SECONDS = 0.005
# Bytes of columns that are not worth a thread.
_MIN_SHARE_BYTES = 1 << 18


def map_in_threads(task: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    """Run a task that reads for each item, and give the answers in the order of the items.

    While nothing has to be waited for, one thread is faster at small tasks than several, which get in each other's way;
    from the first task on that waits or has much to do, others are run at the same time.

    >>> map_in_threads(abs, [-1, 2])
    [1, 2]
    """
    answers: list[ResultT] = []
    for number, item in enumerate(items, start=1):
        before, start = _measure_wait(), time.thread_time()
        answers.append(task(item))
        waits, works = (
            _measure_wait() - before > _WAIT_THRESHOLD_SECONDS,
            time.thread_time() - start > _WORK_THRESHOLD_SECONDS,
        )
        if waits or works:
            with open_pool(len(items) - number, _WORK_THREADS if works else _READ_THREADS, "read") as pool:
                return [*answers, *pool.map(task, items[number:])]
    return answers


def map_with_prefetch(
    task: Callable[[ItemT], ResultT], items: Sequence[ItemT], workers: int, name: str
) -> Generator[ResultT]:
    """Run a task for each item, a few ahead of whoever takes the answers, and give these in the order of the items.

    >>> list(map_with_prefetch(abs, [-1, 2], 2, "doctest"))
    [1, 2]
    """
    with open_pool(len(items), workers, name) as pool:
        waiting: deque[Future[ResultT]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(task, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def balance_columns(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Divide columns of so many bytes in parts of about the same size, heaviest first; few bytes in fewer parts.

    The order of the columns is kept in each.

    >>> balance_columns({"a": 1 << 20, "b": 3 << 20, "c": 1 << 20}, 2)
    [['b'], ['a', 'c']]
    """
    parts = min(parts, len(sizes), 1 + sum(sizes.values()) // _MIN_SHARE_BYTES)
    shares: list[set[str]] = [set() for _ in range(parts)]
    load = [(0, 0)] * parts
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        lightest = load.index(min(load))
        shares[lightest].add(name)
        load[lightest] = load[lightest][0] + sizes[name], len(shares[lightest])
    heaviest_first = sorted(range(parts), key=load.__getitem__, reverse=True)
    return [[name for name in sizes if name in shares[part]] for part in heaviest_first]


def _measure_wait() -> float:
    """Tell a time that stands still while this thread works."""
    return time.perf_counter() - time.thread_time()


def open_pool(tasks: int, workers: int, name: str) -> Executor:
    """Open threads for so many tasks, or none where there is only one task at a time."""
    threads = min(tasks, workers)
    return ThreadPoolExecutor(threads, thread_name_prefix=f"merganser-{name}") if threads > 1 else _InlineExecutor()


class _InlineExecutor(Executor):
    """The thread that asks, which does each task when it is asked for; one that fails, fails there."""

    def submit(self, task: Callable[TaskP, ResultT], /, *args: TaskP.args, **kwargs: TaskP.kwargs) -> Future[ResultT]:
        done: Future[ResultT] = Future()
        done.set_result(task(*args, **kwargs))
        return done
