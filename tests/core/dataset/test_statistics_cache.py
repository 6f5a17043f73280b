"""The cache of bounds: only files that changed are opened; whatever happens to the cache, rows come out the same."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import (
    list_data_files,
    open_dataset_io,
    put,
    read_rows,
    record_opened_files,
    snapshot,
    snapshot_without_locks,
    to_plain_rows,
)
from tests.values import PLAIN, build, cells

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.dataset import file_statistics as summary
from merganser.core.dataset import statistics_cache as cache
from merganser.core.dataset.snapshot import load_target
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.dataset.target import Target
    from merganser.core.model.strategy import MergeStrategy

IO = open_dataset_io("arrow")
FILES = [f"f{number}.parquet" for number in range(5)]


@pytest.fixture(autouse=True)
def few_and_young() -> Iterator[None]:
    """Cache datasets of few files, at once."""
    with mock.patch.object(cache, "MIN_FILES", 1), mock.patch.object(summary, "SETTLE_NANOSECONDS", 0):
        yield


def table(ids: list[int], value: str = "old") -> pa.Table:
    columns = [pa.array(ids, pa.int64()), pa.array(ids, pa.int32()), pa.array([value] * len(ids), pa.string())]
    return pa.table(columns, ["id", "n", "v"])


def make(lake: str) -> str:
    """Five files of two row groups, all of the same size."""
    for number, name in enumerate(FILES):
        put(f"{lake}/t/{name}", table([10 * number, 10 * number + 1]), row_group_size=1)
    return f"{lake}/t"


def touch(path: str, keys: str | list[str] = "id") -> None:
    """Commit a change of one row of f4.parquet, so that what was learned is saved."""
    IO.merge(table([40], uuid.uuid4().hex), path, "upsert", keys)


def cache_of(path: str) -> Path:
    return Path(path).parent / f".{Path(path).name}.merganser" / cache.CACHE_NAME


def describe_target(target: Target, keys: list[str]) -> Any:
    """Everything that planning takes from a snapshot."""
    columns = [target.get_columns(number) for number in range(len(target.files))]
    return target.files, target.get_bounds(keys).to_pylist(), target.file_rows, target.required, columns, target.schema


def opened_for(path: str, keys: list[str] | None = None) -> list[str]:
    """List the files whose footers a snapshot opens, and assert that it equals one without a cache."""
    wanted = ["id"] if keys is None else keys
    with record_opened_files() as names:
        target = load_target(locate(path), wanted, None, {})
    with mock.patch.object(cache, "_read_cache", return_value=None):
        assert describe_target(target, wanted) == describe_target(load_target(locate(path), wanted, None, {}), wanted)
    return sorted(names)


# What is opened.


def test_only_files_that_changed_are_opened(lake: str) -> None:
    path = make(lake)
    assert opened_for(path) == FILES
    touch(path)
    # The first file shows new files what to look like.
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]
    put(f"{path}/new.parquet", table([70]))
    os.remove(f"{path}/f2.parquet")
    assert opened_for(path) == ["f0.parquet", "f4.parquet", "new.parquet"]
    touch(path)
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]


def test_a_plan_reads_the_cache_and_writes_nothing(lake: str) -> None:
    # P5
    path = make(lake)
    IO.plan(table([1]), path, "upsert", "id")
    assert os.listdir(lake) == ["t"]
    touch(path)
    put(f"{path}/new.parquet", table([70]))
    before = snapshot(lake)
    with record_opened_files() as names:
        IO.plan(table([99]), path, "upsert", "id")
    assert sorted(names) == ["f0.parquet", "f4.parquet", "new.parquet"]
    assert snapshot(lake) == before


def test_a_read_and_an_append_use_the_cache_and_keep_its_bounds(lake: str) -> None:
    path = make(lake)
    touch(path)
    with record_opened_files() as names:
        IO.read(path)
    assert sorted(name.removesuffix(".hidden") for name in names) == ["f0.parquet", "f4.parquet"]
    IO.write_dataset(table([80]), path, "append")
    (new,) = set(list_data_files(path)) - set(FILES)
    assert opened_for(path) == ["f0.parquet", new]


def test_a_small_dataset_has_no_cache(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_FILES", 6)
    path = make(lake)
    touch(path)
    assert not cache_of(path).exists()


def test_a_merge_that_changes_nothing_writes_nothing(lake: str) -> None:
    # M3
    path = make(lake)
    for _ in range(2):
        before = snapshot_without_locks(lake)
        IO.merge(table([0, 1]), path, "upsert", "id", skip_unchanged=True)
        assert snapshot_without_locks(lake) == before
    touch(path)
    for _ in range(2):
        before = snapshot_without_locks(lake)
        IO.merge(table([0, 1]), path, "upsert", "id", skip_unchanged=True)
        assert snapshot_without_locks(lake) == before


def test_a_cache_that_holds_everything_is_not_written_again(lake: str) -> None:
    path = make(lake)
    touch(path)
    load = load_target(locate(path), ["id"], None, {})
    assert load.cache_update is not None
    touch(path)
    os.utime(f"{path}/f4.parquet", (4e9, 4e9))
    assert load_target(locate(path), ["id"], None, {}).cache_update is None


def test_merges_on_different_keys_take_turns(lake: str) -> None:
    path = make(lake)
    touch(path)
    assert opened_for(path, ["n"]) == FILES
    touch(path, "n")
    for keys in (["id"], ["n"], ["n", "id"], []):
        assert opened_for(path, keys) == ["f0.parquet", "f4.parquet"]
        touch(path, keys or "id")


# What counts as a change.


def replace_file(path: str) -> None:
    put(f"{path}.beside", table([5, 6]), row_group_size=1)
    os.replace(f"{path}.beside", path)


def rewrite_in_place(path: str) -> None:
    before = os.stat(path)
    other = put(f"{path}.beside", table([5, 6]), row_group_size=1)
    with open(path, "r+b") as stream:
        stream.write(Path(other).read_bytes())
    os.remove(other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)


def swap_with_another(path: str) -> None:
    other = path.replace("f2", "f3")
    os.rename(path, f"{path}.beside")
    os.rename(other, path)
    os.rename(f"{path}.beside", other)


def link_to_another(path: str) -> None:
    os.remove(path)
    os.symlink(path.replace("f2", "f3"), path)


@pytest.mark.parametrize("change", [replace_file, rewrite_in_place, swap_with_another, link_to_another])
def test_a_file_that_changed_is_read_again_though_it_looks_the_same(change: Callable[[str], None], lake: str) -> None:
    path = make(lake)
    touch(path)
    change(f"{path}/f2.parquet")
    assert "f2.parquet" in opened_for(path)
    matched = 30 if change in (swap_with_another, link_to_another) else 5
    result = IO.merge(table([matched], "new"), path, "update", "id")
    assert f"{path}/f2.parquet" in result.rewritten_files


def test_a_file_that_changed_just_now_is_not_trusted(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "SETTLE_NANOSECONDS", 2_000_000_000)
    path = make(lake)
    now = max(os.stat(f"{path}/{name}").st_mtime_ns for name in FILES)
    monkeypatch.setattr("time.time_ns", lambda: now + 1_000_000_000)
    touch(path)
    assert not cache_of(path).exists()
    monkeypatch.setattr("time.time_ns", lambda: now + 60_000_000_000)
    touch(path)
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]


def test_a_snapshot_is_no_change(lake: str) -> None:
    path = make(lake)
    touch(path)
    with merganser.snapshot(path) as folder:
        assert opened_for(path) == opened_for(folder) == ["f0.parquet", "f4.parquet"]
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]


# What may happen to the cache.


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        flip,
        make_folder,
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(os.urandom(9999)),
        lambda file: file.write_bytes(b'{"bounds": []}'),
    ],
)
def test_a_damaged_or_missing_cache_is_ignored(damage: Callable[[Path], object], lake: str) -> None:
    path = make(lake)
    touch(path)
    damage(cache_of(path))
    assert opened_for(path) == FILES
    touch(path)
    assert opened_for(path) == (FILES if damage is make_folder else ["f0.parquet", "f4.parquet"])
    assert not [name for name in os.listdir(cache_of(path).parent) if "staging" in name or name.endswith(".staged")]


@pytest.mark.parametrize("rule", ["VERSION", "pa.__version__"])
def test_a_cache_of_another_version_is_ignored(rule: str, lake: str) -> None:
    path = make(lake)
    with mock.patch(f"merganser.core.dataset.statistics_cache.{rule}", "other"):
        touch(path)
    assert cache_of(path).exists()
    assert opened_for(path) == FILES


def test_a_cache_of_another_dataset_is_ignored(lake: str) -> None:
    path, other = make(lake), make(f"{lake}/other")
    put(f"{other}/f2.parquet", table([5, 6]), row_group_size=1)
    for one in (path, other):
        touch(one)
    shutil.copy(cache_of(other), cache_of(path))
    assert opened_for(path) == FILES


def test_an_older_cache_that_comes_late_only_costs_time(lake: str) -> None:
    # As if a writer that had stalled saved its cache after another one.
    path = make(lake)
    touch(path)
    late = cache_of(path).read_bytes()
    replace_file(f"{path}/f1.parquet")
    touch(path)
    cache_of(path).write_bytes(late)
    assert opened_for(path) == ["f0.parquet", "f1.parquet", "f4.parquet"]


def test_a_cache_may_be_replaced_while_a_merge_runs(lake: str) -> None:
    path = make(lake)
    touch(path)
    with mock.patch("merganser.core.commit.staged_files.check_listing", side_effect=lambda _: flip(cache_of(path))):
        IO.merge(table([20], "new"), path, "upsert", "id")
    assert opened_for(path) == ["f0.parquet", "f2.parquet"]


@pytest.mark.parametrize("step", ["create", "replace"])
def test_a_cache_that_cannot_be_written_is_not_an_error(step: str, lake: str) -> None:
    path = make(lake)
    original = getattr(LocalStore, step)
    saving: list[bool] = []

    def fail(self: LocalStore, *paths: str) -> Any:
        if saving:
            raise OSError(28, "No space left on device")
        return original(self, *paths)

    def save(*arguments: Any) -> None:
        saving.append(True)
        cache.save_cache(*arguments)
        saving.clear()

    with mock.patch.object(LocalStore, step, fail), mock.patch("merganser.core.commit.staged_files.save_cache", save):
        touch(path)
    assert not cache_of(path).exists()
    assert not list(cache_of(path).parent.glob(".staging_*"))
    assert opened_for(path) == FILES


def test_undo_recover_and_vacuum_work_with_the_cache(lake: str) -> None:
    path = make(lake)
    touch(path)
    before = read_rows(IO, path)
    IO.merge(table([0, 10, 99], "new"), path, "upsert", "id", retain=1)
    merganser.undo(path)
    # The files have the identities again that the cache knows.
    assert opened_for(path) == ["f0.parquet"]
    assert read_rows(IO, path) == before
    assert merganser.vacuum(path) == []
    assert merganser.recover(path) is False
    assert [record.operation for record in merganser.history(path)] == ["undo", "merge", "merge"]
    IO.write_dataset(table([1]), path, "overwrite")
    assert opened_for(path) == list_data_files(path)


# What is in a file.


def test_columns_that_disagree_are_the_same_error_as_without_a_cache(lake: str) -> None:
    path = make(lake)
    touch(path)
    messages = []
    for name in ("f3.parquet", "f0.parquet"):
        put(f"{path}/{name}", table([1]).set_column(1, "n", pa.array(["x"])))
        for known in (True, False):
            with mock.patch.object(cache, "_read_cache", cache._read_cache if known else lambda _: None):
                with pytest.raises(SchemaMismatchError) as caught:
                    IO.plan(table([1]), path, "upsert", "id")
                messages.append(str(caught.value))
    assert messages[0::2] == messages[1::2]
    assert messages[0] != messages[2]


def test_files_may_have_schemas_that_differ_and_mean_the_same(lake: str) -> None:
    path = make(lake)
    fields = [pa.field("v", pa.large_string()), pa.field("n", pa.int32(), nullable=False), pa.field("id", pa.int64())]
    for number in (5, 6):
        put(f"{path}/f{number}.parquet", table([number * 10]).select(["v", "n", "id"]).cast(pa.schema(fields)))
    assert load_target(locate(path), ["id"], None, {}).required == {"n"}
    touch(path)
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]
    os.remove(f"{path}/f6.parquet")
    touch(path)
    assert opened_for(path) == ["f0.parquet", "f4.parquet"]
    # Another file is now the first: files that were compared with the old first one are read again.
    os.rename(f"{path}/f5.parquet", f"{path}/a.parquet")
    assert opened_for(path) == ["a.parquet", *FILES]
    touch(path)
    assert opened_for(path) == ["a.parquet", "f4.parquet"]


def test_a_partition_column_inside_files_is_checked_if_the_path_lacks_it(lake: str) -> None:
    # H6
    path = f"{lake}/t"
    for number, folder in enumerate(["day=1/", "day=1/", ""]):
        held = table([number]).append_column("day", pa.array(["1"]))
        put(f"{path}/{folder}f{number}.parquet", held)
    source = table([9]).append_column("day", pa.array(["2"]))
    IO.merge(source, path, "insert", "id")
    os.remove(cache_of(path).parent / "partitions.json")
    numbers = source.set_column(3, "day", pa.array([2]))
    with (
        record_opened_files() as names,
        pytest.raises(SchemaMismatchError, match=r"f2.parquet is outside the day=… folders"),
    ):
        IO.plan(numbers, path, "insert", "id")
    # If the path has the column, the value in the file does not matter.
    assert "f1.parquet" not in names


def test_a_bound_that_no_key_can_have_proves_nothing(lake: str) -> None:
    # P4: the path has the day; the file has a day of another type, outside the range of nanoseconds
    path = f"{lake}/t"
    for number in range(2):
        far = pa.array([200_000_000_000_000], pa.timestamp("ms"))
        put(f"{path}/day=2024-01-0{number + 1}/f{number}.parquet", table([number]).append_column("day", far))
    source = table([0], "new").append_column("day", pa.array([1_704_067_200_000_000_000], pa.timestamp("ns")))
    for _ in range(2):
        result = IO.merge(source, path, "upsert", ["id", "day"])
        assert (result.updated, result.inserted) == (1, 0)


@settings(max_examples=40)
@given(data=st.data())
def test_the_cache_holds_what_footers_hold(data: st.DataObject) -> None:
    # P4
    kinds = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3))
    names = [f"key {number}" for number in range(len(kinds))]
    with tempfile.TemporaryDirectory() as lake:
        path = f"{lake}/t"
        for number in range(3):
            count = data.draw(st.integers(0, 5))
            columns = [data.draw(st.lists(st.none() | cells(kind), min_size=count, max_size=count)) for kind in kinds]
            held = [build(values, kind) for values, kind in zip(columns, kinds, strict=True)]
            size = data.draw(st.integers(1, 3))
            put(f"{path}/f{number}.parquet", pa.table(held, names), row_group_size=size, write_statistics=number != 1)
        IO.write_dataset(pa.table([build([], kind) for kind in kinds], names), path, "append")
        save(path, names)
        assert opened_for(path, names) == ["f0.parquet"]
        source = load_target(locate(path), [], None, {})
        assert source.cache_update is None


def save(path: str, keys: list[str]) -> None:
    """Save what a snapshot learns, as a merge on these keys would."""
    news = load_target(locate(path), keys, None, {}).cache_update
    assert news is not None
    with open_session(locate(path)) as session, session.staging() as staging:
        cache.save_cache(news, staging)


IDS = st.lists(st.integers(0, 12), max_size=6, unique=True)


@settings(max_examples=25)
@given(files=st.lists(IDS, min_size=1, max_size=4), merges=st.lists(st.tuples(IDS, st.booleans()), max_size=4))
def test_merges_with_a_cache_and_without_one_come_out_the_same(
    files: list[list[int]], merges: list[tuple[list[int], bool]]
) -> None:
    with tempfile.TemporaryDirectory() as lake:
        paths = [f"{lake}/warm/t", f"{lake}/cold/t"]
        for path in paths:
            taken: set[int] = set()
            for number, ids in enumerate(files):
                put(f"{path}/f{number}.parquet", table([one for one in ids if one not in taken]), row_group_size=2)
                taken |= set(ids)
        for turn, (ids, deletes) in enumerate(merges):
            strategy: MergeStrategy = "delete" if deletes else "upsert"
            results = []
            for path, fewest in zip(paths, (1, 1000), strict=True):
                with mock.patch.object(cache, "MIN_FILES", fewest):
                    results.append(IO.merge(table(ids, str(turn)), path, strategy, "id"))
            assert results[0].stats == results[1].stats
            assert sorted(map(str, to_plain_rows(IO.read(paths[0]).to_table()))) == sorted(
                map(str, to_plain_rows(IO.read(paths[1]).to_table()))
            )
        assert not cache_of(paths[1]).exists()


# Storage other than a local disk.


class Described(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory, with the details that other filesystems report."""

    cachable = False
    told: Callable[[bytes], dict[str, Any]] = staticmethod(lambda _: {})

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return self._described(super().info(path, **options))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(path, detail=detail, **options)
        return [self._described(one) for one in found] if detail else found

    def _described(self, info: dict[str, Any]) -> dict[str, Any]:
        data = self.store[info["name"]].getvalue() if info["type"] == "file" else b""
        return {**info, **self.told(data)}


