"""Whichever engine merges, the same answer: rows, counts, files to the byte, plans, audits and errors (R3)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import random
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.core.rows.test_bounds_property import patch
from tests.engines.test_merge_property import cases, write_target
from tests.support import DuckDBUnionIO, copy_fixture, load, open_dataset_io, put, snapshot, to_plain_rows
from tests.values import build

from merganser import history
from merganser.core import (
    ColumnTypeError,
    ColumnValueError,
    DuplicateKeyError,
    KeyColumnError,
    MerganserError,
    PartitionMoveError,
    SchemaMismatchError,
    UnreadableFileError,
)
from merganser.core.commit.history import UNCOMMITTED
from merganser.core.parquet.thrift import Struct, ThriftList
from merganser.engines.duckdb import engine as duckdb_engine

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.engines.test_merge_property import Case
    from tests.support import AnyDatasetIO

    from merganser.core import MergePlan, MergeResult
    from merganser.core.commit.history import HistoryRecord
    from merganser.core.merge.operation import OperationContext
    from merganser.engines.duckdb.engine import DuckDBEngine

STRATEGIES = tuple(oracle.STRATEGIES)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no power cut here.
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # noqa: ARG005  the name is the system's


class UnionIO(DuckDBUnionIO):
    """DuckDB that plans without MERGE, too."""

    @contextmanager
    def _open_engine(self, context: OperationContext) -> Iterator[DuckDBEngine]:
        options = replace(context.options, use_merge=False)
        with super()._open_engine(replace(context, options=options)) as engine:
            yield engine


ENGINE_OPENERS: dict[str, Callable[[], AnyDatasetIO]] = {
    "arrow": lambda: open_dataset_io("arrow"),
    "duckdb": lambda: open_dataset_io("duckdb"),
    "duckdb-union": UnionIO,
}


# -------------------- the comparison


@dataclasses.dataclass(frozen=True)
class Ask:
    """What to merge; `limits` are options that a plan does not take."""

    source: Callable[[], Any]
    strategy: str
    keys: Sequence[str]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    limits: dict[str, Any] = dataclasses.field(default_factory=dict)


def ask(source: Any, strategy: str, *keys: str, **options: Any) -> Ask:
    return Ask(lambda: source, strategy, keys, options)


def same_answer(
    path: str, asked: Ask, openers: Mapping[str, Callable[[], AnyDatasetIO]] = ENGINE_OPENERS
) -> dict[str, Any]:
    """Merge into a copy of a dataset with each engine, and compare all there is to see; gives it."""
    answers = {}
    for name, make in openers.items():
        home = f"{path}-{name}"
        os.makedirs(home)
        for folder, copy in ((path, "t"), (control(path), ".t.merganser")):
            if os.path.exists(folder):
                shutil.copytree(folder, f"{home}/{copy}")
        answers[name] = answer(make(), f"{home}/t", asked)
    expected = answers.pop("arrow")
    for name, found in answers.items():
        for what, value in expected.items():
            assert found[what] == value, f"{name}: {what}"
    return expected


def control(path: str) -> str:
    """The folder beside a dataset, which knows the types of its partition columns."""
    return f"{os.path.dirname(path)}/.{os.path.basename(path)}.merganser"


def answer(io: AnyDatasetIO, path: str, asked: Ask) -> dict[str, Any]:
    """Return everything that is to be seen of a plan and of a merge, the dataset under the name of `t`."""
    found: dict[str, Any] = {}
    new: list[str] = []
    strategy: Any = asked.strategy
    try:
        found["plan"] = named_t(io.plan(asked.source(), path, strategy, asked.keys, **asked.options), path)
    except MerganserError as error:
        found["plan"] = type(error), str(error).replace(path, "t")
    try:
        result = io.merge(asked.source(), path, strategy, asked.keys, audit=True, **asked.options, **asked.limits)
    except MerganserError as error:
        found["result"] = type(error), str(error).replace(path, "t")
    else:
        assert result.audit is not None
        new = result.inserted_files
        found["result"] = in_t(result, path)
        found["audit"] = result.audit.schema, to_multiset(result.audit)
        found["rows"] = to_multiset(load(io, path)) if snapshot(path) else None
        # The same kernel writes the same rows in the same order, so even new files differ by nothing but their names.
        found["new files"] = [(os.path.dirname(name)[len(path) :], Path(name).read_bytes()) for name in new]
    found["files"] = {name: data for name, data in snapshot(path).items() if f"{path}/{name}" not in new}
    found["control"] = {name: data for name, data in snapshot(control(path)).items() if not name.startswith("history/")}
    found["history"] = [normalize_record(record, new, path) for record in history(path)]
    return found


def normalize_record(record: HistoryRecord, new: list[str], path: str) -> HistoryRecord:
    """Return a record without what differs from one commit to the next: when it was, and names of new files."""
    files = [
        dataclasses.replace(
            file, path=os.path.dirname(file.path) if f"{path}/{file.path}" in new else file.path, modified=0
        )
        for file in record.files
    ]
    return dataclasses.replace(record, id="", committed_at=UNCOMMITTED, engine="", duration=0, files=files)


def to_multiset(table: pa.Table) -> Counter[Any]:
    """Return rows as a multiset; text as bytes, for not all of it is text to Python."""
    texts = [at for at, field in enumerate(table.schema) if field.type in (pa.string(), pa.large_string())]
    for at in texts:
        table = table.set_column(at, table.schema.names[at], table.column(at).cast(pa.large_binary()))
    return oracle.to_multiset(to_plain_rows(table))


def named_t(plan: MergePlan, path: str) -> MergePlan:
    files = tuple(dataclasses.replace(file, path=os.path.relpath(file.path, path)) for file in plan.files)
    return dataclasses.replace(plan, path="t", files=files)


def in_t(result: MergeResult, path: str) -> dict[str, Any]:
    return {
        "stats": result.stats,
        "skipped": result.skipped,
        "counts": (result.strategy, result.source_count, result.target_count_before, result.target_count_after),
        "rewritten": [os.path.relpath(name, path) for name in result.rewritten_files],
        "preserved": [os.path.relpath(name, path) for name in result.preserved_files],
        "removed": [os.path.relpath(name, path) for name in result.removed_files],
        "files": [(file.operation, file.row_count, file.size_bytes) for file in result.files],
    }


# -------------------- any dataset of any types


def check_case(
    case: Case, pieces: int | None, openers: Mapping[str, Callable[[], AnyDatasetIO]] = ENGINE_OPENERS
) -> None:
    def source() -> Any:
        return case.source if pieces is None else case.source.to_reader(max_chunksize=pieces)

    options = {"partition_columns": case.partitions.names or None, "dedup_order_by": case.order_by or None}
    options |= case.options
    limits = {"max_rows_per_file": case.max_rows, "row_group_size": case.group_rows}
    with tempfile.TemporaryDirectory() as lake:
        write_target(open_dataset_io("arrow"), f"{lake}/t", case)
        same_answer(f"{lake}/t", Ask(source, case.strategy, case.keys, options, limits), openers)


# R3
@settings(max_examples=5)
@given(case=cases(), pieces=st.none() | st.integers(1, 4))
def test_engines_agree_on_every_type(case: Case, pieces: int | None) -> None:
    check_case(case, pieces)


# R3
@pytest.mark.slow
@settings(max_examples=20)
@given(case=cases(), pieces=st.none() | st.integers(1, 4))
def test_engines_agree_on_many_datasets_of_every_type(case: Case, pieces: int | None) -> None:
    check_case(case, pieces)


# -------------------- larger datasets


# Key number so and so of each type, from -100 to 100.
KEYS: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int32(): int,
    pa.int64(): int,
    pa.uint64(): lambda number: (1 << 63) + number,
    pa.float32(): lambda number: number / 2 or -0.0,
    pa.float64(): lambda number: number / 2 or -0.0,
    pa.string(): lambda number: f"a common beginning {number}",
    pa.dictionary(pa.int32(), pa.string()): str,
    pa.binary(): lambda number: bytes([number + 128]),
    pa.uuid(): lambda number: (number + 128).to_bytes(16, "big"),
    pa.bool_(): lambda number: number % 2 == 0,
    pa.decimal128(9, 2): lambda number: Decimal(number).scaleb(-2),
    pa.decimal128(38, 10): lambda number: Decimal(number).scaleb(-10),
    pa.decimal256(50, 3): lambda number: Decimal(number).scaleb(-3),
    pa.date32(): int,
    pa.timestamp("us"): int,
    pa.timestamp("ns", "Europe/Paris"): int,
    pa.time64("ns"): lambda number: number + 1000,
}


@dataclasses.dataclass(frozen=True)
class DatasetLayout:
    """How to lay out a dataset; `seed` decides about rows."""

    key_types: list[pa.DataType]
    partitioned: bool
    strategy: str
    seed: int


shapes = st.builds(
    DatasetLayout,
    st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(STRATEGIES),
    st.integers(0, 1 << 32),
)


def make(shape: DatasetLayout, path: str) -> Ask:
    """Write some files of many row groups, and give what to merge into them."""
    rnd = random.Random(shape.seed)
    names = [f"key {number}" for number in range(len(shape.key_types))]
    days = rnd.sample([1, 2, 30], 2) if shape.partitioned else [0]
    fields = [*zip(names, shape.key_types, strict=True), ("v", pa.string()), ("w", pa.list_(pa.int16()))]
    schema = pa.schema([*fields, ("day", pa.int32())] if shape.partitioned else fields)
    keys = [*names, "day"] if shape.partitioned and rnd.random() < 0.5 else names

    def rows(numbers: Sequence[tuple[int, ...]], day: int | None, null: float) -> pa.Table:
        cells = [
            [None if rnd.random() < null else KEYS[kind](number[at]) for number in numbers]
            for at, kind in enumerate(shape.key_types)
        ]
        values = [f"{rnd.randrange(1000)}" for _ in numbers]
        lists = [[rnd.randrange(9)] * rnd.randrange(3) for _ in numbers]
        # Rows without a day get the one of their first number.
        each = [days[number[0] % len(days)] if day is None else day for number in numbers]
        columns: list[list[Any]] = [*cells, values, lists, each]
        made = [build(column, field.type) for column, field in zip(columns, schema, strict=False)]
        return pa.table(made, schema=schema)

    width = rnd.choice([3, 30, 100])
    for number in range(rnd.randint(1, 5)):
        day = rnd.choice(days)
        home = [one for one in range(-width, width) if days[one % len(days)] == day]
        held = [(rnd.choice(home), *(rnd.randint(-2, 2) for _ in names[1:])) for _ in range(rnd.randint(1, 200))]
        if rnd.random() < 0.5:
            held.sort()
        folder = f"day={day}/" if shape.partitioned else ""
        table = rows(held, day, 0.05).drop_columns(["day"] if shape.partitioned else [])
        write(rnd, f"{path}/{folder}{number}.parquet", table)

    asked = {(rnd.randint(-width, width), *(rnd.randint(-2, 2) for _ in names[1:])) for _ in range(rnd.randint(0, 90))}
    # Numbers that are one key in some type (odd and even are all that bool knows) are mostly given once.
    known = {
        tuple(KEYS[kind](one) for kind, one in zip(shape.key_types, number, strict=True)): number for number in asked
    }
    chosen = list(known.values()) if rnd.random() < 0.9 else list(asked)
    rnd.shuffle(chosen)
    if shape.strategy == "deduplicate":
        chosen += chosen[: len(chosen) // 2]
    moved = days[0] if rnd.random() < 0.1 else None
    source = rows(chosen, moved, 0.001)
    options: dict[str, Any] = {"check_partition_moves": rnd.random() < 0.8}
    if shape.strategy == "deduplicate":
        options["dedup_order_by"] = rnd.choice([None, ["v"], ["v", "key 0"]])
    pieces = rnd.choice([None, 7, 1000])
    limits = {"max_rows_per_file": rnd.choice([20, 1000]), "row_group_size": rnd.choice([7, 1000])}
    given_ = (lambda: source) if pieces is None else (lambda: source.to_reader(max_chunksize=pieces))
    return Ask(given_, shape.strategy, keys, options, limits)


def write(rnd: random.Random, path: str, table: pa.Table) -> None:
    """Write a file of row groups of different sizes, some of them of no rows."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    options = {
        "compression": rnd.choice(["snappy", "zstd", "gzip", "none"]),
        "use_dictionary": rnd.random() < 0.5,
        "write_statistics": rnd.random() < 0.8,
        "data_page_version": rnd.choice(["1.0", "2.0"]),
        "store_decimal_as_integer": rnd.random() < 0.5,
    }
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        start = 0
        while start < table.num_rows:
            if rnd.random() < 0.1:
                writer.write_table(table.slice(0, 0))
            size = rnd.choice([1, 5, 20, 80])
            writer.write_table(table.slice(start, size))
            start += size


