"""Files: which ones are data, what a plan reports, and what a rewrite keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode, b64encode
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from tests.arrow_versions import bloom_filters, needs_bloom_filters
from tests.support import assert_unchanged, list_data_files, load, put, read_rows, snapshot

import merganser
from merganser.core.parquet.thrift import FILE_METADATA, read_struct_at, write_struct
from merganser.core.storage.local import LocalStore
from merganser.errors import DatasetMergeError, UnreadableFileError, UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec import AbstractFileSystem
    from tests.support import AnyDatasetIO

    from merganser.core.model.strategy import MergeStrategy


def table(ids: list[int], value: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.string())})


# Plans.


def test_a_plan_changes_nothing_and_reports_what_the_merge_does(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P5
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2, 3, 4]), row_group_size=2)
    put(f"{path}/b.parquet", table([10, 30]))
    put(f"{path}/c.parquet", table([100, 300]))
    put(f"{path}/d.parquet", table([]))
    source = table([1, 20, 99], "new")
    before = snapshot(lake)

    def refuse(*_: Any) -> None:
        raise AssertionError("a plan must not change the disk")

    for name in ("make_folder", "create", "flush", "replace", "remove", "remove_folder", "write_small", "keep_mode"):
        monkeypatch.setattr(LocalStore, name, refuse)
    plan = io.plan(source, path, "upsert", "id")
    monkeypatch.undo()
    assert snapshot(lake) == before
    assert os.listdir(lake) == ["t"]
    actions = {os.path.basename(file.path): (file.action, file.reason) for file in plan.files}
    assert actions == {
        "a.parquet": ("rewrite", "it holds matched rows"),
        "b.parquet": ("preserve", "its keys were scanned and none matches"),
        "c.parquet": ("preserve", "no source key lies inside its bounds"),
        "d.parquet": ("preserve", "it has no rows"),
    }
    first = plan.files[0]
    assert (first.rows, first.row_groups, first.candidate_groups, first.affected_groups) == (4, 2, 1, 1)
    text = str(plan)
    assert text.splitlines()[0] == (
        f"upsert of 3 rows into {path} on id: 2 inserted, 1 updated, 0 deleted; 8 rows before, 10 after"
    )
    for file in plan.files:
        assert f"{file.action:<8} {file.path}" in text
        assert file.reason in text
    result = io.merge(source, path, "upsert", "id")
    assert (plan.inserted, plan.updated, plan.deleted) == (result.inserted, result.updated, result.deleted)
    assert (plan.target_count_before, plan.target_count_after) == (8, result.target_count_after)
    assert [file.path for file in plan.files if file.action == "rewrite"] == result.rewritten_files


def test_a_plan_reports_preserved_and_removed_files_too(io: AnyDatasetIO, lake: str) -> None:
    # P5
    path = f"{lake}/t"
    put(f"{path}/day=a/f.parquet", table([1, 2]))
    put(f"{path}/day=b/f.parquet", table([3]))
    put(f"{path}/day=__HIVE_DEFAULT_PARTITION__/f.parquet", table([4]))
    source = table([1], "new").append_column("day", pa.array(["a"]))

    def plan(strategy: Any, keys: list[str]) -> list[tuple[str, str]]:
        return [(file.action, file.reason) for file in io.plan(source, path, strategy, keys).files]

    null, first, second = plan("upsert", ["id", "day"])
    assert null == ("preserve", "its 'day' is NULL, which no key matches")
    assert first == ("rewrite", "it holds matched rows")
    assert second == ("preserve", "the source has no row for its partition")
    assert plan("insert", ["id", "day"])[1] == ("preserve", "it holds matched rows, which stay as they are")
    assert plan("full_merge", ["id"])[2] == ("remove", "none of its rows is in the source")
    empty = io.plan(source.slice(0, 0), path, "full_merge", ["id"])
    assert empty.target_count_after == 0
    assert [file.action for file in empty.files] == ["rewrite", "remove", "remove"]
    assert "schema" in empty.files[0].reason


def test_a_plan_into_nothing_creates_nothing(io: AnyDatasetIO, lake: str) -> None:
    # P5
    plan = io.plan(table([1, 2]), f"{lake}/t", "upsert", "id")
    assert (plan.inserted, plan.target_count_before, plan.files) == (2, 0, ())
    assert os.listdir(lake) == []


# Listing and footers.


def attempts(io: AnyDatasetIO, path: str, source: pa.Table | None = None) -> list[Callable[[], object]]:
    """Return everything that looks at a target."""
    rows = table([1, 99], "new") if source is None else source
    return [
        lambda: io.merge(rows, path, "upsert", "id"),
        lambda: io.merge(rows, path, "insert", "id"),
        lambda: io.merge(rows, path, "full_merge", "id"),
        lambda: io.plan(rows, path, "upsert", "id"),
        lambda: io.write_dataset(rows, path, "append"),
        lambda: io.read(path),
    ]


def test_a_listing_that_fails_is_an_error_with_its_path(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P6: never "no target", which would insert every source row again
    path = f"{lake}/t"
    put(f"{path}/day=a/f.parquet", table([1]))
    put(f"{path}/day=b/f.parquet", table([2]))
    original = os.scandir

    def scandir(folder: Any) -> Any:
        if str(folder).rstrip("/").endswith("day=b"):
            raise PermissionError(13, "Permission denied", str(folder))
        return original(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    before = {name: Path(path, name).read_bytes() for name in ("day=a/f.parquet", "day=b/f.parquet")}
    source = table([1, 99], "new").append_column("day", pa.array(["a", "a"]))
    for attempt in attempts(io, path, source):
        with pytest.raises(OSError, match=r"day=b"):
            attempt()
    monkeypatch.undo()
    assert snapshot(path) == before


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem with fsspec's own `find`, whose listing of some folders fails."""

    protocol = "failing"
    cachable = False
    find = fsspec.AbstractFileSystem.find
    fails = ""

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if self.fails and path.rstrip("/").endswith(self.fails):
            raise PermissionError(f"the token for {path} is out of date")
        return super().ls(path, detail=detail, **options)


