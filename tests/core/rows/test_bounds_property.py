"""Pruning never drops a row group that holds a source key, and drops the others where statistics are exact."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import is_null
from tests.support import put, to_plain_rows
from tests.values import BYTES, DECIMALS, FLOATS, INTEGERS, PLAIN, STRINGS, TIMES, build, cells

from merganser.core.dataset.snapshot import load_target
from merganser.core.model.casts import conform
from merganser.core.model.keys import to_canonical_keys
from merganser.core.parquet.thrift import FILE_METADATA, Struct, ThriftList, read_struct, write_struct
from merganser.core.rows.bounds import might_match
from merganser.core.storage.location import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# -------------------- writers


def pyarrow_file(table: pa.Table, path: str, rows: int) -> None:
    put(path, table, row_group_size=rows)


def integer_decimals(table: pa.Table, path: str, rows: int) -> None:
    put(path, table, row_group_size=rows, store_decimal_as_integer=True)


def old_format(table: pa.Table, path: str, rows: int) -> None:
    # The logical types of old: seconds become milliseconds, and unsigned 32 bits are stored in 64.
    put(path, table, row_group_size=rows, version="1.0")


def int96(table: pa.Table, path: str, rows: int) -> None:
    put(path, table, row_group_size=rows, use_deprecated_int96_timestamps=True)


def polars_file(table: pa.Table, path: str, rows: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=rows, statistics=True)


def duckdb_files(table: pa.Table, path: str, rows: int) -> None:
    # DuckDB's row groups are large, so each is a file here.
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with duckdb.connect() as connection:
        for number, start in enumerate(range(0, table.num_rows, rows)):
            connection.register("rows", table.slice(start, rows))
            connection.execute(
                f"COPY (FROM rows) TO '{path.replace('.parquet', '')}-{number}.parquet' (FORMAT parquet)"
            )


SHARED = (
    *INTEGERS,
    *FLOATS[1:],
    pa.decimal128(5, 2),
    pa.decimal128(18, 18),
    pa.decimal128(38, 10),
    pa.bool_(),
    pa.large_string(),
    pa.large_binary(),
    pa.date32(),
    pa.time64("ns"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
)
# Files of the old format hold microseconds at best.
NANOSECONDS = [kind for kind in TIMES if pa.types.is_timestamp(kind) and kind.unit == "ns"]
WRITERS: dict[str, tuple[Callable[[pa.Table, str, int], None], Sequence[pa.DataType]]] = {
    "pyarrow": (pyarrow_file, PLAIN),
    "integer decimals": (integer_decimals, DECIMALS),
    "old format": (old_format, [*INTEGERS, *(kind for kind in TIMES if kind not in NANOSECONDS)]),
    "int96": (int96, [kind for kind in TIMES if pa.types.is_timestamp(kind) and kind.unit == "us"]),
    "polars": (polars_file, SHARED),
    "duckdb": (duckdb_files, [*(kind for kind in SHARED if kind != pa.time64("ns")), pa.time64("us"), pa.uuid()]),
}


# -------------------- what is under test, and what is true


def candidates(path: str, keys: Sequence[str], source: pa.Table) -> dict[tuple[str, int], bool]:
    """Ask which row groups might hold a source key."""
    target = load_target(locate(path), keys, None, {})
    assert target.schema is not None
    bounds = target.get_bounds(keys)
    kinds = pa.schema([target.schema.field(name) for name in keys])
    answers = might_match(bounds, to_canonical_keys(conform(source, kinds), keys))
    places = zip(bounds.column("file").to_pylist(), bounds.column("row_group").to_pylist(), strict=True)
    return {
        (target.files[file].rel, group): bool(answer)
        for (file, group), answer in zip(places, answers.tolist(), strict=True)
    }


def holders(path: str, keys: Sequence[str], source: pa.Table) -> set[tuple[str, int]]:
    """Find the row groups that hold a source key, by reading everything."""
    found = set()
    wanted: set[tuple[Any, ...]] | None = None
    for file in sorted(Path(path).rglob("*.parquet")):
        parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, columns=list(keys))
            if wanted is None:
                wanted = {
                    tuple(row.values()) for row in to_plain_rows(conform(source, table.schema).select(list(keys)))
                }
            held = {tuple(row.values()) for row in to_plain_rows(table)}
            if any(row in wanted for row in held if not any(map(is_null, row))):
                found.add((str(file.relative_to(path)), group))
    return found


# -------------------- the properties


@st.composite
def keyed_rows(draw: st.DrawFn, kinds: Sequence[pa.DataType], columns: int) -> tuple[pa.Table, pa.Table]:
    """Rows of a target, with NULLs and NaNs, and of a source that has some of its keys and some others."""
    types = [draw(st.sampled_from(kinds)) for _ in range(columns)]
    schema = pa.schema([(f"key {number}", kind) for number, kind in enumerate(types)])
    pools = [draw(st.lists(cells(kind), min_size=1, max_size=8)) for kind in types]
    held = st.tuples(*(st.none() | st.sampled_from(pool) for pool in pools))
    given_ = st.tuples(*(st.sampled_from(pool) for pool in pools))
    rows = draw(st.lists(held, min_size=1, max_size=12))
    keys = [row for row in draw(st.lists(given_, max_size=4)) if not any(map(is_null, row))]
    made = [
        pa.table([build([row[at] for row in some], kind) for at, kind in enumerate(types)], schema=schema)
        for some in (rows, keys)
    ]
    return made[0], made[1]


def check(writer: str, table: pa.Table, source: pa.Table, rows: int) -> None:
    with tempfile.TemporaryDirectory() as lake:
        WRITERS[writer][0](table, f"{lake}/t/f.parquet", rows)
        kept = candidates(f"{lake}/t", table.column_names, source)
        assert all(kept[place] for place in holders(f"{lake}/t", table.column_names, source))
        if source.num_rows and writer == "int96":
            assert all(kept.values())


# Every writer has its turn in the long run below.
QUICK_WRITERS = ["pyarrow", "polars"]


# P2 P3 P4
@pytest.mark.parametrize("writer", QUICK_WRITERS)
@settings(max_examples=25)
@given(data=st.data())
def test_no_row_group_that_holds_a_source_key_is_dropped(writer: str, data: st.DataObject) -> None:
    table, source = data.draw(keyed_rows(WRITERS[writer][1], 1))
    check(writer, table, source, data.draw(st.integers(1, 4)))


# P2 P3 P4 K10
@pytest.mark.parametrize("writer", QUICK_WRITERS)
@settings(max_examples=15)
@given(data=st.data())
def test_no_row_group_that_holds_a_composite_source_key_is_dropped(writer: str, data: st.DataObject) -> None:
    table, source = data.draw(keyed_rows(WRITERS[writer][1], data.draw(st.integers(2, 3))))
    check(writer, table, source, data.draw(st.integers(1, 4)))


# P2 P3 P4 K10
@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=100)
@given(data=st.data())
def test_no_row_group_that_holds_any_source_key_is_dropped(writer: str, data: st.DataObject) -> None:
    table, source = data.draw(keyed_rows(WRITERS[writer][1], data.draw(st.integers(1, 3))))
    check(writer, table, source, data.draw(st.integers(1, 4)))


# -------------------- pruning works


def ladder(kind: pa.DataType) -> pa.Array:
    """Nine ascending values, on both sides of zero where the type has two."""
    if pa.types.is_unsigned_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return build([half + step for step in range(-4, 5)], kind)
    if pa.types.is_decimal(kind):
        return build([Decimal(step).scaleb(-kind.scale) for step in range(-4, 5)], kind)
    if kind in STRINGS:
        return build([f"Ωname {step}" for step in range(9)], kind)
    if kind in BYTES:
        width = 16 if kind == pa.uuid() else 5
        return build([bytes([step * 31]) * width for step in range(9)], kind)
    if pa.types.is_date64(kind):
        return build([step * 86_400_000 for step in range(-4, 5)], kind)
    return build(range(9) if pa.types.is_time(kind) else range(-4, 5), kind)


def in_groups(answers: dict[tuple[str, int], bool]) -> list[bool]:
    return [answers[place] for place in sorted(answers)]


# P2 P3
@pytest.mark.parametrize("kind", [kind for kind in PLAIN if not pa.types.is_boolean(kind)], ids=str)
def test_keys_at_both_ends_leave_the_middle_out(tmp_path: Path, kind: pa.DataType) -> None:
    keys = ladder(kind)
    put(f"{tmp_path}/t/f.parquet", pa.table({"id": keys}), row_group_size=3)
    ends = pa.table({"id": build([keys[0].as_py(), keys[8].as_py()], kind) if kind in STRINGS else _ends(keys)})
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], ends)) == [True, False, True]
    outside = pa.table({"id": pa.concat_arrays([keys.slice(1, 1), keys.slice(2, 1)])})
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], outside)) == [True, False, False]


def _ends(keys: pa.Array) -> pa.Array:
    return pa.concat_arrays([keys.slice(0, 1), keys.slice(8, 1)])


# P3
@pytest.mark.parametrize("writer", ["pyarrow", "polars", "duckdb"])
def test_keys_at_both_ends_leave_the_middle_out_whoever_wrote_the_file(tmp_path: Path, writer: str) -> None:
    for kind in (pa.int64(), pa.uint64(), pa.decimal128(5, 2), pa.decimal128(38, 10), pa.timestamp("us"), pa.date32()):
        keys, path = ladder(kind), f"{tmp_path}/{kind}/t"
        WRITERS[writer][0](pa.table({"id": keys}), f"{path}/f.parquet", 3)
        assert in_groups(candidates(path, ["id"], pa.table({"id": _ends(keys)}))) == [True, False, True]


# P3
def test_a_key_between_two_row_groups_is_in_neither(tmp_path: Path) -> None:
    put(f"{tmp_path}/t/f.parquet", pa.table({"id": [1, 2, 3, 7, 8, 9]}), row_group_size=3)
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], pa.table({"id": [0, 4, 6, 10]}))) == [False, False]
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], pa.table({"id": [0, 3, 10]}))) == [True, False]


# P3
def test_one_source_row_must_fit_the_bounds_of_every_key_column(tmp_path: Path) -> None:
    table = pa.table({"a": [0, 1, 10, 11], "b": ["ka", "kc", "kx", "kz"]})
    put(f"{tmp_path}/t/f.parquet", table, row_group_size=2)
    # Each column's values lie inside some bounds, but no row does with both of them.
    crossed = pa.table({"a": [0, 11], "b": ["ky", "kb"]})
    assert in_groups(candidates(f"{tmp_path}/t", ["a", "b"], crossed)) == [False, False]
    assert in_groups(candidates(f"{tmp_path}/t", ["b", "a"], crossed)) == [False, False]
    one = pa.table({"a": [0, 11, 0], "b": ["ky", "kb", "kb"]})
    assert in_groups(candidates(f"{tmp_path}/t", ["a", "b"], one)) == [True, False]


# P3
def test_one_of_many_source_rows_that_fits_is_found(tmp_path: Path) -> None:
    put(f"{tmp_path}/t/f.parquet", pa.table({"a": [0, 1], "b": [0, 1]}))
    count = 20_000
    source = pa.table({"a": [0] * count + [1], "b": [5] * count + [1]})
    assert in_groups(candidates(f"{tmp_path}/t", ["a", "b"], source)) == [True]
    assert in_groups(candidates(f"{tmp_path}/t", ["a", "b"], source.slice(0, count))) == [False]


# P2 P4
def test_a_row_group_of_nulls_alone_does_not_hide_the_others(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([None, None, 1, 2, None, 9], pa.int32())})
    put(f"{tmp_path}/t/f.parquet", table, row_group_size=2)
    answers = in_groups(candidates(f"{tmp_path}/t", ["id"], pa.table({"id": pa.array([2], pa.int32())})))
    assert answers[1:] == [True, False]


# P3 K6
def test_negative_and_positive_zero_are_one_key_to_bounds(tmp_path: Path) -> None:
    for kind in FLOATS:
        path = f"{tmp_path}/{kind}/t"
        put(f"{path}/f.parquet", pa.table({"id": build([-0.0, 0.0, math.nan, 1.0, 2.0], kind)}), row_group_size=1)
        for zero in (0.0, -0.0):
            answers = in_groups(candidates(path, ["id"], pa.table({"id": build([zero], kind)})))
            assert answers[:2] == [True, True]
            assert answers[3:] == [False, False]


# P1 H1
def test_the_path_bounds_a_partition_column(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        # The copy inside the file has another value, and is ignored.
        put(f"{tmp_path}/t/day={day}/f.parquet", pa.table({"id": [1, 2], "day": [7, 7]}))
    target = load_target(locate(f"{tmp_path}/t"), ["id", "day"], None, {"day": pa.int64()})
    source = pa.table({"id": [1, 9], "day": [2, 3]})
    answers = might_match(target.get_bounds(["id", "day"]), to_canonical_keys(source, ["id", "day"]))
    assert answers.tolist() == [False, True, False]


# -------------------- what proves nothing


def patch(path: str, change: Callable[[Struct], Struct]) -> None:
    """Replace a file's footer."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = write_struct(change(read_struct(data[-8 - length : -8], FILE_METADATA)))
    Path(path).write_bytes(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def with_statistics(changes: dict[int, Any]) -> Callable[[Struct], Struct]:
    """Change the statistics of the first column of every row group."""

    def chunk(column: Struct) -> Struct:
        described = column[3]
        return column.replace({3: described.replace({12: described[12].replace(changes)})})

    def group(one: Struct) -> Struct:
        return one.replace({1: ThriftList(one[1].element, [chunk(one[1][0]), *one[1][1:]])})

    return lambda tree: tree.replace({4: ThriftList(tree[4].element, [group(one) for one in tree[4]])})


def far_outside(kind: pa.DataType) -> tuple[pa.Table, pa.Table]:
    """Rows of a target, and a source key that is far from all of them."""
    keys = ladder(kind)
    return pa.table({"id": keys.slice(0, 5)}), pa.table({"id": keys.slice(8)})


def is_pruned(tmp_path: Path, kind: pa.DataType, change: Callable[[Struct], Struct] | None, **options: Any) -> bool:
    table, source = far_outside(kind)
    path = put(f"{tmp_path}/t/f.parquet", table, **options)
    if change is not None:
        patch(path, change)
    return not all(in_groups(candidates(f"{tmp_path}/t", ["id"], source)))


KINDS = [pa.int32(), pa.uint64(), pa.float64(), pa.decimal128(9, 2), pa.string(), pa.binary(5), pa.timestamp("us")]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=str)