def check_shape(shape: DatasetLayout) -> None:
    # A long source is merged part by part; here it need not be long.
    at_once = 7 if shape.seed % 2 else duckdb_engine._ROWS_PER_MERGE
    with tempfile.TemporaryDirectory() as lake, mock.patch.object(duckdb_engine, "_ROWS_PER_MERGE", at_once):
        same_answer(f"{lake}/t", make(shape, f"{lake}/t"))


# R3
@settings(max_examples=3)
@given(shape=shapes)
def test_engines_agree_on_larger_datasets(shape: DatasetLayout) -> None:
    check_shape(shape)


# R3
@pytest.mark.slow
@settings(max_examples=20)
@given(shape=shapes)
def test_engines_agree_on_many_larger_datasets(shape: DatasetLayout) -> None:
    check_shape(shape)


# -------------------- the hard ones


def pairs(ids: Sequence[Any] | pa.Array, value: str = "old") -> pa.Table:
    return pa.table({"id": pa.array(ids), "v": [value] * len(ids)})


def stats(answer: dict[str, Any]) -> tuple[int, int, int]:
    found = answer["result"]["stats"]
    return found["inserted"], found["updated"], found["deleted"]


# R3, P2
def test_row_groups_without_rows(lake: str) -> None:
    table = pairs(list(range(6)))
    nothing = table.slice(0, 0)
    os.makedirs(f"{lake}/t")
    for name, parts in {
        "first": [nothing, table.slice(0, 2)],
        "middle": [table.slice(2, 1), nothing, nothing, table.slice(3, 1)],
        "last": [table.slice(4, 2), nothing],
        "alone": [nothing],
    }.items():
        with pq.ParquetWriter(f"{lake}/t/{name}.parquet", table.schema) as writer:
            for part in parts:
                writer.write_table(part)
    found = same_answer(f"{lake}/t", ask(pairs(list(range(7)), "new"), "upsert", "id"))
    assert stats(found) == (1, 6, 0)


