"""Many small reads at once, for storage that answers slowly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_READS = 8


def in_threads(task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Run a task for each item, and give the answers in the order of the items.

    >>> in_threads(abs, [-1, 2])
    [1, 2]
    """
    with ThreadPoolExecutor(_READS, thread_name_prefix="merganser-read") as pool:
        return list(pool.map(task, items))