# P3
@EVERY_KIND
def test_an_untouched_footer_prunes(tmp_path: Path, kind: pa.DataType) -> None:
    assert is_pruned(tmp_path, kind, None)
    assert is_pruned(tmp_path, kind, lambda tree: tree)


# P4 P6
@EVERY_KIND
def test_missing_statistics_prove_nothing(tmp_path: Path, kind: pa.DataType) -> None:
    assert not is_pruned(tmp_path, kind, None, write_statistics=False)


# P4
@EVERY_KIND
@pytest.mark.parametrize("missing", [{5: None}, {6: None}, {5: None, 6: None}], ids=["max", "min", "both"])
def test_one_sided_statistics_prove_nothing(tmp_path: Path, kind: pa.DataType, missing: dict[int, None]) -> None:
    assert not is_pruned(tmp_path, kind, with_statistics(missing))


# P4
@EVERY_KIND
@pytest.mark.parametrize("marks", [{7: False, 8: False}, {7: False, 8: True}, {7: True, 8: False}], ids=str)
def test_statistics_marked_inexact_prove_nothing(tmp_path: Path, kind: pa.DataType, marks: dict[int, bool]) -> None:
    assert not is_pruned(tmp_path, kind, with_statistics(marks))


def with_second_statistics(changes: dict[int, Any]) -> Callable[[Struct], Struct]:
    """Change the statistics of the second column of every row group."""

    def group(one: Struct) -> Struct:
        first, second, *others = one[1]
        changed = second.replace({3: second[3].replace({12: second[3][12].replace(changes)})})
        return one.replace({1: ThriftList(one[1].element, [first, changed, *others])})

    return lambda tree: tree.replace({4: ThriftList(tree[4].element, [group(one) for one in tree[4]])})