@pytest.mark.parametrize("fails", ["/t", "/day=b", "/deep"])
def test_a_remote_listing_that_fails_is_an_error(io: AnyDatasetIO, lake: str, fails: str) -> None:
    # P6: in the root or below it
    root, memory = f"/{Path(lake).name}/t", fsspec.filesystem("memory")
    for day in ("day=a", "day=b/deep"):
        memory.makedirs(f"{root}/{day}", exist_ok=True)
        memory.pipe_file(f"{root}/{day}/f.parquet", WHOLE)
    before = {name: memory.cat_file(name) for name in memory.find(root)}
    filesystem = Failing()
    filesystem.fails = fails
    io.filesystem = filesystem
    source = table([1, 9999], "new").append_column("day", pa.array(["b", "b"]))
    for attempt in attempts(io, root, source):
        with pytest.raises(OSError, match="out of date"):
            attempt()
    assert {name: memory.cat_file(name) for name in memory.find(root)} == before


def test_a_listing_that_fails_below_another_filesystem_is_an_error(io: AnyDatasetIO, lake: str) -> None:
    # P6: a filesystem around another may have a `find` that leaves out what it cannot list
    name, inner = Path(lake).name, Failing()
    io.filesystem = DirFileSystem(f"/{name}", fs=inner)
    source = table([1, 2]).append_column("day", pa.array(["a", "b"]))
    io.merge(source, "t", "upsert", "id", "day")
    before = read_data_files(inner, f"/{name}/t")
    inner.fails = "/day=b"
    for attempt in attempts(io, "t", source):
        with pytest.raises(OSError, match="out of date"):
            attempt()
    inner.fails = ""
    assert read_data_files(inner, f"/{name}/t") == before


def read_data_files(filesystem: AbstractFileSystem, root: str) -> dict[str, bytes]:
    """Every file of a dataset with its bytes, without those of a control folder inside."""
    return {file: filesystem.cat_file(file) for file in filesystem.find(root) if ".merganser/" not in file}


def _whole() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(list(range(500))), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


WHOLE = _whole()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PAR1", id="start only"),
        pytest.param(b"PAR1PAR1", id="no footer"),
        pytest.param(b"PAR1\x00\x00\x00\x00PAR1", id="footer of no bytes"),
        pytest.param(WHOLE[: len(WHOLE) // 2], id="first half"),
        pytest.param(WHOLE[:-1], id="last byte missing"),
        pytest.param(WHOLE[:-4] + b"XXXX", id="other magic"),
        pytest.param(WHOLE[:-8] + b"\xff\xff\xff\xff" + b"PAR1", id="footer of 4 GB"),
        pytest.param(WHOLE[:-8] + b"\xff\xff\xff\x7f" + b"PAR1", id="footer of 2 GB"),
        pytest.param(WHOLE[:-8] + len(WHOLE).to_bytes(4, "little") + b"PAR1", id="footer longer than the file"),
        pytest.param(WHOLE[:-8] + b"\x01\x00\x00\x00" + b"PAR1", id="footer of one byte"),
        pytest.param(b"PAR1" + b"\xff" * 600 + (600).to_bytes(4, "little") + b"PAR1", id="footer of ones"),
        pytest.param(b"PAR1" + b"\x00" * 600 + (600).to_bytes(4, "little") + b"PAR1", id="footer of zeros"),
        pytest.param(b"id,v\n1,a\n2,b\n3,c\n", id="text"),
    ],
)
def test_a_footer_that_cannot_be_read_is_an_error_with_its_path(io: AnyDatasetIO, lake: str, data: bytes) -> None:
    # P6
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2]))
    Path(path, "b.parquet").write_bytes(data)
    for attempt in attempts(io, path):
        with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"/t/b\.parquet"):
            attempt()


