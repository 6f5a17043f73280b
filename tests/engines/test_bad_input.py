"""Bad paths, broken files, full and read-only disks, odd names: a clear error or correct work."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import (
    assert_unchanged,
    break_pages,
    list_data_files,
    load,
    put,
    read_rows,
    runs_on_executors,
    snapshot,
)

import merganser
from merganser.core.storage.local import LocalStore
from merganser.core.storage.remote import RemoteStore
from merganser.errors import (
    DatasetMergeError,
    InvalidArgumentError,
    MerganserError,
    StagingError,
    TargetPathError,
    UnreadableFileError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO


def table(ids: list[int], value: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.string())})


@pytest.fixture
def path(lake: str) -> str:
    """A dataset of two files of two row groups."""
    for number in range(2):
        put(f"{lake}/t/f{number}.parquet", table([100 * number + row for row in range(40)]), row_group_size=20)
    return f"{lake}/t"


# Paths.


@pytest.mark.parametrize("strategy", ["update", "delete"])
def test_updating_a_path_that_does_not_exist_is_refused_and_creates_nothing(
    io: AnyDatasetIO, lake: str, strategy: Literal["update", "delete"]
) -> None:
    # T4, P5: not even a control folder
    merge = partial(io.merge, table([1, 2]), f"{lake}/deep/t", strategy, "id")
    plan = partial(io.plan, table([1, 2]), f"{lake}/deep/t", strategy, "id")
    for call in (merge, plan, partial(merge, batch_id="monday"), partial(merge, audit=True)):
        with pytest.raises(TargetPathError, match=f"There is no dataset at {lake}/deep/t, so strategy '{strategy}'"):
            call()
        assert os.listdir(lake) == []


def test_updating_a_dataset_that_somebody_removed_is_refused(io: AnyDatasetIO, lake: str) -> None:
    # T4: its control folder is still there
    io.merge(table([1]), f"{lake}/t", key_columns="id", batch_id="monday")
    shutil.rmtree(f"{lake}/t")
    for batch in ("monday", "tuesday"):
        with pytest.raises(TargetPathError, match="There is no dataset at"):
            io.merge(table([1]), f"{lake}/t", "update", "id", batch_id=batch)
    assert not os.path.exists(f"{lake}/t")
    assert io.merge(table([1]), f"{lake}/t", key_columns="id", batch_id="monday").inserted == 1


def test_a_file_is_not_a_dataset(io: AnyDatasetIO, lake: str) -> None:
    # P6
    file = put(f"{lake}/t.parquet", table([1]))
    before = Path(file).read_bytes()
    attempts: list[Callable[[], object]] = [
        lambda: io.merge(table([1]), file, "upsert", "id"),
        lambda: io.merge(table([1]), file, "update", "id"),
        lambda: io.plan(table([1]), file, "upsert", "id"),
        lambda: io.write_dataset(table([1]), file, "append"),
        lambda: io.write_dataset(table([1]), file, "overwrite"),
        lambda: io.read(file),
    ]
    for attempt in attempts:
        with pytest.raises(TargetPathError, match=r"t\.parquet is a file; a dataset is a folder"):
            attempt()
    assert Path(file).read_bytes() == before


def test_a_path_below_a_file_is_an_error_that_names_it(io: AnyDatasetIO, lake: str) -> None:
    # P6
    Path(lake, "file").write_bytes(b"x")
    with pytest.raises((OSError, MerganserError), match="file"):
        io.merge(table([1]), f"{lake}/file/t", "upsert", "id")
    assert Path(lake, "file").read_bytes() == b"x"


@pytest.mark.parametrize("path", ["", None, 7, b"bytes"])
def test_an_invalid_path_is_refused(io: AnyDatasetIO, path: Any) -> None:
    # P6
    with pytest.raises(InvalidArgumentError, match="path"):
        io.merge(table([1]), path, "upsert", "id")


def test_an_unknown_filesystem_is_refused(io: AnyDatasetIO, path: str) -> None:
    # C6
    with assert_unchanged(path), pytest.raises(InvalidArgumentError, match="filesystem must be"):
        io.merge(table([1]), path, "upsert", "id", filesystem=object())


def test_a_url_of_an_unknown_protocol_is_refused(io: AnyDatasetIO, lake: str) -> None:
    # C6, S3: as a target and as a source
    with pytest.raises(InvalidArgumentError, match="foo://x/y"):
        io.merge(table([1]), "foo://x/y", "upsert", "id")
    with pytest.raises(InvalidArgumentError, match=r"foo://x/y\.parquet"):
        io.merge("foo://x/y.parquet", f"{lake}/t", "upsert", "id")


# Broken files.


@pytest.mark.parametrize("kind", ["ones", "zeros", "pages"])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("strategy", ["upsert", "update", "full_merge"])
def test_broken_pages_in_an_affected_row_group_are_an_error_with_the_path(
    io: AnyDatasetIO, path: str, kind: str, column: int, strategy: Any
) -> None:
    # P6, C7
    break_pages(f"{path}/f0.parquet", 0, column, kind=kind)
    source = table([1, 101], "new")
    if strategy == "full_merge" and column == 1:
        # Every column of a row that stays comes from the source: what is broken is not read, and goes.
        assert io.merge(source, path, strategy, "id").updated == 2
        assert read_rows(io, path) == [{"id": 1, "v": "new"}, {"id": 101, "v": "new"}]
        return
    with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"f0\.parquet"):
        io.merge(source, path, strategy, "id")


@pytest.mark.parametrize("kind", ["ones", "zeros", "pages"])
@pytest.mark.parametrize("column", [0, 1])
def test_broken_pages_in_a_row_group_that_is_not_affected_stay_as_they_are(
    io: AnyDatasetIO, path: str, kind: str, column: int
) -> None:
    # W2, P2: the row group is neither read nor changed
    file = f"{path}/f0.parquet"
    break_pages(file, 1, column, kind=kind)
    broken = Path(file).read_bytes()
    old = pq.read_metadata(file).row_group(1).column(column)
    start = old.dictionary_page_offset or old.data_page_offset
    try:
        io.merge(table([1], "new"), path, "upsert", "id")
    except UnreadableFileError as error:
        # A file that has to be written whole is read whole.
        message = str(error)
        assert Path(file).read_bytes() == broken
        assert "f0.parquet" in message
        return
    new = pq.read_metadata(file).row_group(1).column(column)
    at = new.dictionary_page_offset or new.data_page_offset
    data = Path(file).read_bytes()
    assert data[at : at + new.total_compressed_size] == broken[start : start + old.total_compressed_size]
    assert pq.ParquetFile(file).read_row_group(0).column("v").to_pylist()[1] == "new"


def test_a_file_truncated_before_its_footer_is_an_error(io: AnyDatasetIO, path: str) -> None:
    # P6: the footer is whole but points past the data
    file = Path(path, "f0.parquet")
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    file.write_bytes(b"PAR1" + data[-8 - length :])
    for strategy in ("upsert", "update"):
        with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"f0\.parquet"):
            io.merge(table([1], "new"), path, strategy, "id")


def test_an_audit_of_broken_keys_is_an_error_with_the_path(io: AnyDatasetIO, path: str) -> None:
    # P6, R5
    break_pages(f"{path}/f1.parquet", 1, 0, kind="ones")
    with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"f1\.parquet"):
        io.merge(table([1], "new"), path, "full_merge", "id", audit=True)


# Disks.


class Full:
    """A stream on a full disk: fails at its first write, at a later one, or only when it is closed."""

    def __init__(self, stream: Any, when: str) -> None:
        self._stream, self._when, self._writes = stream, when, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        self._writes += 1
        if self._when == "write" or (self._when == "later" and self._writes > 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._stream.write(data))

    def close(self) -> None:
        was_open = not self._stream.closed
        self._stream.close()
        if was_open and self._when == "close":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("when", ["write", "later", "close", "flush"])
@pytest.mark.parametrize("action", ["upsert", "insert", "full_merge", "append", "overwrite"])
def test_a_full_disk_changes_nothing(
    io: AnyDatasetIO, path: str, when: str, action: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C7
    create = LocalStore.create

    def flush(_: LocalStore, paths: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), next(iter(paths)))

    if when == "flush":
        monkeypatch.setattr(LocalStore, "flush", flush)
    else:
        monkeypatch.setattr(LocalStore, "create", lambda self, path: Full(create(self, path), when))
    with assert_unchanged(path), pytest.raises(OSError, match="No space left") as caught:
        change(io, path, action)
    # It is not the target that is broken.
    assert not isinstance(caught.value, UnreadableFileError)
    monkeypatch.undo()
    change(io, path, action)
    assert merganser.recover(path) is False


@pytest.mark.parametrize("action", ["upsert", "insert", "full_merge", "append", "overwrite"])
def test_a_disk_too_full_for_a_staged_file_is_named(
    io: AnyDatasetIO, path: str, action: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C7
    def create(_: LocalStore, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(LocalStore, "create", create)
    with (
        assert_unchanged(path),
        pytest.raises(StagingError, match=rf"{path} in .*/\.t\.merganser: .*No space left") as caught,
    ):
        change(io, path, action)
    assert isinstance(caught.value, OSError)


def change(io: AnyDatasetIO, path: str, action: Any) -> object:
    source = table([1, 101, 999], "new")
    if action in {"append", "overwrite"}:
        return io.write_dataset(source, path, action)
    return io.merge(source, path, action, "id")


def test_a_full_object_store_changes_nothing(io: AnyDatasetIO, monkeypatch: pytest.MonkeyPatch) -> None:
    # C7, C6
    root = f"/{uuid.uuid4().hex}"
    path = f"memory:/{root}/t"
    io.merge(table([1, 2]), path, "upsert", "id")
    memory = fsspec.filesystem("memory")
    before = {name: memory.cat_file(name) for name in memory.find(f"{root}/t")}
    create = RemoteStore.create
    monkeypatch.setattr(RemoteStore, "create", lambda self, path: Full(create(self, path), "later"))
    with pytest.raises(OSError, match="No space left"):
        io.merge(table([1, 9], "new"), path, "upsert", "id")
    monkeypatch.undo()
    assert {name: memory.cat_file(name) for name in memory.find(root) if "/t/" in name} == before
    assert not [name for name in memory.find(root) if "staging" in name]
    memory.rm(root, recursive=True)


@pytest.mark.parametrize("method", ["make_folder", "create", "keep_mode", "write_small"])
@pytest.mark.parametrize("action", ["upsert", "append"])
def test_a_folder_that_cannot_be_written_changes_nothing(
    io: AnyDatasetIO, path: str, method: str, action: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C7: simulated, since permissions do not bind root
    if method == "keep_mode" and (action == "append" or runs_on_executors(io)):
        # No file is replaced, or none that this process writes.
        method = "create"

    def refuse(_: LocalStore, path: str, *__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(LocalStore, method, refuse)
    with assert_unchanged(path), pytest.raises(OSError, match="Permission denied: '/") as caught:
        change(io, path, action)
    assert isinstance(caught.value, PermissionError) or isinstance(caught.value.__cause__, PermissionError)


def test_a_read_only_dataset_can_be_planned_and_read(
    io: AnyDatasetIO, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P5
    def refuse(_: LocalStore, path: Any, *__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    for method in ("make_folder", "create", "flush", "replace", "remove", "remove_folder", "write_small"):
        monkeypatch.setattr(LocalStore, method, refuse)
    assert io.plan(table([1, 999], "new"), path, "upsert", "id").updated == 1
    assert load(io, path).num_rows == 80
    assert merganser.recover(path) is False


def test_a_data_file_that_cannot_be_replaced_is_left_to_recovery(
    io: AnyDatasetIO, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C4
    def refuse(_: LocalStore, __: str, target: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)

    before = snapshot(path)
    monkeypatch.setattr(LocalStore, "replace", refuse)
    with pytest.raises(DatasetMergeError, match=r"Permission denied.*recover\(path\)"):
        change(io, path, "upsert")
    assert snapshot(path) == before
    with pytest.raises(DatasetMergeError, match=r"Permission denied.*recover\(path\)"):
        merganser.recover(path)
    monkeypatch.undo()
    assert merganser.recover(path) is True
    assert load(io, path).num_rows == 81


# Names.


NAMES = [
    "it's", 'say "hi"', "a.b", ".", "..", "two words", " lead", "trail ", "名前", "naïve", "\N{DUCK}", "select", "from",
    "order by", "a;b", "a--b", "a/b", "a\\b", "a%b", "a=b", "a,b", "*", "?", "$1", "{x}", "[x]", "new\nline", "tab\t",
    "key_0", "key_1", "source_row", "file", "row_group", "position", "min_0", "max_0", "merge_action", "filename",
    "file_row_number", "index", "__index_level_0__", "rowid", "n" * 300, "0", "-",
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), list(zip(NAMES, [*NAMES[7:], *NAMES[:7]], strict=True)))
def test_a_column_may_have_any_name(io: AnyDatasetIO, lake: str, key: str, value: str) -> None:
    # K2, S1
    path = f"{lake}/t"

    def pairs(ids: list[int], mark: str) -> pa.Table:
        return pa.table({key: pa.array(ids, pa.int64()), value: [f"{mark}{number}" for number in ids]})

    io.merge(pairs([1, 2, 3, 4], "a"), path, "upsert", key, row_group_size=2)
    plan = io.plan(pairs([2, 9], "b"), path, "upsert", key)
    result = io.merge(pairs([2, 9], "b"), path, "upsert", key)
    assert (result.inserted, result.updated) == (plan.inserted, plan.updated) == (1, 1)
    io.merge(pairs([1, 2, 9], "c"), path, "full_merge", key)
    io.merge(pairs([9, 9], "d"), path, "deduplicate", key, dedup_order_by=[value])
    found = {row[key]: row[value] for row in load(io, path).to_pylist()}
    assert found == {1: "c1", 2: "c2", 9: "d9"}
    assert load(io, path).schema.names == [key, value]


@pytest.mark.parametrize("name", NAMES)
def test_an_audit_works_with_any_key_name_or_says_why_not(io: AnyDatasetIO, lake: str, name: str) -> None:
    # R5
    path = f"{lake}/t"
    source = pa.table({name: [1, 2], "v": ["a", "b"]})
    io.merge(source, path, "upsert", name)
    try:
        result = io.merge(source.slice(0, 1), path, "full_merge", name, audit=True)
    except MerganserError as error:
        assert name == "merge_action"
        assert name in str(error)  # noqa: PT017
        assert load(io, path).num_rows == 2
        return
    assert result.audit is not None
    assert len(set(result.audit.column_names)) == 2
    assert sorted(zip(*(column.to_pylist() for column in result.audit.columns), strict=True)) == [
        (1, "update"),
        (2, "delete"),
    ]


def test_columns_with_similar_names_are_kept_apart(io: AnyDatasetIO, lake: str) -> None:
    # S1, K10: a struct's field, and columns whose names join to the same text
    path = f"{lake}/t"
    source = pa.table(
        {
            "a": pa.array([{"b": 1}, {"b": 2}, {"b": 3}]),
            "a.b": [10, 20, 30],
            "a.b.c": ["x", "y", "z"],
            "A": [7, 8, 9],
        }
    )
    io.merge(source, path, "upsert", ["a.b"], row_group_size=1)
    newer = source.set_column(3, "A", pa.array([70, 80, 90])).slice(1, 1)
    result = io.merge(newer, path, "upsert", ["a.b", "a.b.c"])
    assert (result.updated, result.inserted) == (1, 0)
    assert load(io, path).to_pylist()[1] == {"a": {"b": 2}, "a.b": 20, "a.b.c": "y", "A": 80}
    assert load(io, path).column("A").to_pylist() == [7, 80, 9]


@pytest.mark.parametrize("as_key", [True, False])
def test_an_empty_name_works_or_is_refused(io: AnyDatasetIO, lake: str, as_key: bool) -> None:
    # K1
    path = f"{lake}/t"
    key, value = ("", "v") if as_key else ("id", "")
    source = pa.table({key: [1, 2], value: ["a", "b"]})
    try:
        io.merge(source, path, "upsert", [key])
    except MerganserError:
        assert list_data_files(path) == []
        return
    io.merge(pa.table({key: [2, 3], value: ["B", "C"]}), path, "upsert", [key])
    assert {row[key]: row[value] for row in load(io, path).to_pylist()} == {1: "a", 2: "B", 3: "C"}


def test_two_columns_of_one_name_are_refused(io: AnyDatasetIO, path: str, lake: str) -> None:
    # S2
    twice = pa.table([[1], [2], ["x"]], names=["id", "id", "v"])
    with assert_unchanged(path), pytest.raises((ValueError, MerganserError), match="id"):
        io.merge(twice, path, "upsert", "id")
    with pytest.raises((ValueError, MerganserError), match="id"):
        io.merge(twice, f"{lake}/other", "upsert", "id")
    with pytest.raises((ValueError, MerganserError), match="id"):
        io.write_dataset(twice, f"{lake}/other", "overwrite")
    assert list_data_files(f"{lake}/other") == []


@pytest.mark.parametrize("name", [name for name in NAMES if "=" not in name and "/" not in name])
def test_a_partition_column_may_have_any_name_or_is_refused(io: AnyDatasetIO, lake: str, name: str) -> None:
    # H3
    path = f"{lake}/t"
    source = pa.table({"id": [1, 2], "v": ["a", "b"], name: ["x", "y"]})
    try:
        io.merge(source, path, "upsert", "id", [name])
    except (MerganserError, OSError):
        assert list_data_files(path) == []
        return
    io.merge(source.set_column(1, "v", pa.array(["A", "B"])).slice(1), path, "upsert", "id")
    assert read_rows(io, path) == [{"id": 1, "v": "a", name: "x"}, {"id": 2, "v": "B", name: "y"}]


@pytest.mark.parametrize("source", [None, 7, [1, 2], {"id": [1]}, object(), "no/such/file.parquet", "x.unknown"])
def test_a_source_that_cannot_be_read_is_refused(io: AnyDatasetIO, path: str, source: Any) -> None:
    # C7
    with assert_unchanged(path), pytest.raises(MerganserError):
        io.merge(source, path, "upsert", "id")


def test_a_source_that_fails_while_it_is_read_changes_nothing(io: AnyDatasetIO, path: str) -> None:
    # C7
    def batches() -> Any:
        yield from table([1, 2], "new").to_batches()
        raise RuntimeError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(table([]).schema, batches())
    with assert_unchanged(path), pytest.raises(Exception, match="the source is gone"):
        io.merge(reader, path, "upsert", "id")