def moments(moment: Any) -> Callable[[bytes], dict[str, Any]]:
    return lambda _: {"mtime": moment}


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (lambda _: {}, False),
        (lambda data: {"ETag": str(hash(data))}, True),
        (lambda data: {"etag": str(hash(data)), "last_modified": "today"}, True),
        (moments(datetime(2024, 1, 1, tzinfo=UTC)), True),
        (moments(1_700_000_000.5), True),
        (moments(datetime(2999, 1, 1, tzinfo=UTC)), False),
        (moments(datetime(2024, 1, 1)), False),  # noqa: DTZ001  the zone is what is missing
        (moments("Monday"), False),
    ],
)
def test_on_other_storage_a_file_is_cached_if_its_version_is_known(
    told: Callable[[bytes], dict[str, Any]], known: bool
) -> None:
    filesystem, path = Described(), f"/{uuid.uuid4().hex}/t"
    filesystem.told = told
    io = type(IO)(filesystem=filesystem)
    for number in range(3):
        io.write_dataset(table([10 * number]), path, "append")
    io.merge(table([0], "new"), path, "upsert", "id")
    io.merge(table([0], "newer"), path, "upsert", "id")
    location = locate(path, filesystem)
    with record_opened_files(RemoteStore) as names:
        target = load_target(location, ["id"], None, {})
    assert filesystem.exists(f"{path.replace('/t', '/.t')}.merganser/{cache.CACHE_NAME}") is known
    assert len(names) < 3 if known else len(names) == 3
    assert sorted(target.file_rows) == [1, 1, 1]
    if "ETag" in told(b""):
        rel = target.files[2].rel
        with filesystem.open(f"{path}/{rel}", "wb") as stream:
            stream.write(filesystem.cat_file(f"{path}/{target.files[1].rel}"))
        with record_opened_files(RemoteStore) as names:
            load_target(location, ["id"], None, {})
        assert rel in names
    filesystem.rm(path.rpartition("/")[0], recursive=True)


def test_files_in_memory_are_not_cached() -> None:
    # Only the creation time is reported, and files may change after that.
    path = f"memory://{uuid.uuid4().hex}/t"
    for number in range(3):
        IO.merge(table([number]), path, "upsert", "id")
    control = f"{path.replace('/t', '/.t')}.merganser"
    assert cache.CACHE_NAME not in [os.path.basename(name) for name in fsspec.filesystem("memory").find(control)]