# P4
@EVERY_KIND
def test_marks_of_a_column_are_its_own(tmp_path: Path, kind: pa.DataType) -> None:
    # The column before it has the same bounds, and nothing marks those.
    table, source = far_outside(kind)
    twin = pa.table({"a": table["id"], "id": table["id"]})
    path = put(f"{tmp_path}/t/f.parquet", twin, row_group_size=2)
    assert not any(in_groups(candidates(f"{tmp_path}/t", ["id"], source)))
    patch(path, with_second_statistics({7: False, 8: False}))
    assert all(in_groups(candidates(f"{tmp_path}/t", ["id"], source)))
    assert not any(in_groups(candidates(f"{tmp_path}/t", ["a"], source.rename_columns(["a"]))))


# P3
@EVERY_KIND
def test_statistics_marked_exact_prune(tmp_path: Path, kind: pa.DataType) -> None:
    assert is_pruned(tmp_path, kind, with_statistics({7: True, 8: True}))


# P3
def test_a_minimum_that_is_also_a_column_name_prunes(tmp_path: Path) -> None:
    put(f"{tmp_path}/t/f.parquet", pa.table({"id": ["id", "ie", "x", "y"], "x": [1, 2, 3, 4]}), row_group_size=2)
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], pa.table({"id": ["y"]}))) == [False, True]
    assert in_groups(candidates(f"{tmp_path}/t", ["id"], pa.table({"id": ["id"]}))) == [True, False]


