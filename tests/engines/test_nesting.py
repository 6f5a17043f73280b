"""One folder is one dataset: nothing is written above or inside another one (M10)."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import load, open_dataset_io, put, read_rows, snapshot

import merganser
from merganser.core import IncrementalFileManager, plan_incremental_rewrite
from merganser.core.commit import commit
from merganser.core.merge import stage
from merganser.core.merge.planner import decide
from merganser.core.storage import staging
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import DatasetMergeError, InvalidArgumentError, TargetPathError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

    from merganser.progress import Progress

ARROW = open_dataset_io("arrow")


def table(ids: list[int], day: str = "mon") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [day] * len(ids)})


def everything(folder: str) -> tuple[dict[str, bytes], list[str]]:
    """Return every file with its bytes, and every folder."""
    return snapshot(folder), sorted(found for found, _, _ in os.walk(folder))


def refused(call: Callable[[], object], *told: str, lake: str) -> None:
    """Assert that a call is refused with these words, and leaves no trace."""
    before = everything(lake)
    with pytest.raises(TargetPathError) as found:
        call()
    assert all(text in str(found.value) for text in told), str(found.value)
    assert everything(lake) == before


def writes(io: AnyDatasetIO, path: str, **options: Any) -> list[Callable[[], object]]:
    """Every call of an engine that writes, and its plan."""
    return [
        *(
            partial(io.merge, table([1]), path, strategy, "id", **options)
            for strategy in ("insert", "update", "upsert", "full_merge", "deduplicate", "delete")
        ),
        partial(io.plan, table([1]), path, "full_merge", "id", **options),
        partial(io.write_dataset, table([1]), path, "append", **options),
        partial(io.write_dataset, table([1]), path, "overwrite", **options),
    ]


@pytest.fixture
def orders(lake: str) -> str:
    """A dataset of two partitions below `lake/lake`."""
    path = f"{lake}/lake/orders"
    for day in ("mon", "tue"):
        ARROW.merge(table([1, 2] if day == "mon" else [3, 4], day), path, key_columns="id", partition_by="day")
    return path


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every dataset be a mount of its own, so that new control folders are inside."""
    monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)


# M10
def test_a_folder_above_a_dataset_cannot_be_a_target(io: AnyDatasetIO, orders: str, lake: str) -> None:
    for call in writes(io, f"{lake}/lake"):
        refused(call, f"{lake}/lake contains the dataset {orders}.", f"{lake}/lake/.orders.merganser", lake=lake)
    refused(writes(io, lake)[0], f"contains the dataset {orders}.", lake=lake)


# M10
def test_a_partition_folder_can_be_read_but_not_written(io: AnyDatasetIO, orders: str, lake: str) -> None:
    for path in (f"{orders}/day=mon", f"{orders}/day=new"):
        for call in writes(io, path):
            refused(call, f"{path} lies inside the dataset {orders}.", f"{lake}/lake/.orders.merganser", lake=lake)
    assert load(io, f"{orders}/day=mon").column("id").to_pylist() == [1, 2]
    assert sorted(load(io, f"{lake}/lake").column("id").to_pylist()) == [1, 2, 3, 4]


# M10
@pytest.mark.parametrize("below", [False, True])
def test_maintenance_refuses_what_a_merge_would(orders: str, lake: str, below: bool) -> None:
    path = f"{orders}/day=mon" if below else f"{lake}/lake"
    told = f"{path} {'lies inside' if below else 'contains'} the dataset {orders}."
    control = Path(choose_control_folder(locate(path)))
    calls: list[Callable[[], object]] = [
        partial(merganser.compact, path),
        partial(merganser.compact, path, dry_run=True),
        partial(merganser.dedupe, path, "id"),
        partial(merganser.dedupe, path, "id", dry_run=True),
        partial(IncrementalFileManager().create_staging_directory, path),
        partial(plan_incremental_rewrite, path, [1], "id"),
    ]
    for call in calls:
        refused(call, told, lake=lake)
    # These do nothing where nothing was committed, but something may have been, before the other dataset came.
    for name in ("history", "retained/20260101T000000.000000Z-00000000", ".staging_1"):
        (control / name).mkdir(parents=True)
    calls = [partial(merganser.undo, path), partial(merganser.vacuum, path), partial(merganser.recover, path)]
    for call in calls:
        refused(call, told, lake=lake)


