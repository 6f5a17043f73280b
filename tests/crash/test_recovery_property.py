"""Random commits and merges with a fault anywhere, then recoveries that fail: the old state or the new one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.crash.faults import DatasetFolder, Fault, InjectedError, inject, make_dataset_folder

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.commit.history import HistoryFile, HistoryRecord
from merganser.core.commit.journal import Journal, Move, Removal
from merganser.core.storage.location import locate
from merganser.errors import DatasetMergeError

if TYPE_CHECKING:
    from collections.abc import Iterator

Content = dict[str, int]
NAMES = [f"{folder}{name}.parquet" for folder in ("", "day=a/", "day=b/deep/") for name in ("f", "g")]
modes = st.sampled_from(["before", "after", "dead"])
steps = st.integers(1, 40)
kinds = st.sampled_from(["local", "memory"])
PROPERTY = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses what is not yet on the disk, and waiting for the disk is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass(frozen=True)
class Commit:
    """Data files by name, each with one number in it, before and after; and the partition record, if it changes.

    With `retain` the commit is recorded in the history, and replaced files are retained.
    """

    old: Content
    new: Content
    record: dict[str, Any] | None
    retain: int = 0


contents = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=len(NAMES))
records = st.none() | st.just({"columns": {"day": "string"}, "schema": ""})
commits = st.builds(Commit, contents, contents.filter(bool), records, st.integers(0, 1))


@contextlib.contextmanager
def temporary_place(kind: str) -> Iterator[DatasetFolder]:
    with tempfile.TemporaryDirectory() as lake:
        place = make_dataset_folder(kind, lake)
        yield place
        place.discard()


def content(place: DatasetFolder) -> Content:
    return {rel: int(data) for rel, data in place.read_files().items()}


def commit(place: DatasetFolder, work: Commit, fault: Fault) -> None:
    """Publish files of one number each by a journal, with a fault on the way."""
    location = locate(place.path)
    store = location.store
    changed = {rel: number for rel, number in work.new.items() if work.old.get(rel) != number}
    found = {rel: store.get_identity(location.to_path(rel)) for rel in work.old}
    removals = [Removal(rel, identity) for rel, identity in found.items() if identity and rel not in work.new]
    allowed = contextlib.suppress(InjectedError, DatasetMergeError)
    with allowed, inject(fault), open_session(location) as session, session.staging() as staging:
        moves = []
        for rel, number in changed.items():
            path = staging.make_path()
            with store.create(path) as stream:
                stream.write(str(number).encode())
            moves.append(Move(path.rpartition("/")[2], rel, found.get(rel)))
        history = make_record(moves, removals) if work.retain else None
        session.commit(staging, Journal(moves, removals, work.record, history=history, retain=work.retain))
    place.expire_lease()


def make_record(moves: list[Move], removals: list[Removal]) -> HistoryRecord:
    """Describe a commit of files of one digit each."""
    written = [
        HistoryFile(path=move.target, operation="rewritten", rows=1, size=1, rows_before=1, size_before=1)
        if move.replaces
        else HistoryFile(path=move.target, operation="inserted", rows=1, size=1)
        for move in moves
    ]
    removed = [HistoryFile(path=removal.target, operation="removed", size_before=1) for removal in removals]
    return HistoryRecord(operation="merge", files=[*written, *removed])


def recover_after(place: DatasetFolder, faults: list[Fault]) -> None:
    """Recover with each fault in turn, and then without."""
    for fault in faults:
        with inject(fault), contextlib.suppress(InjectedError, DatasetMergeError):
            merganser.recover(place.path)
        place.expire_lease()
    merganser.recover(place.path)
    assert place.list_staging() == []
    assert merganser.recover(place.path) is False


@PROPERTY
@given(commits, st.builds(Fault, steps, modes), st.lists(st.builds(Fault, steps, modes), max_size=4), kinds)
def test_a_commit_is_atomic(work: Commit, fault: Fault, again: list[Fault], kind: str) -> None:
    # C3, C4, C7
    with temporary_place(kind) as place:
        for rel, number in work.old.items():
            place.write(rel, str(number).encode())
        commit(place, work, fault)
        if not fault.journaled:
            assert content(place) == work.old
        recover_after(place, again)
        assert content(place) == (work.new if fault.journaled else work.old)


@PROPERTY
@given(commits, st.builds(Fault, steps, modes), st.lists(st.builds(Fault, steps, modes), max_size=4), kinds)
def test_an_undo_is_atomic(work: Commit, fault: Fault, again: list[Fault], kind: str) -> None:
    # C3, C4, C7, M9
    with temporary_place(kind) as place:
        for rel, number in work.old.items():
            place.write(rel, str(number).encode())
        commit(place, replace(work, retain=1), Fault(at=0))
        with inject(fault), contextlib.suppress(InjectedError, DatasetMergeError):
            merganser.undo(place.path)
        place.expire_lease()
        if not fault.journaled:
            assert content(place) == work.new
        recover_after(place, again)
        assert content(place) == (work.old if fault.journaled else work.new)
        if not fault.journaled:
            merganser.undo(place.path)
            assert content(place) == work.old


rows = st.dictionaries(st.integers(0, 30), st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8)
strategies = st.sampled_from(["insert", "update", "upsert", "full_merge", "deduplicate"])


@pytest.mark.slow
@PROPERTY
@given(
    st.lists(rows, min_size=1, max_size=3),
    rows,
    strategies,
    st.builds(Fault, steps, modes),
    st.lists(st.builds(Fault, steps, modes), max_size=3),
    kinds,
)
def test_a_merge_is_atomic(
    files: list[dict[int, str]],
    source: dict[int, str],
    strategy: Any,
    fault: Fault,
    again: list[Fault],
    kind: str,
) -> None:
    # C4, C7, C3
    target = {100 * number + key: value for number, file in enumerate(files) for key, value in file.items()}
    with temporary_place(kind) as place:
        for number, file in enumerate(files):
            place.put(f"f{number}.parquet", [100 * number + key for key in file], "old")
        old = place.read_files()
        table = pa.table({"id": pa.array(source, pa.int64()), "v": list(source.values())})
        with inject(fault), contextlib.suppress(InjectedError, DatasetMergeError):
            merganser.merge(table, place.path, strategy, "id", max_rows_per_file=2)
        place.expire_lease()
        if not fault.journaled:
            assert place.read_files() == old
        recover_after(place, again)
        assert place.read_files() == old or fault.journaled
        found = {key: value for _, key, value in place.read_rows()}
        before = dict.fromkeys(target, "old")
        assert found == (merged(before, source, strategy) if fault.journaled else before)


def merged(target: dict[int, str], source: dict[int, str], strategy: str) -> dict[int, str]:
    if strategy == "insert":
        return source | target
    if strategy == "update":
        return {key: source.get(key, value) for key, value in target.items()}
    return dict(source) if strategy == "full_merge" else target | source