@pytest.mark.parametrize("column", [0, 1])
def test_a_column_shorter_than_its_row_group_is_an_error_with_its_path(
    io: AnyDatasetIO, lake: str, column: int
) -> None:
    # P6, C7
    path = f"{lake}/t"
    file = Path(put(f"{path}/a.parquet", table([5, 6, 7])))
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct_at(data[-8 - length : -8], 0, FILE_METADATA)
    footer[4][0][1][column][3].values[5] = 0
    changed = write_struct(footer)
    file.write_bytes(data[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"/t/a\.parquet"):
        io.merge(table([6], "new"), path, "update", "id")


@pytest.mark.slow
def test_a_footer_with_a_byte_changed_fails_cleanly_if_at_all(io: AnyDatasetIO, lake: str) -> None:
    # P6: every third byte in turn; no other error than our own, and a refused merge changes nothing
    path = f"{lake}/t"
    sink = pa.BufferOutputStream()
    pq.write_table(table([5, 6, 7]), sink, store_schema=False)
    data = bytearray(sink.getvalue().to_pybytes())
    length = int.from_bytes(data[-8:-4], "little")
    os.makedirs(path)
    file = Path(path, "a.parquet")
    for place in range(len(data) - 8 - length, len(data) - 8, 3):
        changed = bytearray(data)
        changed[place] ^= 0x55
        file.write_bytes(changed)
        try:
            io.merge(table([6], "new"), path, "update", "id")
        except DatasetMergeError:
            assert file.read_bytes() == changed


def test_a_file_that_cannot_be_opened_is_an_error_with_its_path(
    io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P6
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2]))
    put(f"{path}/b.parquet", table([3, 4]))
    original = LocalStore.open_input

    def refuse(self: LocalStore, file: str) -> Any:
        if "/b.parquet" in file:
            raise PermissionError(13, "Permission denied", file)
        return original(self, file)

    monkeypatch.setattr(LocalStore, "open_input", refuse)
    for attempt in attempts(io, path):
        with assert_unchanged(path), pytest.raises(UnreadableFileError, match=r"b\.parquet.*Permission denied"):
            attempt()


def test_a_link_that_leads_nowhere_is_an_error(io: AnyDatasetIO, lake: str) -> None:
    # P6: perhaps its disk is not mounted; its rows are not absent
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2]))
    os.symlink(f"{lake}/unmounted/b.parquet", f"{path}/b.parquet")
    for attempt in attempts(io, path):
        with pytest.raises(OSError, match=r"b\.parquet"):
            attempt()
    os.remove(f"{path}/b.parquet")
    os.symlink(f"{lake}/unmounted/notes.txt", f"{path}/notes.txt")
    assert io.merge(table([1], "new"), path, "upsert", "id").updated == 1


# What is data.


