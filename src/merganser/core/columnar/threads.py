"""Runs small tasks in threads, and a single one without, because starting a thread takes longer than a small file."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sized
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
TaskP = ParamSpec("TaskP")
# Row groups or files in work at a time, on which memory depends.
WORKERS = max(2, min(8, os.cpu_count() or 2))
READ_THREADS = 8
_WORK_THREADS = min(4, WORKERS)  # more than there are cores would only take turns
_WAIT_THRESHOLD_SECONDS = 0.0005  # a read from disk takes at least this long; one from the page cache a tenth of it
_WORK_THRESHOLD_SECONDS = 0.005  # work below this is not worth a thread
_MAX_SUBMISSIONS = 512  # a submission takes as long as a footer from the page cache
_MIN_SHARE_BYTES = 1 << 18  # columns of fewer bytes are not worth a thread


def map_in_threads(task: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    """Run a task that reads for each item, and return the results in the order of the items.

    Threads slow down small tasks that do not wait, so they are started after the first task that waits or works long.

    >>> map_in_threads(abs, [-1, 2])
    [1, 2]
    """
    results: list[ResultT] = []
    for number, item in enumerate(items, start=1):
        before, blocked, start = _measure_wait(), _count_blocks(), time.thread_time()
        results.append(task(item))
        waits = _measure_wait() - before > _WAIT_THRESHOLD_SECONDS and _count_blocks() != blocked
        works = time.thread_time() - start > _WORK_THRESHOLD_SECONDS
        if waits or works:
            left = items[number:]
            size = max(1, len(left) // _MAX_SUBMISSIONS)
            batches = [left[start : start + size] for start in range(0, len(left), size)]
            with open_pool(len(batches), _WORK_THREADS if works else READ_THREADS, "read") as pool:
                return [*results, *chain.from_iterable(pool.map(lambda batch: list(map(task, batch)), batches))]
    return results


def map_with_prefetch(
    task: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, name: str
) -> Generator[ResultT]:
    """Run a task for each item, a few ahead of the consumer, and yield the results in the order of the items.

    >>> list(map_with_prefetch(abs, [-1, 2], 2, "doctest"))
    [1, 2]
    """
    with open_pool(len(items) if isinstance(items, Sized) else workers, workers, name) as pool:
        pending: deque[Future[ResultT]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(task, item))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def balance_columns(sizes: Mapping[str, int], groups: int) -> list[list[str]]:
    """Divide columns, each group in order, into groups of about as many bytes, largest first, fewer for few bytes.

    >>> balance_columns({"a": 1 << 20, "b": 3 << 20, "c": 1 << 20}, 2)
    [['b'], ['a', 'c']]
    """
    groups = min(groups, len(sizes), 1 + sum(sizes.values()) // _MIN_SHARE_BYTES)
    members: list[set[str]] = [set() for _ in range(groups)]
    load = [(0, 0)] * groups
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        smallest = load.index(min(load))
        members[smallest].add(name)
        load[smallest] = load[smallest][0] + sizes[name], len(members[smallest])
    largest_first = sorted(range(groups), key=load.__getitem__, reverse=True)
    return [[name for name in sizes if name in members[group]] for group in largest_first]


def _measure_wait() -> float:
    """Return a clock that stands still while this thread works."""
    return time.perf_counter() - time.thread_time()


def _count_blocks() -> int:
    """Count how often this thread waited for something other than a processor, which threads cannot give it."""
    # Windows, which is refused with the reason once a dataset is named, has no such module.
    import resource  # noqa: PLC0415

    # macOS counts for the whole process only.
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def open_pool(tasks: int, workers: int, name: str) -> Executor:
    """Open a pool for so many tasks, without threads if only one task runs at a time."""
    threads = min(tasks, workers)
    return ThreadPoolExecutor(threads, thread_name_prefix=f"merganser-{name}") if threads > 1 else _InlineExecutor()


class _InlineExecutor(Executor):
    """Runs each task in the calling thread on submission, which raises the task's error."""

    def submit(self, task: Callable[TaskP, ResultT], /, *args: TaskP.args, **kwargs: TaskP.kwargs) -> Future[ResultT]:
        done: Future[ResultT] = Future()
        done.set_result(task(*args, **kwargs))
        return done
