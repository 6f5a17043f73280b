"""Many small tasks at once, and a single one without a thread: starting one takes longer than a small file."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Given = ParamSpec("Given")
# How many row groups, or files, are worked on at a time; memory follows.
WORKERS = max(2, min(8, os.cpu_count() or 2))
_READS = 8
_WORKS = 4
# Seconds that a disk takes which has to look; what the system has in memory comes in a tenth of it.
_LONG = 0.0005
# Seconds of work that are worth a thread.
_MUCH = 0.005
# Bytes of columns that are not worth a thread.
_SMALL = 1 << 18


def in_threads(task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Run a task that reads for each item, and give the answers in the order of the items.

    While nothing has to be waited for, one thread is faster at small tasks than several, which get in each other's way;
    from the first task on that waits or has much to do, others are run at the same time.

    >>> in_threads(abs, [-1, 2])
    [1, 2]
    """
    answers: list[Answer] = []
    for number, item in enumerate(items, start=1):
        before, start = _waited(), time.thread_time()
        answers.append(task(item))
        waits, works = _waited() - before > _LONG, time.thread_time() - start > _MUCH
        if waits or works:
            with open_pool(len(items) - number, _WORKS if works else _READS, "read") as pool:
                return [*answers, *pool.map(task, items[number:])]
    return answers


def streamed(task: Callable[[Item], Answer], items: Sequence[Item], workers: int, name: str) -> Generator[Answer]:
    """Run a task for each item, a few ahead of whoever takes the answers, and give these in the order of the items.

    >>> list(streamed(abs, [-1, 2], 2, "doctest"))
    [1, 2]
    """
    with open_pool(len(items), workers, name) as pool:
        waiting: deque[Future[Answer]] = deque()
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


def shared_out(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Divide columns of so many bytes in parts of about the same size, heaviest first; few bytes in fewer parts.

    The order of the columns is kept in each.

    >>> shared_out({"a": 1 << 20, "b": 3 << 20, "c": 1 << 20}, 2)
    [['b'], ['a', 'c']]
    """
    parts = min(parts, len(sizes), 1 + sum(sizes.values()) // _SMALL)
    shares: list[set[str]] = [set() for _ in range(parts)]
    load = [(0, 0)] * parts
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        lightest = load.index(min(load))
        shares[lightest].add(name)
        load[lightest] = load[lightest][0] + sizes[name], len(shares[lightest])
    heaviest_first = sorted(range(parts), key=load.__getitem__, reverse=True)
    return [[name for name in sizes if name in shares[part]] for part in heaviest_first]


def _waited() -> float:
    """Tell a time that stands still while this thread works."""
    return time.perf_counter() - time.thread_time()


def open_pool(tasks: int, workers: int, name: str) -> Executor:
    """Open threads for so many tasks, or none where there is only one task at a time."""
    threads = min(tasks, workers)
    return ThreadPoolExecutor(threads, thread_name_prefix=f"merganser-{name}") if threads > 1 else _Here()


class _Here(Executor):
    """The thread that asks, which does each task when it is asked for; one that fails, fails there."""

    def submit(self, task: Callable[Given, Answer], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Answer]:
        done: Future[Answer] = Future()
        done.set_result(task(*args, **kwargs))
        return done