def test_hidden_files_and_folders_are_not_data(io: AnyDatasetIO, lake: str) -> None:
    # P7
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1]))
    hidden = ["_a.parquet", ".a.parquet", ".parquet", "_tmp/a.parquet", ".tmp/a.parquet", "x/_y/a.parquet", "_SUCCESS"]
    for name in hidden:
        Path(path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(path, name).write_bytes(WHOLE)
    before = snapshot(path)
    assert merganser.core.list_dataset_files(path) == [f"{path}/a.parquet"]
    result = io.merge(table([1, 2], "new"), path, "full_merge", "id")
    assert (result.target_count_before, result.updated, result.deleted) == (1, 1, 0)
    after = snapshot(path)
    assert {name: after[name] for name in hidden} == {name: before[name] for name in hidden}
    assert read_rows(io, path) == [{"id": 1, "v": "new"}, {"id": 2, "v": "new"}]


def test_an_underscore_before_an_equals_sign_is_data(io: AnyDatasetIO, lake: str) -> None:
    # P7
    path = f"{lake}/t"
    put(f"{path}/_day=1/a.parquet", table([1]))
    put(f"{path}/_day=2/a.parquet", table([2]))
    put(f"{path}/_day=2/_x=1.parquet", table([3]))
    source = table([1, 3, 9], "new").append_column("_day", pa.array([1, 2, 3]))
    result = io.merge(source, path, "upsert", "id")
    assert (result.inserted, result.updated, result.target_count_before) == (1, 2, 3)
    assert [name.split("/")[0] for name in list_data_files(path)] == ["_day=1", "_day=2", "_day=2", "_day=3"]


@pytest.mark.parametrize("name", ["part-0", "a.PARQUET", "a.parquet.bak", "a.parq", "x=1/part-0", "deep/er/part-0"])
def test_parquet_under_another_name_is_refused(io: AnyDatasetIO, lake: str, name: str) -> None:
    # P7: Spark and PyArrow would read its rows, DuckDB's glob would not
    path = f"{lake}/t"
    put(f"{path}/x=1/a.parquet", table([1]))
    Path(path, name).parent.mkdir(parents=True, exist_ok=True)
    Path(path, name).write_bytes(WHOLE)
    source = table([1], "new").append_column("x", pa.array([1]))
    for attempt in attempts(io, path, source):
        with assert_unchanged(path), pytest.raises(UnsupportedFileError, match=f"/t/{name} holds Parquet data"):
            attempt()


def test_other_visible_files_are_left_alone(io: AnyDatasetIO, lake: str) -> None:
    # P7
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2]))
    others = {"README.md": b"# about", "empty": b"", "x": b"PAR", "notes/data.csv": b"id,v\n", "a.parquet.crc": b"crc"}
    for name, data in others.items():
        Path(path, name).parent.mkdir(exist_ok=True)
        Path(path, name).write_bytes(data)
    os.mkfifo(f"{path}/pipe")
    os.makedirs(f"{path}/nothing.parquet")
    io.merge(table([1], "new"), path, "full_merge", "id")
    os.remove(f"{path}/pipe")
    assert {name: data for name, data in snapshot(path).items() if name in others} == others
    assert read_rows(io, path) == [{"id": 1, "v": "new"}]


def test_a_folder_named_like_a_file_is_a_folder(io: AnyDatasetIO, lake: str) -> None:
    # P7: what Spark makes of `save("x.parquet")`
    path = f"{lake}/t.parquet"
    put(f"{path}/sub.parquet/a.parquet", table([1, 2]))
    io.merge(table([1, 3], "new"), path, "upsert", "id")
    assert [row["id"] for row in read_rows(io, path)] == [1, 2, 3]
    assert os.listdir(f"{path}/sub.parquet") == ["a.parquet"]


