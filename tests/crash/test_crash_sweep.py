"""A fault at every single step of every kind of change: afterwards the dataset is the old one or the new one."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.crash.faults import (
    SCENARIOS,
    DatasetFolder,
    Fault,
    InjectedError,
    inject,
    make_dataset_folder,
    simulate_other_disk,
)
from tests.crash.killed import list_killed_steps, was_journaled

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.commit.journal import Journal, Move, Removal
from merganser.core.storage.location import locate
from merganser.errors import DatasetMergeError, StagingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.faults import Mode

Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses what is not yet on the disk, and waiting for the disk is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass(frozen=True)
class Outcome:
    """What an undisturbed change does to a dataset."""

    old: Rows
    new: Rows
    steps: int


def undisturbed(name: str, kind: str, lake: str) -> Outcome:
    place = make_dataset_folder(kind, lake)
    SCENARIOS[name].setup(place)
    old = place.read_rows()
    with inject(Fault(at=0)) as fault:
        SCENARIOS[name].change(place)
    new = place.read_rows()
    assert old != new
    assert fault.journaled
    return Outcome(old, new, fault.steps)


def failing(name: str, place: DatasetFolder, fault: Fault) -> dict[str, bytes]:
    """Run a change with a fault in it, which may fail in the ways that are allowed only; gives the bytes before it."""
    SCENARIOS[name].setup(place)
    before = place.read_files()
    refusal = ""
    with inject(fault):
        try:
            SCENARIOS[name].change(place)
        except (InjectedError, StagingError):
            pass
        except DatasetMergeError as error:
            refusal = str(error)
    if refusal:
        # Publication may fail only after the journal, and the error reports that.
        assert fault.journaled or "not known whether the commit happened" in refusal, refusal
        assert "recover(path)" in refusal
    if fault.fired and not fault.journaled:
        assert place.read_files() == before  # C7
        if fault.mode == "before":
            assert place.list_staging() == []  # C7
    place.expire_lease()
    return before


def settled(place: DatasetFolder, outcome: Outcome, old_bytes: dict[str, bytes], *, committed: bool) -> None:
    """Assert that a dataset is whole, and exactly the old one or the new one."""
    assert place.list_staging() == []
    if committed:
        assert place.read_rows() == outcome.new
    else:
        assert place.read_files() == old_bytes
    strangers = [rel for rel in place.read_files() if not rel.endswith((".parquet", ".crc"))]
    assert strangers == []
    assert not [path for path in place.list_control_files() if path.endswith(".parquet")]
    after = place.read_files()
    assert merganser.recover(place.path) is False
    assert place.read_files() == after


def sweep(name: str, kind: str, lake: str, mode: Mode) -> Iterator[tuple[DatasetFolder, Fault, dict[str, bytes]]]:
    """Fail one step after another, until a run comes through."""
    for step in itertools.count(1):
        place, fault = make_dataset_folder(kind, lake), Fault(step, mode)
        old = failing(name, place, fault)
        yield place, fault, old
        place.discard()
        if not fault.fired:
            return


FAULTS: list[tuple[str, str, Mode]] = [
    ("upsert", "local", "before"),
    ("upsert", "local", "after"),
    ("upsert", "memory", "after"),
    ("full_merge", "local", "dead"),
    ("full_merge", "memory", "dead"),
    ("empty", "local", "dead"),
    ("first_load", "local", "dead"),
    ("partitioned_load", "memory", "dead"),
    ("partitioned_merge", "local", "after"),
    ("partitioned_merge", "memory", "before"),
    ("linked", "local", "dead"),
    ("append", "memory", "dead"),
    ("overwrite", "local", "dead"),
    ("partitioned_overwrite", "local", "dead"),
    ("partitioned_overwrite", "memory", "dead"),
    ("retained_merge", "local", "dead"),
    ("retained_merge", "memory", "dead"),
    ("undo", "local", "before"),
    ("undo", "local", "dead"),
    ("undo", "memory", "dead"),
    ("dedupe", "local", "before"),
    ("dedupe", "local", "dead"),
    ("dedupe", "memory", "dead"),
    ("alter", "local", "before"),
    ("alter", "memory", "dead"),
    ("evolve", "local", "after"),
    ("evolve", "memory", "dead"),
]
QUICK = [("upsert", "local", "before"), ("first_load", "local", "dead"), ("append", "memory", "dead")]


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [pytest.param(*fault, marks=() if fault in QUICK else pytest.mark.slow) for fault in FAULTS],
)
def test_a_fault_at_any_step_leaves_the_old_dataset_or_the_new_one(name: str, kind: str, mode: Mode, lake: str) -> None:
    # C3, C4, C7, E1, E2, E3
    outcome = undisturbed(name, kind, lake)
    seen: set[bool] = set()
    for place, fault, old in sweep(name, kind, lake, mode):
        with simulate_other_disk():
            merganser.recover(place.path)
        settled(place, outcome, old, committed=fault.journaled)
        seen.add(fault.journaled)
    assert seen == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_what_was_recovered_can_be_undone(kind: str, lake: str) -> None:
    # C4, M9: one record for each commit, and everything retained that an undo needs
    for place, fault, old in sweep("retained_merge", kind, lake, "dead"):
        merganser.recover(place.path)
        assert len(merganser.history(place.path)) == 1 + fault.journaled
        undone = merganser.undo(place.path)
        assert undone.strategy == ("full_merge" if fault.journaled else "update")
        if fault.journaled:
            assert data_files(place.read_files()) == data_files(old)
        merganser.vacuum(place.path)
        assert not [path for path in place.list_control_files() if "/retained/" in path]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_feed_lists_exactly_the_changes(kind: str, lake: str) -> None:
    # C3, C4, C7, M8, R5
    outcome = undisturbed("fed", kind, lake)
    for place, fault, old in sweep("fed", kind, lake, "dead"):
        merganser.recover(place.path)
        settled(place, outcome, old, committed=fault.journaled)
        feed = [
            pq.ParquetFile(pa.BufferReader(data)).read()
            for data in DatasetFolder(f"{place.path}-feed").read_files().values()
        ]
        told = sorted((row["id"], row["merge_action"]) for table in feed for row in table.to_pylist())
        all_of_it = [(1, "update"), (2, "delete"), (11, "update"), (99, "insert")]
        assert told == (all_of_it if fault.journaled else [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_an_undo_is_recorded_once_and_removes_its_batch(kind: str, lake: str) -> None:
    # C4, M9
    for place, fault, _ in sweep("undo", kind, lake, "after"):
        merganser.recover(place.path)
        told = [record.operation for record in merganser.history(place.path)]
        assert told == (["undo", "merge"] if fault.journaled else ["merge"])
        # On an object store, an empty object is left.
        size = fsspec.core.url_to_fs(place.path)[0].size
        batches = [path for path in place.list_control_files() if "/batches/" in path and size(path)]
        assert bool(batches) is not fault.journaled


def data_files(found: dict[str, bytes]) -> dict[str, bytes]:
    return {rel: data for rel, data in found.items() if rel.endswith(".parquet")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("full_merge", "local"), ("partitioned_merge", "memory"), ("evolve", "local")],
)
def test_the_next_merge_recovers_as_well(name: str, kind: str, lake: str) -> None:
    # C4, C7: running the same change again gives the new dataset, whatever the first run left
    outcome = undisturbed(name, kind, lake)
    for place, _, _ in sweep(name, kind, lake, "dead"):
        SCENARIOS[name].change(place)
        assert place.read_rows() == outcome.new
        assert place.list_staging() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("full_merge", "local"), ("partitioned_overwrite", "memory"), ("undo", "local")]
)
def test_recovery_may_fail_at_every_step_too(name: str, kind: str, lake: str) -> None:
    # C4: recovery dies at its first step, then at its second, and so on, over what the earlier ones left
    outcome = undisturbed(name, kind, lake)
    for place, fault, old in sweep(name, kind, lake, "dead"):
        if not fault.fired:
            continue
        for step in itertools.count(1):
            again = Fault(step, "dead")
            with inject(again):
                try:
                    merganser.recover(place.path)
                except (InjectedError, DatasetMergeError):
                    place.expire_lease()
            if not again.fired:
                break
        settled(place, outcome, old, committed=fault.journaled)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_recovery_of_each_state_may_fail_at_each_step(kind: str, lake: str) -> None:
    # C4: every pair of a step of a commit after its journal and a step of the recovery
    pairs = 0
    for step in itertools.count(1):
        for second in itertools.count(1):
            place, fault, again = make_dataset_folder(kind, lake), Fault(step, "dead"), Fault(second, "dead")
            _commit_by_hand(place, fault)
            if fault.journaled:
                with inject(again):
                    try:
                        merganser.recover(place.path)
                    except (InjectedError, DatasetMergeError):
                        place.expire_lease()
                merganser.recover(place.path)
                assert place.read_rows() == [("", 0, "new"), ("", 20, "new")]
            else:
                merganser.recover(place.path)
                assert place.read_rows() == [("", 0, "old"), ("", 10, "old")]
            assert place.list_staging() == []
            place.discard()
            pairs += 1
            if not again.fired:
                break
        if not fault.fired:
            break
    assert pairs > 100


def _commit_by_hand(place: DatasetFolder, fault: Fault) -> None:
    """Replace one file, add one and remove one: the smallest commit that has everything."""
    place.put("f0.parquet", [0], "old")
    place.put("f1.parquet", [10], "old")
    location = locate(place.path)
    store = location.store
    f0, f1 = (store.get_identity(location.to_path(f"f{number}.parquet")) for number in range(2))
    assert f1 is not None
    with (
        contextlib.suppress(InjectedError, DatasetMergeError),
        open_session(location) as session,
        session.staging() as staging,
    ):
        for name, key in (("0.staged", 0), ("1.staged", 20)):
            DatasetFolder(f"{place.protocol}{staging.folder}").put(name, [key], "new")
        moves = [Move("0.staged", "f0.parquet", f0), Move("1.staged", "g.parquet")]
        with inject(fault):
            session.commit(staging, Journal(moves, [Removal("f1.parquet", f1)]))
            staging.remove()
    place.expire_lease()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("full_merge", "before"),
        ("overwrite", "after"),
        ("undo", "before"),
        ("dedupe", "after"),
        ("alter", "before"),
        ("evolve", "after"),
    ],
)
def test_a_process_that_ends_at_any_step_leaves_a_dataset_to_recover(name: str, mode: Mode, lake: str) -> None:
    # C4, C5: real processes, ended without any cleanup, in the merge and again in the recovery after it
    outcome = undisturbed(name, "local", lake)
    folder = os.path.join(lake, "killed")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.crash.killed", name, mode, folder]
    subprocess.run(command, cwd=root, check=True, timeout=100)
    steps = list_killed_steps(folder)
    assert len(steps) > 10
    committed = []
    for step in steps:
        place = DatasetFolder(f"{folder}/{step}/t")
        committed.append(was_journaled(folder, step))
        merganser.recover(place.path)
        assert place.list_staging() == [], step
        assert place.read_rows() == (outcome.new if committed[-1] else outcome.old), step
        assert merganser.recover(place.path) is False
    assert set(committed) == {False, True}
    assert committed == sorted(committed)