# R3, P2: row groups that are looked at among others that are not
def test_every_other_of_many_row_groups(lake: str) -> None:
    held = [number * 10 + offset for number in range(60) for offset in (0, 5)]
    put(f"{lake}/t/a.parquet", pairs(held), row_group_size=2)
    found = same_answer(f"{lake}/t", ask(pairs([*range(0, 600, 20), 7], "new"), "upsert", "id"))
    assert stats(found) == (1, 30, 0)
    assert (found["plan"].files[0].candidate_groups, found["plan"].files[0].affected_groups) == (30, 30)


# R3, T1: a source that is merged in parts, with target rows that match in each of them
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_source_in_chunks(lake: str, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    monkeypatch.setattr(duckdb_engine, "_ROWS_PER_MERGE", 10)
    put(f"{lake}/t/a.parquet", pairs([*range(0, 60, 2)] * 2), row_group_size=7)
    source = pairs([*range(59, -1, -1)], "new")
    found = same_answer(f"{lake}/t", ask(source, strategy, "id"))
    matched, inserts, _ = oracle.STRATEGIES[strategy]
    assert stats(found) == (30 * inserts, 60 * (matched == "update"), 60 * (matched == "delete"))


# R3, K6
@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_zeros_of_both_signs_and_nan(lake: str, kind: pa.DataType) -> None:
    held = build([-0.0, 0.0, float("nan"), None, 1.0, float("-inf")], kind)
    put(f"{lake}/t/a.parquet", pairs(held), row_group_size=1)
    found = same_answer(f"{lake}/t", ask(pairs(build([-0.0, 2.0, float("-inf")], kind), "new"), "full_merge", "id"))
    assert stats(found) == (1, 3, 3)


# R3, K4, K10
def test_composite_keys_that_are_null_in_part(lake: str) -> None:
    target = pa.table({"a": [1, None, 1, None, 1], "b": ["x", "x", None, None, "x"], "v": [0] * 5})
    put(f"{lake}/t/a.parquet", target, row_group_size=2)
    source = pa.table({"a": [1, 2], "b": ["x", ""], "v": [7, 7]})
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", "a", "b"))) == (1, 2, 0)


# R3, K6: what DuckDB has no type for, or only a narrower one; or the ends of what it has
ENDS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "uint64": (pa.uint64(), [0, 2**63 - 1, 2**63, 2**64 - 1], [2**64 - 1, 2**63, 1]),
    "decimal256": (pa.decimal256(76, 40), ["1e35", "-1", "1e-40"], ["1e-40", "1"]),
    "decimal128": (pa.decimal128(38, 0), ["9" * 38, "-" + "9" * 38], ["-" + "9" * 38, "0"]),
    "nanoseconds": (pa.timestamp("ns"), [-1, 0, 1, 2**62], [1, 2**62, 999]),
    "far seconds": (pa.timestamp("s", "UTC"), [-1, 10**12], [10**12, 0]),
    "time": (pa.time64("ns"), [1, 999, 1000], [999, 2]),
    "far days": (pa.date32(), [-(2**31), 2**31 - 1], [2**31 - 1, 0]),
    "uuid": (pa.uuid(), [bytes(16), b"\xff" * 16], [b"\xff" * 16, b"\x01" * 16]),
    "bool": (pa.bool_(), [True, True], [False, True]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\x00\x00", b"\\x41"], [b"\x00", b"\xff", b"A"]),
    "text": (pa.string(), ["", "a\x00b", "a", "é", "e\u0301", "\\x41"], ["a\x00b", "e\u0301", "E", "A"]),
}


@pytest.mark.parametrize("name", ENDS)
def test_keys_at_the_ends_of_their_types(lake: str, name: str) -> None:
    kind, *lists = ENDS[name]
    held, given_ = ([Decimal(one) for one in some] if pa.types.is_decimal(kind) else some for some in lists)
    put(f"{lake}/t/a.parquet", pairs(build(held, kind)), row_group_size=1)
    put(f"{lake}/t/b.parquet", pairs(build(held[:1], kind)))
    found = same_answer(f"{lake}/t", ask(pairs(build(given_, kind), "new"), "upsert", "id"))
    matched = [one for one in [*held, held[0]] if one in given_]
    assert stats(found) == (len(set(given_) - set(matched)), len(matched), 0)


# R3, K6
def test_strings_that_are_not_utf8(lake: str) -> None:
    texts = [b"ok", b"\xff\xfe", b"\xc3"]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    keys = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))
    table = pa.table({"id": keys, "v": [1, 2, 3]})
    put(f"{lake}/t/a.parquet", table)
    put(f"{lake}/t/b.parquet", pa.table({"id": ["ok", "b"], "v": [4, 5]}))
    found = same_answer(f"{lake}/t", ask(table.set_column(1, "v", pa.array([7, 8, 9])), "update", "id"))
    assert stats(found) == (0, 4, 0)