class Keys(pe.KmsClient):  # type: ignore[misc]
    """A key store that wraps keys by writing them out."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _: str) -> bytes:
        return b64decode(wrapped_key)


@pytest.mark.parametrize("plaintext_footer", [False, True])
@pytest.mark.parametrize("only_others", [False, True])
def test_encrypted_files_are_refused(io: AnyDatasetIO, lake: str, plaintext_footer: bool, only_others: bool) -> None:
    # P8: also where the footer is plain and only some columns are not
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1, 2]))
    config = pe.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"column": ["v"] if only_others else ["id", "v"]},
        plaintext_footer=plaintext_footer,
        cache_lifetime=timedelta(minutes=5),
    )
    secret = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    rows = table([5, 6], "secret")
    with pq.ParquetWriter(f"{path}/b.parquet", rows.schema, encryption_properties=secret) as writer:
        writer.write_table(rows)
    for attempt in attempts(io, path):
        with assert_unchanged(path), pytest.raises(UnsupportedFileError, match=r"b\.parquet is encrypted"):
            attempt()


# Rewrites.


def test_rows_keep_their_order_and_updated_rows_their_place(io: AnyDatasetIO, lake: str) -> None:
    # W1
    path = f"{lake}/t"
    ids = np.random.default_rng(7).permutation(1000).tolist()
    put(f"{path}/a.parquet", table(ids), row_group_size=97)
    touched = {key for key in ids if key % 7 == 0}
    io.merge(table(sorted(touched), "new"), path, "update", "id")
    found = pq.read_table(f"{path}/a.parquet").to_pylist()
    assert found == [{"id": key, "v": "new" if key in touched else "old"} for key in ids]
    kept = [key for key in ids if key % 3 == 0]
    io.merge(table(sorted(kept), "kept"), path, "full_merge", "id")
    assert pq.read_table(f"{path}/a.parquet").column("id").to_pylist() == kept


def test_several_rows_of_one_key_each_keep_their_place(io: AnyDatasetIO, lake: str) -> None:
    # W1
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([3, 1, 3, 2, 3]), row_group_size=2)
    assert io.merge(table([3], "new"), path, "upsert", "id").updated == 3
    assert pq.read_table(f"{path}/a.parquet").column("v").to_pylist() == ["new", "old", "new", "old", "new"]


def many_columns(ids: range, mark: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([f"text {mark} {key % 5}" for key in ids]),
            "plain": pa.array([f"plain {mark} {key}" for key in ids]),
            "number": pa.array([mark * 1000 + key for key in ids], pa.int32()),
            "amount": pa.array([Decimal(key) / 4 + mark for key in ids], pa.decimal128(9, 2)),
            "real": pa.array([key / 3 + mark for key in ids], pa.float64()),
            "flag": pa.array([None if key % 11 == 0 else bool(key % 2) for key in ids], pa.bool_()),
            "list": pa.array([[key, mark] for key in ids], pa.list_(pa.int64())),
        }
    )


SETTINGS = [
    {
        "compression": {
            "id": "zstd", "text": "gzip", "plain": "none", "number": "lz4", "amount": "brotli", "real": "snappy",
            "flag": "none", "list.list.element": "zstd",
        },
        "use_dictionary": ["text", "number"],
        "write_statistics": ["id", "text", "number"],
    },
    {"compression": "zstd", "use_dictionary": False, "store_decimal_as_integer": True, "write_page_index": True},
    {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "plain": "DELTA_BYTE_ARRAY", "real": "BYTE_STREAM_SPLIT"},
        "data_page_version": "2.0",
    },
    # A file that is rewritten whole gets the newest version.
    pytest.param({"store_schema": False, "version": "1.0"}, marks=pytest.mark.splice),
]  # fmt: skip


def described(path: str) -> list[tuple[Any, ...]]:
    """Return how each column of each row group is stored."""
    metadata = pq.read_metadata(path)
    found = []
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(leaf)
            dictionary = any("DICTIONARY" in name for name in chunk.encodings)
            special = sorted(name for name in chunk.encodings if name.startswith(("DELTA", "BYTE_STREAM")))
            facts = (chunk.physical_type, chunk.compression, dictionary, special, chunk.is_stats_set)
            found.append((group, chunk.path_in_schema, *facts))
    return found


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("touched", [range(3), range(0, 400, 2), range(400)])
def test_a_rewrite_keeps_how_each_column_is_stored(
    io: AnyDatasetIO, lake: str, settings: dict[str, Any], touched: range
) -> None:
    # W2
    path = f"{lake}/t"
    old = many_columns(range(400), 0).replace_schema_metadata({"owner": "someone"})
    put(f"{path}/a.parquet", old, row_group_size=100, **settings)
    before, metadata = described(f"{path}/a.parquet"), pq.read_metadata(f"{path}/a.parquet")
    source = many_columns(range(400), 7).take(pa.array(touched))
    result = io.merge(source, path, "upsert", "id", compression="gzip")
    assert result.updated == len(touched)
    assert described(f"{path}/a.parquet") == before
    after = pq.read_metadata(f"{path}/a.parquet")
    assert after.schema.equals(metadata.schema)
    assert after.metadata == metadata.metadata
    assert after.format_version == metadata.format_version
    expected = many_columns(range(400), 0).to_pylist()
    for row in source.to_pylist():
        expected[row["id"]] = row
    assert pq.read_table(f"{path}/a.parquet").to_pylist() == expected
    with duckdb.connect() as connection:
        count = connection.execute("SELECT count(*) FROM read_parquet(?) WHERE number >= 7000", [f"{path}/a.parquet"])
        assert count.fetchall() == [(len(touched),)]


@pytest.mark.splice
def test_each_row_group_keeps_its_own_dictionaries(io: AnyDatasetIO, lake: str) -> None:
    # W2: the first row group gave its dictionary up, the second did not
    path, count = f"{lake}/t", 60_000
    unique = [f"{number:032x}" for number in range(count)]
    few = [f"one of five {number % 5}" for number in range(count)]
    rows = pa.table({"id": range(2 * count), "v": unique + few})
    put(f"{path}/a.parquet", rows, row_group_size=count, compression="none")
    old = [pq.read_metadata(f"{path}/a.parquet").row_group(group).column(1) for group in range(2)]
    assert "PLAIN" in old[0].encodings
    assert io.merge(table([count + 1], "new"), path, "update", "id").updated == 1
    new = pq.read_metadata(f"{path}/a.parquet").row_group(1).column(1)
    assert "RLE_DICTIONARY" in new.encodings
    assert new.total_compressed_size < 1.1 * old[1].total_compressed_size
    io.merge(table([1], "new"), path, "update", "id")
    first = pq.read_metadata(f"{path}/a.parquet").row_group(0).column(1)
    assert first.total_compressed_size < 1.1 * old[0].total_compressed_size


@needs_bloom_filters
def test_a_bloom_filter_is_dropped_with_the_values_it_describes(io: AnyDatasetIO, lake: str) -> None:
    # W2: a stale filter would hide the new rows from DuckDB
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table(list(range(200))), row_group_size=50, **bloom_filters(v=50))
    io.merge(table([3, 60], "brand new"), path, "upsert", "id")
    with duckdb.connect() as connection:
        for value, count in (("brand new", 2), ("old", 198)):
            query = "SELECT count(*) FROM read_parquet(?) WHERE v = ?"
            assert connection.execute(query, [f"{path}/a.parquet", value]).fetchall() == [(count,)]


@needs_bloom_filters
def test_a_new_file_has_the_bloom_filters_of_an_old_one(io: AnyDatasetIO, lake: str) -> None:
    # W2
    path = f"{lake}/t"
    old = pa.table({"id": range(100), "code": [f"old {n}" for n in range(100)], "v": ["old"] * 100})
    put(f"{path}/a.parquet", old, **bloom_filters(code=100, v=2))
    new = pa.table({"id": range(2_000), "code": [f"new {n}" for n in range(2_000)], "v": ["new"] * 2_000})
    (written,) = io.merge(new, path, "upsert", ["id", "code"]).inserted_files
    chunks = [pq.read_metadata(written).row_group(0).column(number) for number in range(3)]
    # Those of keys; the others may be of any size.
    assert [(chunk.bloom_filter_length or 0) > 2_000 for chunk in chunks] == [False, True, False]
    probe = "SELECT bloom_filter_excludes FROM parquet_bloom_probe(?, 'code', ?)"
    with duckdb.connect() as connection:
        for value, excluded in (("new 1999", False), ("old 7", True)):
            assert connection.execute(probe, [written, value]).fetchall() == [(excluded,)]


def test_a_file_without_rows_is_removed(io: AnyDatasetIO, lake: str) -> None:
    # W3
    path = f"{lake}/t"
    for number in range(3):
        put(f"{path}/f{number}.parquet", table([number, 10 + number]))
    result = io.merge(table([1], "new"), path, "full_merge", "id")
    assert list_data_files(path) == ["f1.parquet"]
    assert result.removed_files == [f"{path}/f0.parquet", f"{path}/f2.parquet"]
    assert (result.deleted, result.target_count_after) == (5, 1)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_dataset_left_with_no_rows_keeps_one_file_and_its_schema(
    io: AnyDatasetIO, lake: str, partitioned: bool
) -> None:
    # W3
    path = f"{lake}/t"
    source = table(list(range(6))).append_column("day", pa.array(["a", "b"] * 3))
    columns = ["day"] if partitioned else None
    io.merge(source, path, "upsert", "id", columns, max_rows_per_file=3, row_group_size=1)
    schema = load(io, path).schema
    result = io.merge(source.slice(0, 0), path, "full_merge", "id")
    assert (result.deleted, result.target_count_after) == (6, 0)
    assert len(list_data_files(path)) == 1
    assert [file.row_count for file in result.files] == [0]
    assert load(io, path).schema == schema
    assert load(io, path).num_rows == 0
    again = io.merge(source, path, "full_merge", "id")
    assert (again.target_count_before, again.inserted, again.deleted) == (0, 6, 0)
    assert load(io, path).num_rows == 6


@pytest.mark.parametrize("partition_by", [None, "day"])
@pytest.mark.parametrize("operation", ["insert", "upsert", "full_merge", "deduplicate", "append", "overwrite"])
def test_the_file_that_kept_the_schema_is_removed_with_the_first_rows(
    io: AnyDatasetIO, lake: str, partition_by: str | None, operation: Any
) -> None:
    # W3, T2, O2, R1, M9
    path = f"{lake}/t"
    source = table([1, 2]).append_column("day", [["mon", "tue"]])
    io.write_dataset(source, path, partition_by=partition_by)
    io.merge(source.slice(0, 0), path, "full_merge", "id")
    (empty,) = list_data_files(path)
    schema, before = load(io, path).schema, snapshot(path)
    if operation in ("append", "overwrite"):
        written = io.write_dataset(source, path, operation, retain=1)
        removed, inserted = written.removed_files, [file.path for file in written.files]
    else:
        planned = io.plan(source, path, operation, "id")
        assert [(file.path, file.action) for file in planned.files] == [(f"{path}/{empty}", "remove")]
        result = io.merge(source, path, operation, "id", retain=1)
        assert (result.inserted, result.deleted, result.target_count_after) == (2, 0, 2)
        assert (result.rewritten_files, result.preserved_files) == ([], [])
        removed, inserted = result.removed_files, result.inserted_files
    assert removed == [f"{path}/{empty}"]
    assert [f"{path}/{name}" for name in list_data_files(path)] == sorted(inserted)
    assert len(inserted) == (2 if partition_by else 1)
    assert load(io, path).schema.equals(schema, check_metadata=True)
    assert [row["id"] for row in read_rows(io, path)] == [1, 2]
    changes = {file.path: file.operation for file in merganser.history(path)[0].files}
    assert changes == {empty: "removed", **{os.path.relpath(name, path): "inserted" for name in inserted}}
    merganser.undo(path)
    assert snapshot(path) == before


def test_the_file_that_keeps_the_schema_stays_until_rows_are_added(io: AnyDatasetIO, lake: str) -> None:
    # W3, M5
    path = f"{lake}/t"
    io.write_dataset(table([]), path)
    before = snapshot(path)
    tried: dict[MergeStrategy, list[int]] = {"insert": [], "update": [1], "full_merge": [], "delete": [1]}
    for strategy, ids in tried.items():
        assert io.merge(table(ids), path, strategy, "id").removed_files == []
    assert io.write_dataset(table([]), path, "append").removed_files == []
    assert snapshot(path) == before


def test_a_file_without_rows_stays_beside_others(io: AnyDatasetIO, lake: str) -> None:
    # W3: another writer may have made it
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1]))
    put(f"{path}/empty.parquet", table([]))
    assert io.merge(table([1, 2]), path, "upsert", "id").removed_files == []
    assert io.write_dataset(table([3]), path, "append").removed_files == []
    assert f"{path}/empty.parquet" in io.merge(table([4]), path, "insert", "id").preserved_files


# W3, W6
@pytest.mark.parametrize("call", ["merge", "append"])
def test_a_link_to_a_file_without_rows_stays_when_rows_come(io: AnyDatasetIO, lake: str, call: str) -> None:
    path, none = f"{lake}/t", pa.table({"id": pa.array([], pa.int64())})
    put(f"{lake}/apart/a.parquet", none)
    put(f"{path}/b.parquet", none)
    os.symlink(f"{lake}/apart/a.parquet", f"{path}/a.parquet")
    if call == "merge":
        io.merge(pa.table({"id": [1]}), path, key_columns="id")
    else:
        io.write_dataset(pa.table({"id": [1]}), path, "append")
    assert os.readlink(f"{path}/a.parquet") == f"{lake}/apart/a.parquet"
    assert not os.path.exists(f"{path}/b.parquet")
    assert load(io, path).column("id").to_pylist() == [1]


def test_a_full_rewrite_does_not_keep_the_file_without_rows(lake: str) -> None:
    # W3, D8
    path = f"{lake}/t"
    io = merganser.DuckDBDatasetIO()
    io.write_dataset(table([]), path)
    (empty,) = list_data_files(path)
    result = io.write_parquet_dataset(table([1]), path, "upsert", "id", rewrite_mode="full")
    assert isinstance(result, merganser.MergeResult)
    assert (result.rewritten_files, result.removed_files) == ([], [f"{path}/{empty}"])
    assert len(list_data_files(path)) == 1


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_new_files_have_the_requested_layout(io: AnyDatasetIO, lake: str, compression: str) -> None:
    # W4
    path = f"{lake}/t"
    source = table(list(range(25))).append_column("day", pa.array(["a"] * 20 + ["b"] * 5))
    options: dict[str, Any] = {"compression": compression, "max_rows_per_file": 8, "row_group_size": 3}
    result = io.merge(source, path, "upsert", "id", "day", **options)
    assert sorted(file.row_count for file in result.files) == [4, 5, 8, 8]
    for file in result.files:
        metadata = pq.read_metadata(file.path)
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        assert max(group.num_rows for group in groups) <= 3
        names = {"none": "UNCOMPRESSED"}
        assert groups[0].column(0).compression == names.get(compression, compression.upper())
        assert os.stat(file.path).st_size == file.size_bytes
    assert len(set(result.inserted_files)) == 4
    more = io.merge(source.set_column(0, "id", pa.array(range(100, 125))), path, "insert", "id", **options)
    assert not set(more.inserted_files) & set(result.inserted_files)
    assert more.preserved_files == sorted(result.inserted_files)


def test_new_files_beside_old_ones_share_their_metadata(io: AnyDatasetIO, lake: str) -> None:
    # W4, W2: one schema, however many writers
    path = f"{lake}/t"
    put(f"{path}/a.parquet", table([1]).replace_schema_metadata({"owner": "someone"}))
    result = io.merge(table([2]), path, "upsert", "id")
    assert pq.read_schema(result.inserted_files[0]).metadata == {b"owner": b"someone"}


MEASURED = """
import resource, sys
import pyarrow as pa
from tests.support import open_dataset_io
engine, path, groups, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
io = open_dataset_io(engine)
source = pa.table({"id": [group * rows for group in range(groups)], **{f"c{n}": [0.5] * groups for n in range(5)}})
io.merge(source.slice(0, 1), path + "-warm", "upsert", "id")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = io.merge(source, path, "upsert", "id")
assert result.updated == groups, result
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_memory_is_bounded_by_row_groups_not_by_the_file(engine: str, lake: str) -> None:
    # W5: a file of 288 MB in row groups of 9.6 MB, every one of them changed
    groups, count = 30, 200_000
    path = f"{lake}/t"
    os.makedirs(path)
    schema = pa.schema([("id", pa.int64()), *((f"c{number}", pa.float64()) for number in range(5))])
    random = np.random.default_rng(1)
    values = [pa.array(random.random(count)) for _ in range(5)]
    with pq.ParquetWriter(f"{path}/a.parquet", schema, compression="none", use_dictionary=False) as writer:
        for group in range(groups):
            ids = pa.array(np.arange(group * count, (group + 1) * count))
            writer.write_table(pa.table([ids, *values], schema=schema), row_group_size=count)
    assert os.stat(f"{path}/a.parquet").st_size > 250 << 20
    command = [sys.executable, "-c", MEASURED, engine, path, str(groups), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert int(done.stdout) < 150, f"{done.stdout} MB more than before"


REPEATED = """
import os, sys
os.cpu_count = lambda: 2  # as many row groups are worked on at a time
import pyarrow as pa
from tests.support import open_dataset_io
engine, path = sys.argv[1:]
source = pa.table({"id": [1], "v": ["y" * 2000]})
before = pa.default_memory_pool().max_memory()
result = open_dataset_io(engine).merge(source, path, "update", "id")
print(result.updated, (pa.default_memory_pool().max_memory() - before) >> 20)
"""


@pytest.mark.slow
def test_rows_of_a_repeated_key_are_taken_row_group_by_row_group(engine: str, lake: str) -> None:
    # W5, K9: a source row of 2 KB becomes 20 row groups of 4 MB each
    groups, count = 20, 2000
    put(f"{lake}/t/a.parquet", table([1] * groups * count), row_group_size=count)
    command = [sys.executable, "-c", REPEATED, engine, f"{lake}/t"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    updated, peak = map(int, done.stdout.split())
    assert updated == groups * count
    assert peak < 50, f"{peak} MB, of {groups * count * 2000 >> 20} MB for all rows at once"


def test_a_new_file_has_dictionaries_where_an_old_one_has_them(io: AnyDatasetIO, lake: str) -> None:
    # W2
    path, count = f"{lake}/t", 60_000
    unique, few = (
        [f"{number:032x}" for number in range(count)],
        [f"one of five {number % 5}" for number in range(count)],
    )
    put(f"{path}/a.parquet", pa.table({"id": range(count), "unique": unique, "few": few}), compression="none")
    assert "PLAIN" in pq.read_metadata(f"{path}/a.parquet").row_group(0).column(1).encodings
    source = pa.table({"id": [count, count + 1], "unique": ["x", "x"], "few": ["y", "y"]})
    (new,) = io.merge(source, path, "upsert", "id").inserted_files
    encodings = [pq.read_metadata(new).row_group(0).column(number).encodings for number in (1, 2)]
    assert ["RLE_DICTIONARY" in found for found in encodings] == [False, True]
    # A file without rows is ignored.
    put(f"{path}/0.parquet", source.slice(0, 0), compression="none")
    (newer,) = io.merge(source.set_column(0, "id", pa.array([-1, -2])), path, "upsert", "id").inserted_files
    assert "RLE_DICTIONARY" in pq.read_metadata(newer).row_group(0).column(2).encodings


def test_a_dictionary_that_saves_nothing_is_written_plain(io: AnyDatasetIO, lake: str) -> None:
    # W2: of 100,000 rows, a dictionary of 85,000 numbers and the indices take more bytes than the numbers
    path, count = f"{lake}/t", 100_000
    numbers = np.random.default_rng(1).integers(0, 300_000, count)
    columns = {"id": np.arange(count), "many": numbers.astype(np.int32), "few": numbers % 5, "x": numbers / 3}
    put(f"{path}/a.parquet", pa.table(columns))
    before = pq.read_metadata(f"{path}/a.parquet").row_group(0)
    assert all("RLE_DICTIONARY" in before.column(number).encodings for number in (1, 2))
    changed = {"id": [5], "many": pa.array([-1], pa.int32()), "few": [-2], "x": [0.5]}
    assert io.merge(pa.table(changed), path, "update", "id").updated == 1
    after = pq.read_metadata(f"{path}/a.parquet").row_group(0)
    assert ["RLE_DICTIONARY" in after.column(number).encodings for number in (1, 2)] == [False, True]
    assert after.column(1).total_uncompressed_size < before.column(1).total_uncompressed_size
    expected = {name: pa.array(values).to_pylist() for name, values in columns.items()}
    for name, values in changed.items():
        expected[name][5] = pa.array(values)[0].as_py()
    assert load(io, path).sort_by("id").to_pydict() == expected
