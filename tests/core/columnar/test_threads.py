"""Reads that have to be waited for are waited for together; others are done where they are asked for."""

from __future__ import annotations

import threading
import time

import pytest

from merganser.core.columnar.threads import map_in_threads, open_pool


def test_reads_that_do_not_wait_are_done_in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine any task may wait for its turn.
    monkeypatch.setattr("merganser.core.columnar.threads._WAIT_THRESHOLD_SECONDS", 60.0)
    assert map_in_threads(lambda _: threading.get_ident(), range(5)) == [threading.get_ident()] * 5


def test_reads_that_wait_are_done_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=30)

    def read(number: int) -> int:
        if number == 0:
            time.sleep(0.02)
        else:
            together.wait()
        return number

    assert map_in_threads(read, range(5)) == list(range(5))


def test_one_task_has_no_thread_and_fails_where_it_is_asked_for() -> None:
    with open_pool(1, 8, "test") as pool:
        assert pool.submit(threading.get_ident).result() == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0)
    with open_pool(2, 8, "test") as pool:
        assert pool.submit(threading.get_ident).result() != threading.get_ident()