def as_enum(tree: Struct) -> Struct:
    """Call the first column an ENUM, which Arrow takes for bytes and DuckDB for text."""
    root, first, *others = tree[2]
    return tree.replace({2: ThriftList(tree[2].element, [root, first.replace({6: 4, 10: None}), *others])})


# R3, K6: where DuckDB makes bytes of text, it takes `\\x41` for an A
def test_bytes_that_duckdb_returns_as_strings(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pairs(["\\x41", "b"]), store_schema=False)
    patch(path, as_enum)
    assert pq.read_schema(path).field("id").type == pa.binary()
    found = same_answer(f"{lake}/t", ask(pairs(pa.array([b"\\x41", b"A"]), "new"), "upsert", "id"))
    assert stats(found) == (1, 1, 0)


# Names that mean something in SQL, or in our own statements.
ODD = ["key_0", "told_0", "line", "place", "position", "file", "row_group", "source_row", "first", "after", "number"]
ODD += ["source", "target", "span", 'a "b" c', "a.b", "a'b", "select", "*", "é", " ", "?", "$1", "rowid", "KEY_1"]


# R3, K1: columns that DuckDB adds to those of a file come first
@pytest.mark.parametrize("keys", [["filename"], ["File_Index"], ["file_row_number"], ODD], ids=lambda keys: keys[0])
def test_key_columns_of_any_name(lake: str, keys: list[str]) -> None:
    for day in range(2):
        held = {name: [1 + day, None, 3 + day, 5] for name in keys}
        put(f"{lake}/t/day={day}/a.parquet", pa.table({**held, "v": [0] * 4}), row_group_size=1 + day)
    days = pa.array([0, 1, 0], pa.int32())
    source = pa.table({**{name: [1, 2, 9] for name in keys}, "v": [7] * 3, "day": days})
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", *keys, "day"))) == (1, 2, 0)