# M10
def test_the_path_is_reported_as_it_was_given(orders: str, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake)
    refused(partial(ARROW.merge, table([1]), "lake", "upsert", "id"), "dataset lake/orders.", lake=lake)
    refused(partial(ARROW.merge, table([1]), "lake/orders/day=mon", "upsert", "id"), "dataset lake/orders.", lake=lake)
    monkeypatch.chdir(orders)
    refused(partial(ARROW.merge, table([1]), "day=mon", "upsert", "id"), f"dataset {orders}.", lake=lake)


# M10
def test_a_nested_target_is_refused_before_the_source_is_read(io: AnyDatasetIO, orders: str, lake: str) -> None:
    for path in (f"{lake}/lake", f"{orders}/day=mon"):
        refused(partial(io.merge, f"{lake}/no/such/file.csv", path, "upsert", "id"), "the dataset", lake=lake)


# M10
@pytest.mark.usefixtures("orders")
def test_a_dataset_that_came_to_lie_in_another_is_refused_by_both(io: AnyDatasetIO, lake: str) -> None:
    other = f"{lake}/other"
    io.merge(table([7]), other, key_columns="id")
    for name in ("orders", ".orders.merganser"):
        shutil.move(f"{lake}/lake/{name}", f"{other}/{name}")
    calls = writes(io, other)
    calls += [partial(merganser.compact, other), partial(merganser.dedupe, other, "id")]
    for call in calls:
        refused(call, f"{other} contains the dataset {other}/orders.", lake=lake)
    for call in writes(io, f"{other}/orders"):
        refused(call, f"{other}/orders lies inside the dataset {other}.", f"{lake}/.other.merganser", lake=lake)
    # The remedy of the message.
    shutil.rmtree(f"{lake}/.other.merganser")
    assert io.merge(table([1, 2, 5]), f"{other}/orders", key_columns="id").inserted == 1


