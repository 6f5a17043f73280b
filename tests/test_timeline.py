"""Spans: what a thread does while it collects them, and what merges record."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged

import merganser
from merganser import LockTimeoutError
from merganser.core.storage.location import locate
from merganser.core.storage.lock import hold_lock
from merganser.core.storage.staging import choose_control_folder
from merganser.timeline import Span, Timeline, collect_spans, record_span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = pa.table({"id": [1, 2]})


def list_spans(timeline: Timeline) -> list[Span]:
    """The spans that were recorded, without the rest."""
    spans: list[Span]
    *spans, rest = timeline.summarise()["spans"]
    assert (rest.kind, rest.name, rest.count) == ("driver", "other work", 1)
    return spans


def test_spans_and_the_rest_add_up_to_the_seconds() -> None:
    began = time.monotonic()
    with collect_spans(began - 10) as timeline:
        time.sleep(0.02)
        with record_span("job", "read"):
            time.sleep(0.02)
        times = timeline.summarise()
    job, rest = times["spans"]
    assert 10 <= times["started"] < job.started
    assert job.seconds >= 0.02
    assert rest.seconds >= 0.02
    assert job.seconds + rest.seconds == pytest.approx(times["seconds"])
    assert times["seconds"] <= time.monotonic() - began


def test_spans_of_one_kind_and_name_are_added_up_in_the_order_of_their_starts() -> None:
    with collect_spans() as timeline:
        for kind, name in (("job", "b"), ("job", "a"), ("merge", "a"), ("job", "b")):
            with record_span(kind, name):  # type: ignore[arg-type]
                time.sleep(0.001)
    found = list_spans(timeline)
    assert [(span.kind, span.name, span.count) for span in found] == [
        ("job", "b", 2),
        ("job", "a", 1),
        ("merge", "a", 1),
    ]
    assert [span.started for span in found] == sorted(span.started for span in found)
    assert found[0].seconds >= 0.002


def test_a_span_within_another_is_part_of_it() -> None:
    with collect_spans() as timeline, record_span("commit", "outer"), record_span("job", "inner"):
        pass
    (span,) = list_spans(timeline)
    assert (span.name, span.count) == ("outer", 1)


def test_a_collector_within_another_takes_its_own_spans() -> None:
    with (
        collect_spans() as run,
        record_span("steps", "steps"),
        collect_spans(run.origin) as step,
        record_span("job", "inner"),
    ):
        pass
    assert [span.name for span in list_spans(run)] == ["steps"]
    assert [span.name for span in list_spans(step)] == ["inner"]


def test_threads_collect_apart_and_one_that_does_not_collect_records_nothing() -> None:
    def collect(name: str) -> list[Span]:
        with collect_spans() as timeline, record_span("job", name):
            time.sleep(0.005)
        return list_spans(timeline)

    def record() -> None:
        with record_span("job", "nobody"):
            pass

    with collect_spans() as outside, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(collect, "abcd"))
        pool.submit(record).result()
    assert [[span.name for span in spans] for spans in found] == [["a"], ["b"], ["c"], ["d"]]
    assert list_spans(outside) == []


def test_a_span_that_fails_is_recorded_too() -> None:
    with collect_spans() as timeline:
        with pytest.raises(KeyError), record_span("job", "failing"):
            raise KeyError
        with record_span("job", "next"):
            pass
    assert [span.name for span in list_spans(timeline)] == ["failing", "next"]


@contextmanager
def lock_held(path: str) -> Iterator[Event]:
    """Hold the lock of a dataset in another thread, until the event is set."""
    location, held, release = locate(path), Event(), Event()

    def hold() -> None:
        with hold_lock(location.store, choose_control_folder(location), path, 5):
            held.set()
            release.wait(10)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(hold)
        held.wait(5)
        try:
            yield release
        finally:
            release.set()
            done.result()


def merge(path: str, **options: Any) -> list[Span]:
    with collect_spans() as timeline:
        merganser.merge(ROWS, path, key_columns="id", engine="arrow", **options)
    return list_spans(timeline)


def test_a_merge_records_its_commit_and_no_wait_for_a_free_lock(tmp_path: Path) -> None:
    assert [(span.kind, span.name) for span in merge(str(tmp_path / "t"))] == [("commit", "commit")]


def test_a_merge_records_how_long_it_waits_for_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    merge(path)
    with lock_held(path) as release, ThreadPoolExecutor(1) as pool:
        merging = pool.submit(merge, path)
        time.sleep(0.2)
        release.set()
        waiting, commit = merging.result()
    assert (waiting.kind, waiting.name, commit.kind) == ("waiting", "lock", "commit")
    assert waiting.seconds >= 0.1


def test_a_merge_that_gives_up_waiting_records_it_and_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    merge(path)
    with (
        assert_unchanged(path),
        lock_held(path),
        collect_spans() as timeline,
        pytest.raises(LockTimeoutError),
    ):
        merganser.merge(ROWS, path, key_columns="id", engine="arrow", lock_timeout=0.05)
    assert [span.kind for span in list_spans(timeline)] == ["waiting"]