# R3, K2: to DuckDB these are one column
def test_key_columns_that_differ_by_case(lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"ID": [3, 2, 1], "id": [1, 2, 3], "v": [0, 0, 0]}), row_group_size=2)
    source = pa.table({"id": [1, 4], "ID": [7, 1], "v": [9, 9]})
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", "id"))) == (1, 1, 0)


# R3, S1: the second column of one file is the first of another
def test_key_columns_in_another_place_of_each_file(lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "v": [10, 20], "w": [5, 6]}))
    put(f"{lake}/t/b.parquet", pa.table({"w": [1, 2], "id": [3, 4], "v": [1, 2]}))
    put(f"{lake}/t/c.parquet", pa.table({"v": [1, 2], "w": [3, 4], "id": [5, 6]}))
    source = pa.table({"id": [1, 4, 5, 20], "v": [0] * 4, "w": [0] * 4})
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", "id"))) == (1, 3, 0)


# R3, P7: a pattern is a name like any other
def test_files_of_any_name(lake: str) -> None:
    names = ["[1]", "1", "a*", "ab", "a?", "{a,b}", "a", "a\\b", "it's", "~", "a%20b", "a b", "東京", "a:b", "x;y", "#"]
    for number, name in enumerate(names):
        put(f"{lake}/t/{name}.parquet", pairs([number, 100 + number]), row_group_size=1)
    ids = [*range(len(names)), 99]
    assert stats(same_answer(f"{lake}/t", ask(pairs(ids, "new"), "upsert", "id"))) == (1, len(names), 0)


