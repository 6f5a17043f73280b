"""A file in a new schema: columns that stay are copied byte for byte, and every reader finds one schema (E2, E6)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.arrow_versions import needs_bloom_filters
from tests.core.parquet.test_splice import WRITERS, by_every_reader, footer_of, read_bytes
from tests.support import (
    check_schema_copies,
    copy_fixture,
    edit_footer,
    list_data_files,
    put,
    put_int96,
    read_everywhere,
)
from tests.values import NESTED, PLAIN, to_stored_type

from merganser.core.model.file_shape import make_shape
from merganser.core.model.schema import is_same_logical_type
from merganser.core.parquet import thrift
from merganser.core.parquet.encode import encode_row_group
from merganser.core.parquet.footer import read_footer
from merganser.core.parquet.source_file import CannotSpliceError, get_extent
from merganser.core.rows import rewrite
from merganser.core.rows.key_scan import open_parquet, read_group
from merganser.core.rows.rewrite import GroupChange, rewrite_file
from merganser.core.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True)
class Change:
    """A new schema: the columns in order, each with its old name or None, and its type or None if that stays."""

    columns: Mapping[str, tuple[str | None, pa.DataType | None]]
    default: Any = None

    def apply(self, table: pa.Table) -> pa.Table:
        """Make the expected table with Arrow alone."""
        made = {}
        for name, (origin, kind) in self.columns.items():
            if origin is None:
                made[name] = pa.array([self.default] * table.num_rows, kind)
            else:
                made[name] = table.column(origin) if kind is None else table.column(origin).cast(kind)
        return pa.table(made)

    def rewrite(self, path: str, to: str, changes: Any = None) -> str:
        """Give a file this schema."""
        own = read_footer(LocalStore(), path, path).schema
        fields = [
            pa.field(name, kind) if kind is not None else own.field(str(origin)).with_name(name)
            for name, (origin, kind) in self.columns.items()
        ]
        origins = {name: origin for name, (origin, _) in self.columns.items() if origin is not None}
        added = [(name, kind) for name, (origin, kind) in self.columns.items() if origin is None]
        defaults = {} if self.default is None else {name: pa.array([self.default], kind) for name, kind in added}
        shape = make_shape(own, fields, origins, defaults, is_ordered=True)
        assert shape is not None
        rewrite_file(LocalStore(), path, to, changes or {}, shape=shape)
        return to


def keep(schema: pa.Schema, **changes: tuple[str | None, pa.DataType | None]) -> dict[str, Any]:
    return {name: (name, None) for name in schema.names if name not in changes} | changes


def make_changes(schema: pa.Schema) -> dict[str, Change]:
    names = schema.names
    everything = {name: (name, None) for name in reversed(names) if name not in ("i", "s", "b")}
    return {
        "drop and rename": Change({f"{name}.new": (name, None) for name in names if name not in ("s", "st")}),
        "add first": Change({"x": (None, pa.string()), **keep(schema)}, "default"),
        "add nulls": Change({**keep(schema), "x": (None, pa.struct([("a", pa.int64())]))}),
        "widen": Change(keep(schema, i=("i", pa.int64()))),
        "all": Change({"x": (None, pa.int64()), **everything, "b": ("i", pa.int64()), "i": ("s", None)}, 5),
    }


CHANGES = ["drop and rename", "add first", "add nulls", "widen", "all"]


@pytest.fixture(params=WRITERS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = str(tmp_path / "old.parquet")
    WRITERS[request.param](path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> str:
    (tmp_path / "new").mkdir()
    return str(tmp_path / "new" / "f.parquet")


def refuse_splice(*_: Any) -> Any:
    raise CannotSpliceError("as if")


@pytest.fixture(params=["spliced", "whole"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Splice, or rewrite the file completely."""
    if request.param == "spliced":
        yield request.param
    else:
        with mock.patch.object(rewrite, "splice", refuse_splice):
            yield request.param


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return some rows of a table, all if there are few."""
    rows: list[dict[str, Any]] = table.take(np.arange(0, table.num_rows, table.num_rows // 60 or 1)).to_pylist()
    return rows


# E1, E2
@pytest.mark.parametrize("name", CHANGES)
def test_every_reader_reads_the_new_schema(old: str, new: str, name: str) -> None:
    before = pq.read_table(old)
    change = make_changes(before.schema)[name]
    expected = change.apply(before)
    change.rewrite(old, new)
    found = pq.read_table(new)
    assert found.schema.names == expected.schema.names
    assert plain(found) == plain(expected)
    assert all(plain(table) == plain(expected) for table in by_every_reader(new))
    check_schema_copies(new, found.schema)
    with pq.ParquetFile(old) as one, pq.ParquetFile(new) as other:
        assert [one.metadata.row_group(at).num_rows for at in range(one.num_row_groups)] == [
            other.metadata.row_group(at).num_rows for at in range(other.num_row_groups)
        ]


# E2
@pytest.mark.parametrize("name", CHANGES)
def test_a_rewrite_of_the_whole_file_gives_the_same(old: str, new: str, name: str) -> None:
    change = make_changes(pq.read_schema(old))[name]
    change.rewrite(old, new)
    with mock.patch.object(rewrite, "splice", refuse_splice):
        change.rewrite(old, f"{new}.whole")
    assert pq.read_table(f"{new}.whole").equals(pq.read_table(new))
    assert pq.read_schema(f"{new}.whole").equals(pq.read_schema(new), check_metadata=True)
    assert pq.read_metadata(f"{new}.whole").metadata == pq.read_metadata(new).metadata


# E2
@pytest.mark.splice
@pytest.mark.parametrize("name", CHANGES)
def test_chunks_of_columns_that_stay_are_the_same_bytes(old: str, new: str, name: str) -> None:
    change = make_changes(pq.read_schema(old))[name]
    change.rewrite(old, new)
    before, after, copied = footer_of(old), footer_of(new), 0
    for old_group, new_group in zip(before[4], after[4], strict=True):
        chunks = {tuple(chunk[3][3]): chunk for chunk in old_group[1]}
        for chunk in new_group[1]:
            first, *rest = chunk[3][3]
            origin, kind = change.columns[first.decode()]
            if origin is None or kind is not None:
                continue
            was = chunks[origin.encode(), *rest]
            assert read_bytes(old)[slice(*get_extent(was[3]))] == read_bytes(new)[slice(*get_extent(chunk[3]))]
            for number in (1, 2, 4, 5, 6, 7, 8, 12, 13, 16):
                assert was[3].get(number) == chunk[3].get(number)
            copied += 1
    assert copied


# E2
@pytest.mark.parametrize("name", CHANGES)
def test_the_footer_has_one_entry_for_each_leaf(old: str, new: str, name: str) -> None:
    make_changes(pq.read_schema(old))[name].rewrite(old, new)
    before, after = footer_of(old), footer_of(new)
    leaves = [element for element in after[2] if not element.get(5)]
    assert (7 in after) == (7 in before)
    assert all(len(orders) == len(leaves) for orders in [after.get(7)] if orders is not None)
    data = read_bytes(new)
    for group in after[4]:
        assert len(group[1]) == len(leaves)
        assert group[2] == sum(chunk[3][6] for chunk in group[1])
        assert group.get(6) in (None, sum(chunk[3][7] for chunk in group[1]))
        for chunk in group[1]:
            if 4 in chunk:
                index = thrift.read_struct(data[chunk[4] : chunk[4] + chunk[5]], thrift.OFFSET_INDEX)
                start, end = get_extent(chunk[3])
                assert all(start <= page[1] < page[1] + page[2] <= end for page in index[1])


# E2
@pytest.mark.splice
@needs_bloom_filters
def test_bloom_filters_of_copied_columns_stay(new: str, tmp_path: Path) -> None:
    path = str(tmp_path / "old.parquet")
    WRITERS["arrow page index, bloom filter"](path)
    Change({"n": ("s", None), "i": ("i", pa.int64()), "f": ("f", None)}).rewrite(path, new)
    for was, now in zip(footer_of(path)[4], footer_of(new)[4], strict=True):
        named = {chunk[3][3][0]: chunk[3] for chunk in was[1]}
        copy, widened, _ = (chunk[3] for chunk in now[1])
        start = named[b"s"][14]
        length = 48  # of the header and one block
        assert read_bytes(path)[start : start + length] == read_bytes(new)[copy[14] : copy[14] + length]
        # Of an integer of 32 bits, the filter has other hashes.
        assert 14 not in widened


# E2
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": ("a", None), "b": ("b", None), "c": ("c", None), "x": (None, pa.int64())}, [("a", True), ("b", False)]),
        ({"c": ("c", None), "b": ("b", None), "a": ("a", None)}, [("a", True), ("b", False)]),
        ({"b": ("b", None), "z": ("a", None)}, [("z", True), ("b", False)]),
        ({"a": ("a", None), "c": ("c", None)}, [("a", True)]),
        ({"b": ("b", None), "c": ("c", None)}, []),
        ({"a": ("a", pa.int64()), "b": ("b", None)}, []),
        ({"a": ("a", None), "b": ("b", pa.int64())}, [("a", True)]),
        ({"x": (None, pa.string()), "a": ("a", None), "b": ("b", None)}, [("a", True), ("b", False)]),
    ],
)
@pytest.mark.splice
def test_sorting_columns_are_renumbered_or_cut(columns: Any, expected: Any, new: str, tmp_path: Path) -> None:
    table = pa.table({"c": [[1]] * 4, "a": pa.array([4, 3, 2, 1], pa.int32()), "b": pa.array(range(4), pa.int32())})
    order = [pq.SortingColumn(1, descending=True), pq.SortingColumn(2)]
    path = put(str(tmp_path / "old" / "f.parquet"), table, sorting_columns=order, row_group_size=2)
    Change(columns).rewrite(path, new)
    with pq.ParquetFile(new) as file:
        for at in range(2):
            group = file.metadata.row_group(at)
            found = [(group.column(one.column_index).path_in_schema, one.descending) for one in group.sorting_columns]
            assert found == expected


# E2
@pytest.mark.parametrize("name", ["a.b", 'q"q', "it's", "ünï 東京", "a`b", " ", "list.element", "s.x"])
def test_names_may_have_any_characters(name: str, new: str, tmp_path: Path, way: str) -> None:
    table = pa.table({name: pa.array([1, 2], pa.int32()), "s": [{"x": 1}, None], "l": [[1], []]})
    path = put(str(tmp_path / "old" / "f.parquet"), table)
    change = Change(
        {"s": ("s", None), f"{name}!": (name, None), f"{name}.new": (None, pa.int64()), "l": ("l", None)}, 7
    )
    change.rewrite(path, new)
    assert plain(pq.ParquetFile(new).read()) == plain(change.apply(table))
    Change({name: (f"{name}!", pa.int64()), "list": ("l", None), "l": ("s", None)}).rewrite(new, f"{new}2")
    assert plain(pq.ParquetFile(f"{new}2").read()) == [
        {name: 1, "list": [1], "l": {"x": 1}},
        {name: 2, "list": [], "l": None},
    ], way


def list_ids(path: str) -> list[int]:
    return [element[9] for element in footer_of(path)[2][1:] if 9 in element]


# E2
def test_field_ids_are_kept_and_unique(new: str, tmp_path: Path, way: str) -> None:
    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    one, two = (pa.struct([field("x", pa.int32(), at), field("y", pa.string(), at + 1)]) for at in (5, 8))
    fields = [field("a", pa.int32(), 1), field("b", pa.string(), 2), field("s", one, 4), field("d", two, 7)]
    rows = [{"a": 1, "b": "x", "s": {"x": 1, "y": "y"}, "d": None}]
    path = put(str(tmp_path / "old" / "f.parquet"), pa.Table.from_pylist(rows, pa.schema(fields)))
    # Ids of another file, which clash with those of this one.
    wider = pa.struct([field("x", pa.int64(), 1), field("y", pa.string(), 5), field("z", pa.string(), 9)])
    columns = {"x": (None, wider), "s": ("s", None), "d": ("d", wider), "A": ("a", pa.int64()), "b": ("b", None)}
    Change(columns).rewrite(path, new)
    found = pq.read_schema(new)
    ids = {name: found.field(name).metadata[b"PARQUET:field_id"] for name in ("A", "b", "s", "d")}
    assert ids == {"A": b"1", "b": b"2", "s": b"4", "d": b"7"}, way
    assert [inner.metadata for inner in found.field("s").type] == [
        {b"PARQUET:field_id": b"5"},
        {b"PARQUET:field_id": b"6"},
    ]
    assert [inner.metadata for name in ("x", "d") for inner in found.field(name).type] == [None] * 6
    stored = [number for number in list_ids(new) if number >= 0]
    assert sorted(stored) == [1, 2, 4, 5, 6, 7]
    expected = {"x": None, "s": {"x": 1, "y": "y"}, "d": None, "A": 1, "b": "x"}
    assert plain(pq.read_table(new)) == [expected]


# E6
def test_pandas_metadata_follows_the_schema(new: str, tmp_path: Path, way: str) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [1.5, 2.5]}, index=pd.Index([7, 8], name="key"))
    path = str(tmp_path / "old.parquet")
    frame.to_parquet(path)
    Change({"b2": ("b", None), "a": ("a", pa.float64()), "key": ("key", None), "x": (None, pa.int64())}, 5).rewrite(
        path, new
    )
    stored = json.loads(pq.read_metadata(new).metadata[b"pandas"])
    assert sorted(one["field_name"] for one in stored["columns"]) == ["b2", "key"]
    found = pd.read_parquet(new)
    expected = pd.DataFrame({"b2": ["x", "y"], "a": [1.0, 2.0], "x": [5, 5]}, index=pd.Index([7, 8], name="key"))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    # Without its index, the frame of pandas cannot be restored.
    Change({"a": ("a", None)}).rewrite(path, f"{new}2")
    assert b"pandas" not in (pq.read_metadata(f"{new}2").metadata or {}), way
    assert list(pd.read_parquet(f"{new}2")["a"]) == [1, 2]


# E6
def test_copies_of_the_schema_are_removed_and_other_metadata_stays(new: str, tmp_path: Path, way: str) -> None:
    fields = [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}]
    stale: dict[Any, Any] = {
        SPARK_SCHEMA: json.dumps({"type": "struct", "fields": fields}),
        b"iceberg.schema": "{}",
        b"geo": "{}",
    }
    table = pa.table({"a": pa.array([1], pa.int32())}).replace_schema_metadata({**stale, "owner": "sales"})
    path = put(str(tmp_path / "old" / "f.parquet"), table)
    Change({"a": ("a", pa.int64())}).rewrite(path, new)
    found = pq.read_metadata(new).metadata
    assert {*found} == {b"owner", b"ARROW:schema"}, way
    assert pq.read_schema(new).metadata == {b"owner": b"sales"}
    read_everywhere(os.path.dirname(new))


# E2
@pytest.mark.parametrize("kind", [*PLAIN, *NESTED], ids=str)
@pytest.mark.parametrize("stores_schema", [True, False])
def test_columns_of_every_type_are_renamed_and_added(
    kind: pa.DataType, stores_schema: bool, new: str, tmp_path: Path
) -> None:
    stored = to_stored_type(kind)
    table = pa.table({"id": [1, 2, 3], "v": pa.nulls(3, stored)})
    path = put(str(tmp_path / "old" / "f.parquet"), table, store_schema=stores_schema)
    Change({"w": ("v", None), "id": ("id", None), "x": (None, stored)}).rewrite(path, new)
    before, found = pq.read_table(path), pq.read_table(new)
    assert found.column("w").type == before.column("v").type or not stores_schema
    assert found.column("w").null_count == found.column("x").null_count == 3
    assert found.column("id").to_pylist() == [1, 2, 3]


# E2
def test_decimals_stored_as_integers_stay_and_widen(new: str, tmp_path: Path, way: str) -> None:
    table = pa.table(
        {
            "small": pa.array([Decimal("1.25"), None], pa.decimal128(7, 2)),
            "large": pa.array([Decimal("1.25"), None], pa.decimal128(15, 2)),
        }
    )
    path = put(str(tmp_path / "old" / "f.parquet"), table, store_decimal_as_integer=True)
    Change({"large": ("large", pa.decimal128(20, 3)), "s": ("small", None)}).rewrite(path, new)
    assert plain(pq.read_table(new)) == [{"large": Decimal("1.250"), "s": Decimal("1.25")}, {"large": None, "s": None}]
    assert [column[1] for column in footer_of(new)[2][1:]] == [7, 1], way
    assert read_everywhere(os.path.dirname(new))[0] == {"large": Decimal("1.250"), "s": Decimal("1.25")}


# E2, S6
@pytest.mark.splice
def test_instants_of_int96_are_copied_and_widen(new: str, tmp_path: Path) -> None:
    path = put_int96(str(tmp_path / "old" / "f.parquet"), [2_440_588, 2_440_589])
    Change({"t": ("ts", None), "id": ("id", None), "x": (None, pa.int8())}).rewrite(path, new)
    assert pq.ParquetFile(new).schema.column(0).physical_type == "INT96"
    seconds = [value.timestamp() for value in read_decoded(new).column("t").to_pylist()]
    assert seconds == [0, 86_400]
    Change({"t": ("ts", pa.timestamp("ns", "UTC")), "id": ("id", None)}).rewrite(path, f"{new}2")
    found = pq.read_table(f"{new}2")
    assert found.column("t").type == pa.timestamp("ns", "UTC")
    assert found.column("t").cast(pa.int64()).to_pylist() == [0, 86_400 * 10**9]


def read_decoded(path: str) -> pa.Table:
    """Read a file as merganser does, with instants of INT96 in UTC."""
    with open_parquet(LocalStore(), path) as parquet:
        return pa.concat_tables([read_group(parquet, at, None, path) for at in range(parquet.metadata.num_row_groups)])


WIDER: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])), pa.struct([("a", pa.int64()), ("b", pa.string())])),
    (pa.array([[1, None], None], pa.list_(pa.int8())), pa.list_(pa.float64())),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int32(), 2)),
    (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
    (
        pa.array([[{"a": 1}], []], pa.list_(pa.struct([("a", pa.int8())]))),
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int8())])),
    ),
    (pa.array([1, None], pa.int8()).dictionary_encode(), pa.dictionary(pa.int8(), pa.int64())),
    (pa.array([1, None], pa.duration("ms")), pa.duration("ns")),
    (pa.array([1, None], pa.time32("ms")), pa.time64("ns")),
    (pa.nulls(2), pa.string()),
    (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
    (pa.array([1.5, None], pa.float32()), pa.float64()),
]


# The values of the nested ones, which come first.
EXPECTED: list[Any] = [
    [{"a": 1, "b": None}, None],
    [[1.0, None], None],
    [[1, 2], None],
    [[("k", 1)], None],
    [[{"a": 1, "b": None}], []],
]
WIDENED = {str(kind): rows for (_, kind), rows in zip(WIDER, EXPECTED, strict=False)}


# E2, E3
@pytest.mark.parametrize(("values", "kind"), WIDER, ids=[str(kind) for _, kind in WIDER])
def test_flat_and_nested_columns_widen(values: pa.Array, kind: pa.DataType, new: str, tmp_path: Path, way: str) -> None:
    table = pa.table({"id": [1, 2], "v": values, "z": ["x", "y"]})
    path = put(str(tmp_path / "old" / "f.parquet"), table, row_group_size=1)
    Change({"id": ("id", None), "v": ("v", kind), "z": ("z", None)}).rewrite(path, new)
    found = pq.read_table(new)
    assert found.column("id").to_pylist() == [1, 2], way
    if pa.types.is_nested(kind):
        assert found.column("v").to_pylist() == WIDENED[str(kind)]
        assert is_same_logical_type(found.column("v").type, kind)
    else:
        assert found.column("v").to_pylist() == values.cast(kind).to_pylist()
    if not pa.types.is_duration(kind) and kind != pa.time64("ns") and not pa.types.is_map(kind):
        read_everywhere(os.path.dirname(new))


# E1, E2, W1
def test_rows_change_in_the_same_pass(old: str, new: str, way: str) -> None:
    before = pq.read_table(old)
    change = make_changes(before.schema)["all"]
    expected = change.apply(before)
    sizes = [pq.read_metadata(old).row_group(at).num_rows for at in range(3)]
    positions = np.array([1, sizes[0] - 1])
    rows = expected.slice(5, 2).select(["x", "b", "f"])
    replaced = GroupChange(positions, frozenset(rows.column_names), rows.select, np.array([], np.int64))
    removed = GroupChange(np.array([], np.int64), frozenset(), rows.select, np.array([0, 3]))
    change.rewrite(old, new, {0: replaced, 1: removed, 2: None})
    first = expected.slice(0, sizes[0])
    for name in rows.column_names:
        values = first.column(name).to_pylist()
        for at, value in zip(positions.tolist(), rows.column(name).to_pylist(), strict=True):
            values[at] = value
        first = first.set_column(first.column_names.index(name), name, pa.array(values, first.column(name).type))
    stays = np.delete(np.arange(sizes[1]), [0, 3])
    second = expected.slice(sizes[0], sizes[1]).take(stays)
    assert plain(pq.read_table(new)) == plain(pa.concat_tables([first, second])), way


# E2
def test_a_file_without_row_groups_gets_its_new_schema(new: str, tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "old.parquet")
    with pq.ParquetWriter(path, pa.schema([("a", pa.int32()), ("b", pa.string())])):
        pass
    Change({"x": (None, pa.int64()), "b": ("b", None), "a": ("a", pa.int64())}, 7).rewrite(path, new)
    assert pq.read_schema(new).types == [pa.int64(), pa.string(), pa.int64()], way
    assert pq.read_metadata(new).num_rows == 0


# E2
def test_many_row_groups_share_the_chunk_of_a_new_column(new: str, tmp_path: Path) -> None:
    path = put(str(tmp_path / "old" / "f.parquet"), pa.table({"a": range(50)}), row_group_size=3)
    with mock.patch.object(rewrite, "encode_row_group", wraps=encode_row_group) as encode:
        Change({"a": ("a", None), "x": (None, pa.string())}, "default").rewrite(path, new)
    assert encode.call_count < 8
    found = pq.read_table(new)
    assert found.column("a").to_pylist() == [*range(50)]
    assert pc.unique(found.column("x")).to_pylist() == ["default"]
    assert pq.read_metadata(new).num_row_groups == 17


# E1, E6
@pytest.mark.parametrize(
    "fixture", [name for name in os.listdir(Path(__file__).parents[2] / "fixtures") if "." not in name]
)
def test_files_of_other_writers_get_a_new_schema(fixture: str, tmp_path: Path) -> None:
    folder = copy_fixture(fixture, str(tmp_path))
    for number, name in enumerate(list_data_files(folder)):
        path, to = f"{folder}/{name}", str(tmp_path / f"{number}.parquet")
        before = read_footer(LocalStore(), path, path).schema
        columns = {f"{one}_new": (one, None) for one in reversed(before.names)}
        Change({"x": (None, pa.int64()), **columns}, 5).rewrite(path, to)
        expected = Change({"x": (None, pa.int64()), **columns}, 5).apply(read_decoded(path))
        assert plain(read_decoded(to)) == plain(expected)
        assert SPARK_SCHEMA not in (pq.read_metadata(to).metadata or {})


# E1, E6
@pytest.mark.spark
def test_spark_reads_the_new_schema_of_a_file_that_it_wrote(spark: Any, tmp_path: Path) -> None:
    rows: list[Any] = [(1, "a", [1, 2], {"k": 1.5}), (2, None, None, None)]
    frame = spark.createDataFrame(rows, "a int, `b.c` string, l array<int>, m map<string, double>")
    frame.coalesce(1).write.parquet(str(tmp_path / "old"))
    (name,) = list_data_files(str(tmp_path / "old"))
    (tmp_path / "new").mkdir()
    columns = {
        "x": (None, pa.string()),
        "l": ("l", pa.list_(pa.int64())),
        "A": ("a", pa.int64()),
        "b.c": ("b.c", None),
        "m2": ("m", None),
    }
    Change(columns, "q").rewrite(str(tmp_path / "old" / name), str(tmp_path / "new" / "f.parquet"))
    found = spark.read.parquet(str(tmp_path / "new"))
    assert found.dtypes == [
        ("x", "string"),
        ("l", "array<bigint>"),
        ("A", "bigint"),
        ("b.c", "string"),
        ("m2", "map<string,double>"),
    ]
    collected = sorted(map(tuple, found.collect()), key=lambda row: row[2])
    assert collected == [("q", [1, 2], 1, "a", {"k": 1.5}), ("q", None, 2, None, None)]


# E2
def test_footers_with_odd_entries_are_rewritten(new: str, tmp_path: Path) -> None:
    path = put(str(tmp_path / "old" / "f.parquet"), pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]}))
    with edit_footer(path) as tree:
        tree[4][0] = tree[4][0].replace({7: None})
    Change({"b": ("b", None), "a": ("a", pa.int64())}).rewrite(path, new)
    assert read_everywhere(os.path.dirname(new)) == [{"b": "x", "a": 1}, {"b": "y", "a": 2}]