# P4
@pytest.mark.parametrize("bounds", [(math.nan, math.nan), (math.nan, 0.0), (-4.0, math.nan)], ids=str)
def test_nan_bounds_prove_nothing(tmp_path: Path, bounds: tuple[float, float]) -> None:
    low, high = (struct.pack("<d", bound) for bound in bounds)
    assert not is_pruned(tmp_path, pa.float64(), with_statistics({5: high, 6: low}))


# P4
def test_bounds_the_wrong_way_round_prove_nothing(tmp_path: Path) -> None:
    low, high = (struct.pack("<i", bound) for bound in (3, -3))
    assert not is_pruned(tmp_path, pa.int32(), with_statistics({5: high, 6: low}))


# P4
@EVERY_KIND
def test_without_a_declared_column_order_statistics_prove_nothing(tmp_path: Path, kind: pa.DataType) -> None:
    assert not is_pruned(tmp_path, kind, lambda tree: tree.replace({7: None}))


# P4
@EVERY_KIND
def test_the_deprecated_statistics_prove_nothing(tmp_path: Path, kind: pa.DataType) -> None:
    def only_old(tree: Struct) -> Struct:
        chunk = tree[4][0][1][0][3][12]
        return with_statistics({1: chunk[5], 2: chunk[6], 5: None, 6: None})(tree)

    assert not is_pruned(tmp_path, kind, only_old)
    assert not is_pruned(tmp_path, kind, lambda tree: only_old(tree).replace({7: None}))