# R3, H1: the key is the value in the path, whatever the file holds
def test_a_key_column_that_exists_only_in_paths(lake: str) -> None:
    for day in ("2025-01-01", "2025-01-02", "__HIVE_DEFAULT_PARTITION__"):
        put(f"{lake}/t/day={day}/a.parquet", pa.table({"id": [1, 2, 3], "day": ["x", "y", "z"]}), row_group_size=2)
    days = [dt.date(2025, 1, 1), dt.date(2025, 1, 3)]
    source = pa.table({"id": [7, 8], "day": pa.array(days, pa.date32())})
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", "day"))) == (1, 3, 0)


# R3, H6: the key is in the path of one file, inside another, and missing in a third
@pytest.mark.parametrize(("strategy", "expected"), [("upsert", (1, 4, 0)), ("full_merge", (1, 4, 6))])
def test_a_key_column_that_exists_in_paths_and_in_files(
    lake: str, strategy: str, expected: tuple[int, int, int]
) -> None:
    put(f"{lake}/t/day=a/a.parquet", pairs([1, 2]))
    put(f"{lake}/t/day=b/a.parquet", pairs([1, 2, 3]), row_group_size=1)
    put(f"{lake}/t/b.parquet", pairs([1, 2, 4]).append_column("day", pa.array(["a", "b", None])), row_group_size=2)
    put(f"{lake}/t/c.parquet", pairs([1, 2]))
    source = pairs([1, 2, 4], "new").append_column("day", pa.array(["a", "b", "b"]))
    assert stats(same_answer(f"{lake}/t", ask(source, strategy, "id", "day"))) == expected


