"""Batch ids: what was committed under an id is not done again (M7)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, open_dataset_io, read_rows, snapshot

from merganser import recover
from merganser.core.commit import commit
from merganser.core.commit.batches import find_committed_batch, make_batch
from merganser.core.commit.commit import open_session
from merganser.core.commit.journal import Journal, Move, Removal
from merganser.core.dataset.listing import list_files
from merganser.core.storage.location import locate
from merganser.core.storage.staging import open_staging
from merganser.errors import (
    DatasetMergeError,
    InvalidArgumentError,
    UnreadableFileError,
)

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


def pairs(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids)})


def control(lake: str) -> dict[str, bytes]:
    """Everything in the control folder but the lock."""
    return {name: data for name, data in snapshot(f"{lake}/.t.merganser").items() if name != "lock"}


# M7
def test_a_batch_that_was_committed_is_not_merged_again(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1, 2], "old"), f"{lake}/t", key_columns="id", batch_id="monday")
    first = io.merge(pairs([2, 3], "new"), f"{lake}/t", key_columns="id", batch_id="tuesday / 2", audit=True)
    assert (first.batch_id, first.replayed, first.updated, first.inserted) == ("tuesday / 2", False, 1, 1)
    io.merge(pairs([2], "corrected"), f"{lake}/t", key_columns="id")
    before, kept = snapshot(f"{lake}/t"), control(lake)
    again = io.merge(pairs([2, 3], "new"), f"{lake}/t", key_columns="id", batch_id="tuesday / 2")
    assert (snapshot(f"{lake}/t"), control(lake)) == (before, kept)
    assert (again.replayed, again.stats) == (True, first.stats)
    assert (again.rewritten_files, again.inserted_files) == (first.rewritten_files, first.inserted_files)
    assert again.files == [file for file in first.files if file.operation != "preserved"]
    third = io.merge(pairs([2, 3], "newer"), f"{lake}/t", key_columns="id", batch_id="wednesday")
    assert (third.replayed, third.updated) == (False, 2)


# M7
def test_a_batch_that_changed_nothing_is_recorded_too(io: AnyDatasetIO, lake: str) -> None:
    os.makedirs(f"{lake}/t")
    nothing = io.merge(pairs([1], "late"), f"{lake}/t", "update", "id", batch_id="b")
    assert (nothing.updated, nothing.replayed) == (0, False)
    io.merge(pairs([1], "first"), f"{lake}/t", key_columns="id")
    assert io.merge(pairs([1], "late"), f"{lake}/t", "update", "id", batch_id="b").replayed
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["first"]


# M7
@pytest.mark.parametrize("folder_stays", [False, True])
def test_batch_records_are_discarded_with_their_dataset(io: AnyDatasetIO, lake: str, folder_stays: bool) -> None:
    io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id="monday")
    io.merge(pairs([2], "b"), f"{lake}/t", key_columns="id", batch_id="tuesday")
    assert find_committed_batch(f"{lake}/t", "monday") is not None
    shutil.rmtree(f"{lake}/t")
    if folder_stays:
        Path(f"{lake}/t").mkdir()
    assert find_committed_batch(f"{lake}/t", "monday") is None
    again = [
        io.merge(pairs([id_], value), f"{lake}/t", key_columns="id", batch_id=batch)
        for id_, value, batch in ((1, "a", "monday"), (2, "b", "tuesday"))
    ]
    assert [(result.replayed, result.inserted) for result in again] == [(False, 1), (False, 1)]
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1, 2]


# M7
def test_batches_outlive_rows_that_were_deleted(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id="monday")
    io.merge(pairs([1], "a"), f"{lake}/t", "delete", "id", batch_id="tuesday")
    assert read_rows(io, f"{lake}/t") == []
    assert io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id="monday").replayed


# M7
def test_a_batch_that_failed_may_be_merged_again(io: AnyDatasetIO, lake: str) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(DatasetMergeError):
        io.merge(pairs([1, 1], "twice"), f"{lake}/t", key_columns="id", batch_id="b")
    assert not io.merge(pairs([1], "once"), f"{lake}/t", key_columns="id", batch_id="b").replayed


# M7
def test_a_batch_that_was_interrupted_while_published_is_recorded(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    io.merge(pairs([1], "old"), f"{lake}/t", key_columns="id")

    def broken(*_: Any) -> None:
        message = "the disk is gone"
        raise OSError(message)

    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", broken)
        with pytest.raises(DatasetMergeError, match="was journaled"):
            io.merge(pairs([1, 2], "new"), f"{lake}/t", key_columns="id", batch_id="b")
    assert recover(f"{lake}/t")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["new", "new"]
    before = snapshot(f"{lake}/t")
    assert io.merge(pairs([1, 2], "new"), f"{lake}/t", key_columns="id", batch_id="b").replayed
    assert snapshot(f"{lake}/t") == before


# M7
@pytest.mark.parametrize("batch_id", ["", 7, b"b"])
def test_an_id_is_a_string(io: AnyDatasetIO, lake: str, batch_id: Any) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(InvalidArgumentError, match="batch_id"):
        io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id=batch_id)


# M7
def test_a_damaged_record_is_named_with_the_remedy(io: AnyDatasetIO, lake: str) -> None:
    io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id="b")
    (record,) = (Path(lake) / ".t.merganser" / "batches").iterdir()
    record.write_text("{")
    with assert_unchanged(f"{lake}/t"), pytest.raises(UnreadableFileError, match="'b' may be merged again"):
        io.merge(pairs([1], "a"), f"{lake}/t", key_columns="id", batch_id="b")


# M7, C5
@pytest.mark.parametrize("moves", [True, False])
def test_a_journal_that_was_written_too_late_is_ignored(lake: str, moves: bool) -> None:
    io, path = open_dataset_io("arrow"), f"{lake}/t"
    result = io.merge(pairs([1, 2], "old"), path, key_columns="id")
    io.write_dataset(pairs([3], "old"), path)
    location = locate(path)
    one, other = list_files(location)
    with open_session(location) as session, open_staging(location, session.control) as staging:
        # Another writer took this one for dead and removed what it had staged, and then its journal arrived.
        moved = [Move("a.staged", one.rel, one.identity), Move("b.staged", "part-new.parquet")] if moves else []
        journal = Journal(moved, [Removal(other.rel, other.identity)], batch=make_batch("b", result))
        location.store.write_small(staging.journal, journal.to_json())
    before = snapshot(path)
    assert recover(path)
    assert snapshot(path) == before
    assert not io.merge(pairs([1], "new"), path, key_columns="id", batch_id="b").replayed