# M10
def test_a_dataset_that_comes_while_a_merge_is_prepared_is_refused(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ARROW.merge(table([1]), f"{lake}/lake", key_columns="id")
    before = snapshot(f"{lake}/lake")
    original = decide

    def come(*arguments: Any) -> Any:
        for name in ("history", ".staging_1"):
            Path(f"{lake}/lake/.orders.merganser/{name}").mkdir(parents=True)
        Path(f"{lake}/lake/orders").mkdir()
        return original(*arguments)

    monkeypatch.setattr(stage, "decide", come)
    with pytest.raises(TargetPathError, match="contains the dataset"):
        ARROW.merge(table([2]), f"{lake}/lake", key_columns="id")
    assert snapshot(f"{lake}/lake") == before
    assert len(merganser.history(f"{lake}/lake")) == 1


# M10
@pytest.mark.parametrize("gone", ["dataset", "commits"])
def test_a_control_folder_alone_is_not_a_dataset(io: AnyDatasetIO, lake: str, gone: str) -> None:
    path = f"{lake}/lake/orders"
    if gone == "dataset":
        io.merge(table([1]), path, key_columns="id")
        shutil.rmtree(path)
    else:
        # What a call leaves that was refused because of its rows.
        os.makedirs(path)
        with pytest.raises(ValueError, match="NULL"):
            io.merge(pa.table({"id": pa.array([None], pa.int64())}), path, key_columns="id")
        assert os.listdir(f"{lake}/lake/.orders.merganser") == ["lock"]
    assert io.merge(table([1]), f"{lake}/lake", key_columns="id").inserted == 1


# M10
def test_a_refused_merge_above_does_not_keep_datasets_from_being_made_below(io: AnyDatasetIO, lake: str) -> None:
    os.makedirs(f"{lake}/lake")
    with pytest.raises(ValueError, match="NULL"):
        io.merge(pa.table({"id": pa.array([None], pa.int64())}), f"{lake}/lake", key_columns="id")
    assert io.merge(table([1]), f"{lake}/lake/orders", key_columns="id").inserted == 1


# M10
def test_a_dataset_of_the_name_of_its_folder_is_seen(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/orders/orders"
    assert io.merge(table([1]), path, key_columns="id").inserted == 1
    assert io.merge(table([1, 2]), path, key_columns="id").inserted == 1
    for call in writes(io, f"{lake}/orders"):
        refused(call, f"contains the dataset {path}.", lake=lake)


# M10, C1
def test_a_dataset_with_its_control_folder_inside_is_seen(io: AnyDatasetIO, orders: str, lake: str) -> None:
    shutil.move(f"{lake}/lake/.orders.merganser", f"{orders}/.orders.merganser")
    os.rename(f"{orders}/.orders.merganser/dataset.beside", f"{orders}/.orders.merganser/dataset.inside")
    assert io.merge(table([1, 2, 5]), orders, key_columns="id").inserted == 1
    assert not os.path.exists(f"{lake}/lake/.orders.merganser")
    for call in writes(io, f"{lake}/lake"):
        refused(call, f"contains the dataset {orders}.", lake=lake)
    for call in writes(io, f"{orders}/day=mon"):
        refused(call, f"lies inside the dataset {orders}.", lake=lake)


# M10, W6
@pytest.mark.parametrize("linked", ["folder", "file"])
def test_a_link_into_a_dataset_counts(io: AnyDatasetIO, orders: str, lake: str, linked: str) -> None:
    os.makedirs(f"{lake}/other")
    if linked == "folder":
        os.symlink(orders, f"{lake}/other/link")
    else:
        file = next(Path(orders).rglob("*.parquet"))
        os.symlink(file, f"{lake}/other/{file.name}")
    for call in writes(io, f"{lake}/other"):
        refused(call, f"{lake}/other contains the dataset {orders}.", lake=lake)
    os.symlink(f"{orders}/day=mon", f"{lake}/monday")
    refused(writes(io, f"{lake}/monday")[0], f"lies inside the dataset {orders}.", lake=lake)


# M10, C1
def test_a_dataset_seen_through_two_mounts_is_refused(io: AnyDatasetIO, orders: str, lake: str) -> None:
    inside = f"{orders}/.orders.merganser"
    os.makedirs(inside)
    for call in writes(io, orders):
        refused(call, "two control folders", f"{lake}/lake/.orders.merganser", inside, lake=lake)
    refused(partial(merganser.compact, orders), "two control folders", lake=lake)
    assert len(read_rows(io, orders)) == 4
    shutil.rmtree(inside)
    assert io.merge(table([1, 2, 5]), orders, key_columns="id").inserted == 1


# M10, C1
def test_a_mount_of_another_name_is_seen(io: AnyDatasetIO, orders: str, lake: str, mounted: None) -> None:
    del mounted
    io.merge(table([7]), f"{lake}/c1/data", key_columns="id")
    inside = f"{orders}/.data.merganser"
    shutil.move(f"{lake}/c1/data/.data.merganser", inside)
    for call in writes(io, orders):
        refused(call, "two control folders", f"{lake}/lake/.orders.merganser", f"remove {inside};", lake=lake)
    shutil.rmtree(inside)
    assert io.merge(table([1, 2, 5]), orders, key_columns="id").inserted == 1


# M10, C1
def test_a_control_folder_inside_does_not_belong_to_a_subfolder_of_the_same_name(
    io: AnyDatasetIO, lake: str, mounted: None
) -> None:
    del mounted
    path = f"{lake}/data"
    put(f"{path}/data/x.parquet", table([1]))
    for ids in ([1, 2], [2, 3]):
        assert io.merge(table(ids), path, key_columns="id").inserted == 1
    assert os.listdir(lake) == ["data"]
    assert len(merganser.history(path)) == 2
    for call in writes(io, f"{path}/data"):
        refused(call, f"{path}/data lies inside the dataset {path}.", f"{path}/.data.merganser", lake=lake)


# M10, C1
def test_a_control_folder_of_a_nested_dataset_is_not_used(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{lake}/data"
    io.merge(table([1]), f"{path}/data", key_columns="id")
    shutil.rmtree(f"{path}/data")
    assert choose_control_folder(locate(path)) == f"{lake}/.data.merganser"
    monkeypatch.setattr(staging, "_can_rename_from", lambda *_: False)
    io.merge(table([1]), f"{path}/data", key_columns="id")
    for call in writes(io, path):
        refused(call, f"{path} contains the dataset {path}/data.", f"{path}/.data.merganser", lake=lake)


# M10, C1
def test_a_bucket_and_a_folder_of_its_name_do_not_share_a_control_folder(io: AnyDatasetIO) -> None:
    store = fsspec.filesystem("memory")
    outer, inner = "memory://orders", "memory://orders/orders"
    try:
        for first, second, told in (
            (outer, inner, f"{inner} lies inside the dataset {outer}."),
            (inner, outer, f"{outer} contains the dataset {inner}."),
        ):
            io.merge(table([1]), first, key_columns="id")
            assert io.merge(table([1, 2]), first, key_columns="id").inserted == 1
            before = {name: store.cat_file(name) for name in store.find("/")}
            for call in writes(io, second):
                with pytest.raises(TargetPathError, match=told):
                    call()
            assert {name: store.cat_file(name) for name in store.find("/")} == before
            store.rm("/", recursive=True)
        with store.open("/orders/orders/x.parquet", "wb") as file:
            pq.write_table(table([1]), file)
        for ids in ([1, 2], [2, 3]):
            assert io.merge(table(ids), outer, key_columns="id").inserted == 1
    finally:
        store.rm("/", recursive=True)


# M10, C3
def test_a_commit_below_is_not_recovered_into_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")

    def fail(*_: object) -> None:
        raise OSError("down")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(commit, "publish", fail)
            with pytest.raises(DatasetMergeError, match="journaled but not fully published"):
                ARROW.merge(table([1]), "memory://orders/orders", key_columns="id")
        before = {name: store.cat_file(name) for name in store.find("/")}
        with pytest.raises(TargetPathError, match=r"contains the dataset memory://orders/orders.*recover\("):
            ARROW.merge(table([2]), "memory://orders", key_columns="id")
        assert {name: store.cat_file(name) for name in store.find("/")} == before
        assert merganser.recover("memory://orders/orders")
        assert load(ARROW, "memory://orders/orders").column("id").to_pylist() == [1]
    finally:
        store.rm("/", recursive=True)


# M10
def test_a_dataset_of_the_file_manager_alone_is_seen(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/lake/orders"
    with IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(path)
        pq.write_table(table([1]), f"{folder}/a.staged")
        manager.atomic_replace_files([f"{folder}/a.staged"], [f"{path}/a.parquet"])
    for call in writes(io, f"{lake}/lake"):
        refused(call, f"contains the dataset {path}.", lake=lake)
    for call in writes(io, f"{path}/eu"):
        refused(call, f"lies inside the dataset {path}.", lake=lake)


# M10
def test_a_removed_dataset_above_counts_until_its_control_folder_is_removed(
    io: AnyDatasetIO, orders: str, lake: str
) -> None:
    shutil.rmtree(orders)
    control = f"{lake}/lake/.orders.merganser"
    for call in writes(io, f"{orders}/eu"):
        refused(call, f"lies inside the dataset {orders}.", "or was removed", f"control folder {control};", lake=lake)
    shutil.rmtree(control)
    for ids in ([1], [1, 2]):
        assert io.merge(table(ids), f"{orders}/eu", key_columns="id").inserted == 1


# M10, C6
def test_a_first_load_below_counts_while_it_is_under_way(lake: str) -> None:
    path = f"{lake}/lake/orders"
    found: list[object] = []

    def merge_above(progress: Progress) -> None:
        if progress.stage == "plan" and not found:
            with pytest.raises(TargetPathError, match=f"contains the dataset {path}.*recover") as error:
                ARROW.merge(table([100]), f"{lake}/lake", key_columns="id")
            found.append(error)

    for ids in ([1], [1, 2]):
        assert ARROW.merge(table(ids), path, key_columns="id", progress=merge_above).inserted == 1
    assert found


# M10, C6
@pytest.mark.parametrize("root", ["lake", "memory://lake"])
def test_a_dataset_above_that_comes_while_a_first_load_is_prepared_is_refused(
    lake: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = f"{lake}/lake" if root == "lake" else "memory://bucket/lake"
    store, _, folder = ("file", "", above) if root == "lake" else above.partition("://")
    files = fsspec.filesystem(store)
    original = decide

    def come(*arguments: Any) -> Any:
        control = f"{os.path.dirname(folder)}/.lake.merganser"
        files.makedirs(f"{control}/history")
        files.pipe_file(f"{control}/dataset.beside", b"")
        return original(*arguments)

    monkeypatch.setattr(stage, "decide", come)
    try:
        with pytest.raises(TargetPathError, match=f"orders lies inside the dataset {above}"):
            ARROW.merge(table([1]), f"{above}/orders", key_columns="id")
        assert not files.exists(f"{folder}/orders")
    finally:
        if store == "memory":
            files.rm("/", recursive=True)


# M10
def test_a_control_folder_that_may_not_be_read_counts(
    io: AnyDatasetIO, orders: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalStore.list_names

    def names(self: LocalStore, folder: str) -> list[str]:
        if folder == f"{lake}/lake/.orders.merganser":
            raise PermissionError(folder)
        return original(self, folder)

    monkeypatch.setattr(LocalStore, "list_names", names)
    for call in writes(io, f"{lake}/lake"):
        refused(call, f"contains the dataset {orders}.", lake=lake)
    for call in writes(io, f"{orders}/day=mon"):
        refused(call, f"lies inside the dataset {orders}.", lake=lake)


# M10, P7
def test_plain_folders_of_files_are_one_dataset(io: AnyDatasetIO, lake: str) -> None:
    path = f"{lake}/t"
    put(f"{path}/2024/01/x.parquet", table([1]))
    put(f"{path}/2024/02/y.parquet", table([2]))
    Path(f"{path}/metadata").mkdir()
    result = io.merge(table([2, 3], "wed"), path, key_columns="id")
    assert (result.inserted, result.updated, result.target_count_after) == (1, 1, 3)


# M10, C6
def test_datasets_on_an_object_store_are_seen(io: AnyDatasetIO) -> None:
    store = fsspec.filesystem("memory")
    try:
        for orders in ("memory://lake/deep/orders", "memory://bucket"):
            io.merge(table([1, 2]), orders, key_columns="id", partition_by="day")
        before = {name: store.cat_file(name) for name in store.find("/")}
        for path, told in (
            ("memory://lake", "contains the dataset memory://lake/deep/orders."),
            ("memory://lake/deep/orders/day=mon", "lies inside the dataset memory://lake/deep/orders."),
            ("memory://bucket/day=mon", "lies inside the dataset memory://bucket."),
        ):
            for call in writes(io, path):
                with pytest.raises(TargetPathError, match=told):
                    call()
        assert {name: store.cat_file(name) for name in store.find("/")} == before
        assert len(load(io, "memory://lake")) == 2
    finally:
        store.rm("/", recursive=True)


# M10
def test_folders_that_cannot_be_listed_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    original = type(store).ls

    def ls(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path in ("/lake", "/lake/mine"):
            raise PermissionError(path)
        return original(self, path, *arguments, **options)

    monkeypatch.setattr(type(store), "ls", ls)
    try:
        assert ARROW.merge(table([1]), "memory://lake/mine/orders", key_columns="id").inserted == 1
    finally:
        monkeypatch.undo()
        store.rm("/", recursive=True)


# M10
def test_files_named_like_table_format_folders_are_ignored(io: AnyDatasetIO, lake: str) -> None:
    for name in ("metadata", "_delta_log", "_versions", ".hoodie", ".lake.merganser"):
        Path(lake, name).write_text("")
    assert io.merge(table([1]), f"{lake}/lake/t", key_columns="id").inserted == 1
    assert len(load(io, f"{lake}/lake/t")) == 1


# M10
def test_a_parent_folder_that_cannot_be_listed_is_ignored(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(f"{lake}/metadata")
    original = LocalStore.list_names

    def names(self: LocalStore, folder: str) -> list[str]:
        if folder == f"{lake}/metadata":
            raise PermissionError(folder)
        return original(self, folder)

    monkeypatch.setattr(LocalStore, "list_names", names)
    assert ARROW.merge(table([1]), f"{lake}/t", key_columns="id").inserted == 1


# M10, R5
def test_changed_rows_are_not_stored_inside_another_dataset(orders: str, lake: str) -> None:
    before = everything(lake)
    with pytest.raises(InvalidArgumentError, match=f"lies inside the dataset {orders}"):
        ARROW.merge(table([1]), f"{lake}/t", key_columns="id", audit=f"{orders}/changes")
    assert everything(lake) == before