# R3, K9
@pytest.mark.parametrize(("strategy", "expected"), [("insert", (0, 0, 0)), ("full_merge", (0, 51, 2))])
def test_one_key_in_every_row(lake: str, strategy: str, expected: tuple[int, int, int]) -> None:
    put(f"{lake}/t/a.parquet", pairs(["x"] * 50), row_group_size=7)
    put(f"{lake}/t/b.parquet", pairs(["x", "y", None]))
    assert stats(same_answer(f"{lake}/t", ask(pairs(["x"], "new"), strategy, "id"))) == expected


# R3, T3: a key orders nothing, but it may be named
def test_deduplicate_ordered_by_a_key(lake: str) -> None:
    put(f"{lake}/t/a.parquet", pairs([1]))
    source = pa.table({"id": [2, 1, 2, 1, 2], "v": ["a", "b", "c", None, "b"]})
    asked = ask(source, "deduplicate", "id", dedup_order_by=["id", "v"])
    assert stats(same_answer(f"{lake}/t", asked)) == (1, 1, 0)


# R3, T5
@pytest.mark.parametrize("strategy", ["upsert", "full_merge", "deduplicate"])
def test_a_source_without_rows(lake: str, strategy: str) -> None:
    for number in range(3):
        ids = pa.array([number] * number, pa.int64())
        put(f"{lake}/t/day={number}/a.parquet", pa.table({"id": ids, "v": pa.array(["old"] * number, pa.string())}))
    source = pa.schema([("id", pa.int64()), ("v", pa.string()), ("day", pa.int64())]).empty_table()
    deleted = 3 if strategy == "full_merge" else 0
    assert stats(same_answer(f"{lake}/t", ask(source, strategy, "id"))) == (0, 0, deleted)


# R3, T4
@pytest.mark.parametrize(
    ("strategy", "inserted", "folder"), [("update", 0, True), ("deduplicate", 3, True), ("deduplicate", 3, False)]
)
def test_no_target(lake: str, strategy: str, inserted: int, folder: bool) -> None:
    if folder:
        os.makedirs(f"{lake}/t")
    source = pa.table({"id": [3, 1, 2, 1], "v": ["c", "a", "b", "z"], "day": ["y", "x", "y", "z"]})
    given_ = source if strategy == "deduplicate" else source.slice(0, 3)
    found = same_answer(f"{lake}/t", ask(given_, strategy, "id", partition_columns=["day"]))
    assert stats(found) == (inserted, 0, 0)


