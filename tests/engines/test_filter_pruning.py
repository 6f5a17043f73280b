"""P1, P2: filters of keys pass over row groups that bounds cannot rule out; whatever becomes of them, no row does."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import decide_here, open_dataset_io, put, read_rows, snapshot
from tests.values import PLAIN, build, cells

from merganser.core.dataset import file_statistics as summary
from merganser.core.merge import filter_pruning as sift
from merganser.core.storage.local import LocalStore
from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support import AnyDatasetIO

    from merganser.core.model.strategy import MergeStrategy

PASSED_OVER = "no source key passes the filter of its keys"
FILES = 6


@pytest.fixture(autouse=True)
def small_and_young() -> Iterator[None]:
    """Make filters of small files, at once."""
    with (
        mock.patch.multiple(sift, MIN_TOTAL_ROWS=1, MIN_FILE_ROWS=1),
        mock.patch.object(summary, "SETTLE_NANOSECONDS", 0),
    ):
        yield


def name(number: int) -> str:
    """Return a key that looks random."""
    return f"{random.Random(number).getrandbits(64):016x}"


def table(numbers: Sequence[int], value: str = "old") -> pa.Table:
    names = pa.array([name(number) for number in numbers], pa.string())
    return pa.table({"id": names, "v": pa.array([value] * len(numbers), pa.string())})


def make(lake: str) -> str:
    """Write files of two row groups, in each of which any key might be by its bounds."""
    for number in range(FILES):
        put(f"{lake}/t/f{number}.parquet", table(range(100 * number, 100 * number + 100)), row_group_size=50)
    return f"{lake}/t"


def filters(lake: str) -> list[str]:
    folder = f"{lake}/.t.merganser/{sift.FILTER_FOLDER}"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def list_actions(io: AnyDatasetIO, batch: pa.Table, path: str) -> list[tuple[str, str]]:
    return [(file.action, file.reason) for file in io.plan(batch, path, "upsert", "id").files[:FILES]]


def test_a_merge_stores_filters_of_files_without_a_match(io: AnyDatasetIO, lake: str) -> None:
    # P1
    path = make(lake)
    result = decide_here(io).merge(table([205, 9_001], "new"), path, "upsert", "id")
    assert (result.updated, result.inserted) == (1, 1)
    assert len(filters(lake)) == FILES - 1
    found = list_actions(io, table([310, 9_002], "later"), path)
    rewritten = ("rewrite", "it holds matched rows")
    assert found == [("preserve", PASSED_OVER)] * 3 + [rewritten] + [("preserve", PASSED_OVER)] * 2
    assert io.plan(table([310]), path, "upsert", "id").files[3].candidate_groups == 1
    before = filters(lake)
    io.merge(table([310, 9_002], "later"), path, "upsert", "id")
    # That of the file which changed is gone; the one that changed before has one now.
    assert len({*filters(lake)} & {*before}) == FILES - 2
    assert len(filters(lake)) == FILES - 1
    expected = {row["id"]: row["v"] for row in table(range(600)).to_pylist()}
    expected |= {name(205): "new", name(9_001): "new", name(310): "later", name(9_002): "later"}
    assert {row["id"]: row["v"] for row in read_rows(io, path)} == expected


def test_a_plan_writes_nothing_and_makes_no_mistake(io: AnyDatasetIO, lake: str) -> None:
    path = make(lake)
    before = snapshot(lake)
    assert [action for action, _ in list_actions(io, table([205, 9_001]), path)] == ["preserve"] * 2 + ["rewrite"] + [
        "preserve"
    ] * 3
    assert snapshot(lake) == before


def test_keys_that_are_everywhere_have_no_filters_made(io: AnyDatasetIO, lake: str) -> None:
    path = make(lake)
    with mock.patch.object(sift, "encode_filters", side_effect=AssertionError):
        result = io.merge(table(range(0, 600, 50), "new"), path, "upsert", "id")
    assert result.updated == 12
    assert filters(lake) == []


def test_a_large_source_uses_no_key_filters(io: AnyDatasetIO, lake: str) -> None:
    path = make(lake)
    with mock.patch.object(sift, "MAX_SOURCE_KEYS", 1):
        assert io.merge(table([1, 9_001]), path, "upsert", "id").inserted == 1
    assert filters(lake) == []


def test_every_way_to_lose_a_filter_costs_no_row(io: AnyDatasetIO, lake: str) -> None:
    # P1
    path = make(lake)
    decide_here(io).merge(table([9_001]), path, "upsert", "id")
    folder = f"{lake}/.t.merganser/{sift.FILTER_FOLDER}"
    one, two, three, four, five, six = (f"{folder}/{name}" for name in filters(lake))
    shutil.copy(one, two)
    os.remove(three)
    with open(four, "r+b") as stream:
        stream.truncate(100)
    os.remove(five)
    os.mkdir(five)
    with open(six, "wb"):
        pass
    result = io.merge(table(range(0, 600, 7), "new"), path, "upsert", "id")
    assert (result.updated, result.inserted) == (86, 0)


def test_another_key_has_filters_of_its_own(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    for number in range(4):
        ids = range(50 * number, 50 * number + 50)
        put(f"{path}/f{number}.parquet", pa.table({"a": [name(one) for one in ids], "b": [name(-one) for one in ids]}))
    io.merge(pa.table({"a": ["x"], "b": ["y"]}), path, "upsert", "a")
    io.merge(pa.table({"a": ["x"], "b": ["z"]}), path, "upsert", ["a", "b"])
    io.merge(pa.table({"a": ["w"], "b": ["w"]}), path, "upsert", "b")
    for keys in ("a", "b", ["a", "b"]):
        source = pa.table({"a": [name(7), name(120)], "b": [name(-7), name(-120)]})
        assert io.plan(source, path, "upsert", keys).updated == 2
    mixed = pa.table({"a": [name(7)], "b": [name(-8)]})
    assert io.plan(mixed, path, "upsert", ["a", "b"]).inserted == 1


@pytest.mark.parametrize("tagged", [False, True])
def test_filters_are_stored_if_the_storage_reports_file_versions(
    io: AnyDatasetIO, tagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    if tagged:
        listed = MemoryFileSystem.ls

        def ls(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> Any:
            found = listed(self, path, detail=detail, **options)
            return [
                {**one, "ETag": str(one["created"])} if isinstance(one, dict) and "created" in one else one
                for one in found
            ]

        monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    root = f"/sift-{os.getpid()}-{id(io)}"
    for number in range(FILES):
        with memory.open(f"{root}/t/f{number}.parquet", "wb") as stream:
            pq.write_table(table(range(100 * number, 100 * number + 100)), stream)
    io.merge(table([9_001]), f"{root}/t", "upsert", "id", filesystem=memory)
    kept = memory.exists(f"{root}/.t.merganser/{sift.FILTER_FOLDER}")
    assert kept == tagged
    assert not kept or len(memory.ls(f"{root}/.t.merganser/{sift.FILTER_FOLDER}")) == FILES
    found = io.plan(table([150, 9_002]), f"{root}/t", "upsert", "id", filesystem=memory).files
    assert [file.reason for file in found[:FILES]].count(PASSED_OVER) == FILES - 1


@settings(max_examples=60)
@given(data=st.data())
def test_keys_of_every_type_are_found_with_filters_as_without(data: st.DataObject) -> None:
    io = open_dataset_io("arrow")
    kinds = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=2))
    keys = [f"key {number}" for number in range(len(kinds))]

    def draw(count: int) -> pa.Table:
        columns = [data.draw(st.lists(st.none() | cells(kind), min_size=count, max_size=count)) for kind in kinds]
        return pa.table([build(values, kind) for values, kind in zip(columns, kinds, strict=True)], keys)

    files = [draw(data.draw(st.integers(0, 6))) for _ in range(3)]
    with tempfile.TemporaryDirectory() as lake:
        path = f"{lake}/t"
        for number, part in enumerate(files):
            put(f"{path}/f{number}.parquet", part, row_group_size=2)
        attempt(io, draw(2), path, keys)
        known = pa.concat_tables(files)
        some = data.draw(st.lists(st.integers(0, max(0, len(known) - 1)), max_size=4)) if len(known) else []
        source = pa.concat_tables([*(known.slice(one, 1) for one in some), draw(2)])
        told = [plan_of(io, source, path, keys)]
        with mock.patch.object(sift, "MAX_SOURCE_KEYS", 0):
            told.append(plan_of(io, source, path, keys))
    assert told[0] == told[1]


def attempt(io: AnyDatasetIO, source: pa.Table, path: str, keys: list[str]) -> None:
    """Merge rows, whose keys may be refused."""
    with suppress(MerganserError):
        io.merge(source, path, "deduplicate", keys)


def plan_of(io: AnyDatasetIO, source: pa.Table, path: str, keys: list[str]) -> tuple[Any, ...]:
    """Return what would happen, or what is refused."""
    try:
        plan = io.plan(source, path, "deduplicate", keys)
    except MerganserError as error:
        return type(error), str(error)
    return plan.inserted, plan.updated, [file.action for file in plan.files]


def test_keys_are_found_in_files_that_store_them_in_another_type(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    for number, kind in enumerate([pa.decimal256(20, 2), *[pa.decimal128(20, 2)] * 3]):
        prices = pa.array([Decimal(one) / 4 for one in range(100 * number, 100 * number + 100)]).cast(kind)
        put(f"{path}/f{number}.parquet", pa.table({"id": prices, "v": ["old"] * 100}))
    source = pa.table({"id": pa.array([Decimal("98.25"), Decimal("1000.25")], pa.decimal128(20, 2)), "v": ["new"] * 2})
    for _ in range(2):
        plan = io.plan(source, path, "upsert", "id")
        assert (plan.updated, plan.inserted) == (1, 1)
        io.merge(source.slice(1), path, "upsert", "id")
        source = source.set_column(0, "id", pa.array([Decimal("98.25"), Decimal("2000.25")], pa.decimal128(20, 2)))


def test_a_folder_of_filters_that_cannot_be_read_costs_no_row(lake: str) -> None:
    path, io = make(lake), open_dataset_io("arrow")
    io.merge(table([9_001]), path, "upsert", "id")

    def names(self: LocalStore, folder: str) -> list[str]:
        if folder.endswith(sift.FILTER_FOLDER):
            raise PermissionError
        return listed(self, folder)

    listed = LocalStore.list_names
    with mock.patch.object(LocalStore, "list_names", names):
        plan = io.plan(table([7, 9_002]), path, "upsert", "id")
    assert (plan.updated, plan.inserted) == (1, 1)


STEPS = st.tuples(
    st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True),
    st.sampled_from(["upsert", "insert", "update", "delete", "full_merge"]),
    st.sampled_from(["keep", "remove", "swap", "cut"]),
)


@settings(max_examples=25)
@given(
    files=st.lists(st.lists(st.integers(0, 40), max_size=8, unique=True), min_size=1, max_size=4),
    steps=st.lists(STEPS, max_size=4),
)
def test_merges_with_filters_and_without_come_out_the_same(
    files: list[list[int]], steps: list[tuple[list[int], MergeStrategy, str]]
) -> None:
    io = open_dataset_io("arrow")
    with tempfile.TemporaryDirectory() as lake:
        for folder in ("with", "without"):
            taken: set[int] = set()
            for number, ids in enumerate(files):
                part = table([one for one in ids if one not in taken])
                put(f"{lake}/{folder}/t/f{number}.parquet", part, row_group_size=2)
                taken |= {*ids}
        for turn, (ids, strategy, trouble) in enumerate(steps):
            source = table(ids, f"turn {turn}")
            source = source.select(["id"]) if strategy == "delete" else source
            results = [io.merge(source, f"{lake}/with/t", strategy, "id").stats]
            with mock.patch.object(sift, "MAX_SOURCE_KEYS", 0):
                results.append(io.merge(source, f"{lake}/without/t", strategy, "id").stats)
            assert results[0] == results[1]
            assert read_rows(io, f"{lake}/with/t") == read_rows(io, f"{lake}/without/t")
            disturb(f"{lake}/with", trouble)


def disturb(lake: str, trouble: str) -> None:
    """Let something happen to the filters."""
    found = [f"{lake}/.t.merganser/{sift.FILTER_FOLDER}/{one}" for one in filters(lake)]
    for place, path in enumerate(found[:-1]):
        if trouble == "remove":
            os.remove(path)
        elif trouble == "swap":
            shutil.copy(found[place + 1], path)
        elif trouble == "cut":
            os.truncate(path, 40)
