"""write_dataset and read: append, overwrite, and the types that come back (O1 to O3)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files, load, put, read_rows, read_table, snapshot

from merganser import PyArrowDatasetIO
from merganser.core import SchemaMismatchError, WriteResult
from merganser.errors import TargetPathError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


def pairs(ids: list[int], values: list[Any] | None = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values or ["x"] * len(ids), pa.string())})


# O1, R2
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_result_names_every_file_written(io: AnyDatasetIO, lake: str, mode: Any) -> None:
    result = io.write_dataset(pairs(list(range(10))), f"{lake}/t", mode, max_rows_per_file=4)
    assert isinstance(result, WriteResult)
    assert (result.mode, result.row_count, result.removed_files) == (mode, 10, [])
    assert [file.row_count for file in result.files] == [4, 4, 2]
    for file in result.files:
        assert file.operation == "inserted"
        assert file.row_count == pq.read_metadata(file.path).num_rows
        assert file.size_bytes == os.path.getsize(file.path)
    assert sorted(file.path for file in result.files) == [f"{lake}/t/{name}" for name in list_data_files(f"{lake}/t")]


# O1
def test_append_is_the_default(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pairs([1]), f"{lake}/t")
    io.write_dataset(pairs([1]), f"{lake}/t")
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1, 1]


# O1
@pytest.mark.parametrize("mode", ["replace", "", None, "APPEND", 1])
def test_an_unknown_mode_is_refused(io: AnyDatasetIO, lake: str, mode: Any) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="Choose append or overwrite"):
        io.write_dataset(pairs([1]), f"{lake}/t", mode)


# O1, H1
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_partitions_are_written_to_their_folders(io: AnyDatasetIO, lake: str, mode: Any) -> None:
    table = pa.table({"id": [1, 2, 3], "day": ["mon", "tue", "mon"]})
    result = io.write_dataset(table, f"{lake}/t", mode, ["day"])
    assert sorted((file.path.split("/")[-2], file.row_count) for file in result.files) == [
        ("day=mon", 2),
        ("day=tue", 1),
    ]
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# O1
def test_options_apply_to_the_new_files(io: AnyDatasetIO, lake: str) -> None:
    result = io.write_dataset(
        pairs(list(range(10))), f"{lake}/t", compression="zstd", max_rows_per_file=6, row_group_size=4
    )
    first = pq.read_metadata(result.files[0].path)
    assert [first.row_group(n).num_rows for n in range(first.num_row_groups)] == [4, 2]
    assert first.row_group(0).column(0).compression == "ZSTD"


# O1
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_rows_per_file", 0),
        ("max_rows_per_file", -1),
        ("max_rows_per_file", 1.5),
        ("max_rows_per_file", True),
        ("row_group_size", 0),
        ("row_group_size", "8"),
        ("compression", "zip"),
        ("compression", "bz2"),
        ("compression", "lz4_frame"),
        ("lock_timeout", "5"),
        ("lock_timeout", None),
        ("lock_timeout", -1),
        ("lock_timeout", True),
        ("compression", None),
    ],
)
def test_invalid_options_are_refused(io: AnyDatasetIO, lake: str, option: str, value: Any) -> None:
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=option):
        io.write_dataset(pairs([1]), f"{lake}/t", **{option: value})
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match=option):
        io.merge(pairs([1]), f"{lake}/t", key_columns="id", **{option: value})


# O2
def test_append_adds_files_and_changes_none(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    Path(f"{lake}/t/README.txt").write_text("hello", "utf-8")
    before = snapshot(f"{lake}/t")
    io.write_dataset(pairs([1, 2]), f"{lake}/t", "append")
    after = snapshot(f"{lake}/t")
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1, 1, 2]


# O2, S1, S3
def test_append_follows_the_schema_of_the_target(io: AnyDatasetIO, lake: str) -> None:
    schema = pa.schema([("id", pa.int32()), pa.field("v", pa.string(), nullable=False)], {"owner": "me"})
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": ["a"]}, schema=schema))
    result = io.write_dataset(pa.table({"v": ["b"], "id": [2]}), f"{lake}/t")
    assert pq.read_schema(result.files[0].path).equals(schema, check_metadata=False)
    assert pq.read_schema(result.files[0].path).metadata[b"owner"] == b"me"


# O2, S2, S3
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (pa.table({"id": [2]}), SchemaMismatchError, "missing from the source: 'v'"),
        (pa.table({"id": [2], "v": ["a"], "w": [1]}), SchemaMismatchError, "unknown to the target: 'w'"),
        (pa.table({"id": ["2"], "v": ["a"]}), TypeError, "'id' has type string in the source and int32"),
        (pa.table({"id": [2**31], "v": ["a"]}), ValueError, "'id' holds 2147483648"),
        (pa.table({"id": [2], "v": pa.nulls(1, pa.string())}), ValueError, "'v' holds NULL"),
    ],
)
def test_append_refuses_what_a_merge_would(
    io: AnyDatasetIO, lake: str, source: pa.Table, error: type[Exception], message: str
) -> None:
    schema = pa.schema([("id", pa.int32()), pa.field("v", pa.string(), nullable=False)])
    put(f"{lake}/t/a.parquet", pa.table({"id": [1], "v": ["a"]}, schema=schema))
    with assert_unchanged(f"{lake}/t"), pytest.raises(error, match=message):
        io.write_dataset(source, f"{lake}/t", "append")


# O2
def test_append_of_no_rows_creates_an_empty_dataset(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    with assert_unchanged(f"{lake}/t"):
        assert io.write_dataset(pairs([]), f"{lake}/t", "append").files == []
    result = io.write_dataset(pairs([]), f"{lake}/new", "append")
    assert [file.row_count for file in result.files] == [0]
    assert load(io, f"{lake}/new").schema.equals(pairs([]).schema)


# O2
def test_overwrite_replaces_the_data_files_and_keeps_every_other(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    put(f"{lake}/t/deep/b.parquet", pairs([2]))
    for name in ("README.txt", "_SUCCESS", ".hidden", "deep/notes.md"):
        Path(f"{lake}/t/{name}").write_text(name, "utf-8")
    put(f"{lake}/t/_old/c.parquet", pairs([3]))
    result = io.write_dataset(pairs([7, 8]), f"{lake}/t", "overwrite")
    assert sorted(result.removed_files) == [f"{lake}/t/a.parquet", f"{lake}/t/deep/b.parquet"]
    left = set(snapshot(f"{lake}/t"))
    new = {os.path.relpath(file.path, f"{lake}/t") for file in result.files}
    assert left == {"README.txt", "_SUCCESS", ".hidden", "deep/notes.md", "_old/c.parquet"} | new
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [7, 8]


# O2
def test_overwrite_removes_a_link_that_leads_nowhere(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    os.symlink(f"{lake}/unmounted/b.parquet", f"{lake}/t/b.parquet")
    result = io.write_dataset(pairs([7]), f"{lake}/t", "overwrite")
    assert sorted(result.removed_files) == [f"{lake}/t/a.parquet", f"{lake}/t/b.parquet"]
    assert os.listdir(f"{lake}/t") == [os.path.basename(result.files[0].path)]
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [7]


# O2
def test_overwrite_takes_the_schema_of_the_source(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    source = pa.table({"other": [1.5], "list": [[1]]}).replace_schema_metadata({"made": "anew"})
    io.write_dataset(source, f"{lake}/t", "overwrite")
    found = load(io, f"{lake}/t")
    assert found.to_pylist() == source.to_pylist()
    assert pq.read_schema(f"{lake}/t/{list_data_files(f'{lake}/t')[0]}").metadata == {b"made": b"anew"}


# O2
def test_overwrite_with_no_rows_keeps_the_schema(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    result = io.write_dataset(pa.table({"w": pa.array([], pa.float32())}), f"{lake}/t", "overwrite")
    assert [file.row_count for file in result.files] == [0]
    assert load(io, f"{lake}/t").schema == pa.schema([("w", pa.float32())])


# O2, H2
def test_overwrite_may_change_partition_columns_and_their_types(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table({"id": [1, 2], "a": ["7", "8"], "b": [1, 2]})
    io.write_dataset(table, f"{lake}/t", "overwrite", ["a"])
    # The columns of the paths are kept unless others are asked for; types follow the source.
    io.write_dataset(table.set_column(1, "a", pa.array([7, 8])), f"{lake}/t", "overwrite")
    assert load(io, f"{lake}/t").schema.field("a").type == pa.int64()
    assert {name.split("/")[0] for name in list_data_files(f"{lake}/t")} == {"a=7", "a=8"}
    io.write_dataset(table, f"{lake}/t", "overwrite", ["b"])
    assert read_rows(io, f"{lake}/t") == table.to_pylist()
    io.write_dataset(table, f"{lake}/t", "overwrite", [])
    assert all("/" not in name for name in list_data_files(f"{lake}/t"))
    assert read_rows(io, f"{lake}/t") == table.to_pylist()
    io.merge(table, f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == table.to_pylist()


# O2
def test_overwrite_may_read_the_dataset_it_replaces(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pairs([1, 2, 3]), f"{lake}/t", max_rows_per_file=1)
    io.write_dataset(f"{lake}/t", f"{lake}/t", "overwrite")
    assert len(list_data_files(f"{lake}/t")) == 1
    assert [row["id"] for row in read_rows(io, f"{lake}/t")] == [1, 2, 3]


# O2, C7
def test_a_refused_overwrite_changes_nothing(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="missing from the source"):
        io.write_dataset(pairs([1]), f"{lake}/t", "overwrite", ["nope"])
    with assert_unchanged(f"{lake}/t"), pytest.raises(ValueError, match="'v'"):
        io.write_dataset(pa.table([[1], [2]], names=["v", "v"]), f"{lake}/t", "overwrite")


# O2, C1
def test_nothing_is_left_beside_the_dataset_but_its_control_folder(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pairs([1]), f"{lake}/t")
    io.write_dataset(pairs([1]), f"{lake}/t", "overwrite")
    assert set(os.listdir(lake)) <= {"t", ".t.merganser"}
    assert not [name for name in os.listdir(f"{lake}/.t.merganser") if name.startswith(".staging_")]


# O3
def test_read_gives_exactly_the_data_files(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    put(f"{lake}/t/_day=5/b.parquet", pairs([2]))
    put(f"{lake}/t/_tmp/c.parquet", pairs([3]))
    put(f"{lake}/t/.hidden/d.parquet", pairs([4]))
    put(f"{lake}/t/_e.parquet", pairs([5]))
    put(f"{lake}/t/.f.parquet", pairs([6]))
    Path(f"{lake}/t/notes.txt").write_text("x", "utf-8")
    found = read_table(io, f"{lake}/t")
    assert sorted(found.column("id").to_pylist()) == [1, 2]
    assert found.schema.names == ["id", "v", "_day"]


# O3, H2
def test_read_gives_recorded_partition_types(io: AnyDatasetIO, lake: str) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "n": pa.array([7, None], pa.int16()),
            "d": pa.array([0, 1], pa.date32()),
            "b": pa.array([True, False]),
        }
    )
    io.write_dataset(table, f"{lake}/t", partition_columns=["n", "d", "b"])
    found = read_table(io, f"{lake}/t").sort_by("id")
    assert found.schema == table.schema
    assert found.to_pylist() == table.to_pylist()


# O3
def test_read_of_an_absent_dataset_has_no_rows_or_is_refused(io: AnyDatasetIO, lake: str) -> None:
    if isinstance(io, PyArrowDatasetIO):
        assert read_table(io, f"{lake}/none").num_rows == 0
    else:
        with pytest.raises(TargetPathError, match="no Parquet files"):
            read_table(io, f"{lake}/none")


# O3
def test_read_sees_files_that_others_add(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pairs([1]), f"{lake}/t")
    put(f"{lake}/t/other.parquet", pairs([2]))
    assert sorted(read_table(io, f"{lake}/t").column("id").to_pylist()) == [1, 2]


# O3
def test_read_takes_a_trailing_slash_and_a_path_object(io: AnyDatasetIO, lake: str) -> None:
    io.write_dataset(pairs([1]), Path(lake) / "t")
    assert read_table(io, Path(lake) / "t").num_rows == 1
    assert read_table(io, f"{lake}/t/").num_rows == 1