# Arrow groups such rows in an order of its own.
# R3
def test_new_partitions_in_the_order_of_the_source(lake: str) -> None:
    days = pa.array([None, 0, None, 5, 5, 5, 0], pa.int16())
    source = pa.table({"id": range(7), "day": days, "place": [0, 0, 1, 0, 1, 0, 0]})
    found = same_answer(f"{lake}/t", ask(source, "insert", "id", partition_columns=["place", "day"]))
    null = "__HIVE_DEFAULT_PARTITION__"
    assert [folder for folder, _ in found["new files"]] == [
        f"/place={place}/day={day}" for place, day in [(0, null), (0, 0), (1, null), (0, 5), (1, 5)]
    ]


# R3, S6
@pytest.mark.parametrize("name", ["spark_int96", "spark_legacy", "spark_no_statistics", "spark_partitioned"])
def test_files_of_spark(lake: str, name: str) -> None:
    path = copy_fixture(name, lake)
    table = load(open_dataset_io("arrow"), path)
    keys = [key for key in ("id", "ts", "amount") if key in table.column_names]
    known = table.filter(np.all([table[key].is_valid().to_numpy() for key in keys], axis=0))
    found = same_answer(path, ask(known.slice(0, 3), "full_merge", *keys))
    assert stats(found) == (0, 3, table.num_rows - 3)


# R3, S6
def test_instants_in_int96(lake: str) -> None:
    kind = pa.timestamp("us", "UTC")
    instants = [-(10**15), -1, 0, 1, None, 10**15]
    put(f"{lake}/t/a.parquet", pairs(pa.array(instants, kind)), use_deprecated_int96_timestamps=True, row_group_size=2)
    source = pairs(pa.array([-1, 1, 2, 10**15], kind), "new")
    assert stats(same_answer(f"{lake}/t", ask(source, "upsert", "id"))) == (1, 3, 0)


# -------------------- errors


REFUSED: dict[str, tuple[dict[str, list[Any]], list[str], type[Exception]]] = {
    "NULL": ({"id": [1, None, None], "k": ["a", "b", None]}, ["k", "id"], KeyColumnError),
    "two keys twice": ({"id": [8, 3, 8, 8, 3], "k": ["a"] * 5}, ["id"], DuplicateKeyError),
    "many keys twice": ({"id": [*range(20)] * 2, "k": ["é"] * 40}, ["k", "id"], DuplicateKeyError),
    "moves": ({"id": [5, 3, 1], "k": ["a", "b", "a"]}, ["id"], PartitionMoveError),
    "a key too large": ({"id": [5, 2**40, 2**41], "k": ["a"] * 3}, ["id"], ColumnValueError),
    "a column too few": ({"id": [5]}, ["id"], SchemaMismatchError),
    "another type": ({"id": [5], "k": [b"a"]}, ["id"], ColumnTypeError),
}


# R3, K3, K5, S2, S3, H4: the first in row order are shown, to the letter
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(lake: str, name: str) -> None:
    columns, keys, error = REFUSED[name]
    for day in (1, 2):
        ids = pa.array([day, day + 2, None], pa.int32())
        put(f"{lake}/t/day={day}/a.parquet", pa.table({"id": ids, "k": ["a", "b", "c"]}))
    source = pa.table({**columns, "day": [2] * len(columns["id"])})
    found = same_answer(f"{lake}/t", ask(source, "upsert", *keys))
    assert found["result"][0] is error
    assert found["plan"] == found["result"]


# R3, P6
@pytest.mark.parametrize("place", [0, 4, 60])
@pytest.mark.parametrize("others", [False, True])
def test_a_file_whose_pages_are_broken(lake: str, place: int, others: bool) -> None:
    for name in ("a", "b", "c") if others else ("b",):
        put(f"{lake}/t/{name}.parquet", pairs(list(range(50))), compression="snappy", use_dictionary=False)
    broken = Path(f"{lake}/t/b.parquet")
    data = bytearray(broken.read_bytes())
    data[4 + place : 24 + place] = b"\xff" * 20
    broken.write_bytes(data)
    found = same_answer(f"{lake}/t", ask(pairs([3, 77], "new"), "upsert", "id"))
    assert found["result"][0] is UnreadableFileError
    assert "t/b.parquet" in found["result"][1]