# P4
@pytest.mark.parametrize("version", ["1.6.0", "1.8.1", "1.9.0", "1.9.1-SNAPSHOT"])
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.binary(), pa.binary(5), pa.uuid(), pa.uint8(), pa.uint32(), pa.uint64(), *DECIMALS],
    ids=str,
)
@pytest.mark.parametrize("as_integer", [False, True])
def test_old_parquet_mr_is_not_trusted(tmp_path: Path, kind: pa.DataType, version: str, as_integer: bool) -> None:
    named = f"parquet-mr version {version} (build 0123abcd)".encode()
    change = lambda tree: tree.replace({6: named})  # noqa: E731
    assert not is_pruned(tmp_path, kind, change, store_decimal_as_integer=as_integer)


# P3 P4
@pytest.mark.parametrize(
    ("kind", "version"),
    [(pa.int32(), "1.9.0"), (pa.date32(), "1.8.0"), (pa.string(), "1.10.0"), (pa.decimal128(9, 2), "1.13.1")],
    ids=str,
)
def test_parquet_mr_is_trusted_where_it_was_right(tmp_path: Path, kind: pa.DataType, version: str) -> None:
    named = f"parquet-mr version {version} (build 0123abcd)".encode()
    assert is_pruned(tmp_path, kind, lambda tree: tree.replace({6: named}))


# P4 S6
def test_int96_proves_nothing(tmp_path: Path) -> None:
    table, source = far_outside(pa.timestamp("us", "UTC"))
    put(f"{tmp_path}/t/f.parquet", table, use_deprecated_int96_timestamps=True, row_group_size=1)
    assert all(in_groups(candidates(f"{tmp_path}/t", ["id"], source)))


# P4
@pytest.mark.parametrize("writer", ["polars", "duckdb"])
@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()], ids=str)
def test_bounds_that_a_writer_cut_short_drop_no_key(tmp_path: Path, writer: str, kind: pa.DataType) -> None:
    for number, length in enumerate((60, 64, 65, 255, 256, 257, 1000)):
        texts = ["m" * length, "m" * (length - 1) + "n", "m" * (length - 1) + "\U0010ffff"]
        keys = pa.array(texts if kind == pa.large_string() else [text.encode() for text in texts], kind)
        path = f"{tmp_path}/{number}/t"
        WRITERS[writer][0](pa.table({"id": keys}), f"{path}/f.parquet", 1)
        for at in range(3):
            answers = in_groups(candidates(path, ["id"], pa.table({"id": keys.slice(at, 1)})))
            assert answers[at]
