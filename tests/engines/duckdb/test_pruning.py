"""DuckDB skips what we skip and nothing else: its own ideas about statistics do not count (P3, P4)."""

from __future__ import annotations

import json
import math
import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.rows.test_bounds_property import ladder, patch, with_statistics
from tests.oracle import is_null
from tests.support import open_dataset_io, put, read_table
from tests.values import PLAIN, build, cells

from merganser import DuckDBDatasetIO
from merganser.core.merge.operation import OperationContext
from merganser.core.model.engine import SourceSpec
from merganser.core.model.keys import to_canonical, to_canonical_keys
from merganser.core.model.options import Options
from merganser.core.model.strategy import MergePolicy, find_rule
from merganser.core.parquet.thrift import FILE_METADATA, Struct, ThriftList, read_struct
from merganser.core.rows.bounds import might_match
from merganser.core.storage.local import LocalStore
from merganser.engines.duckdb import engine as duckdb_engine
from merganser.engines.duckdb.engine import DuckDBEngine
from merganser.engines.duckdb.key_scan import KeyScan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support import AnyDatasetIO

    Change = Callable[[Struct], Struct]


@pytest.fixture
def _read_by_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DuckDB read every file itself; our own reader would answer right in its place."""

    def refuse(*_: object) -> None:
        raise AssertionError("DuckDB left a file to our own reader")

    monkeypatch.setattr(KeyScan, "scan_with_arrow", refuse)


# -------------------- statistics that lie, and that we know to prove nothing


def footer(path: str) -> Struct:
    with open(path, "rb") as stream:
        data = stream.read()
    (length,) = struct.unpack("<I", data[-8:-4])
    return read_struct(data[-8 - length : -8], FILE_METADATA)


def bounds_of(lake: str, keys: pa.Array) -> tuple[bytes, bytes]:
    """Return minimum and maximum of some keys as a footer holds them."""
    path = put(f"{lake}/other/f.parquet", pa.table({"id": keys}))
    found = footer(path)[4][0][1][0][3][12]
    return found[6], found[5]


def after(first: Change, second: dict[int, Any]) -> Change:
    return lambda tree: first(tree).replace(second)


def lies(kind: pa.DataType, low: bytes, far: bytes) -> dict[str, Change]:
    """Statistics that leave out every key below `far`; `low` is the lowest of them."""
    wrong = with_statistics({5: far, 6: far})
    found = {
        "inexact": with_statistics({5: far, 6: far, 7: False, 8: False}),
        "inexact minimum": with_statistics({5: far, 6: far, 7: True, 8: False}),
        "deprecated": with_statistics({1: far, 2: far, 5: None, 6: None}),
        "no maximum": with_statistics({5: None, 6: far}),
        "wrong way round": with_statistics({5: low, 6: far}),
        "no order": after(wrong, {7: None}),
    }
    if kind == pa.string() or pa.types.is_decimal(kind):
        found["old parquet-mr"] = after(wrong, {6: b"parquet-mr version 1.8.1 (build 0123abcd)"})
    if pa.types.is_floating(kind):
        found["NaN"] = with_statistics({5: struct.pack("<d", math.nan), 6: far})
    return found


# What DuckDB reads itself; the others come through our own reader.
KINDS = (pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 10), pa.string())


def keyed(keys: pa.Array, value: int) -> pa.Table:
    return pa.table({"id": keys, "v": np.full(len(keys), value)})


# P4, R3
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_keys_are_found_whatever_statistics_claim(io: AnyDatasetIO, lake: str, kind: pa.DataType) -> None:
    keys = ladder(kind)
    held, far = keys.slice(0, 5), keys.slice(8)
    claims = lies(kind, bounds_of(lake, held)[0], bounds_of(lake, far)[1])
    # More rows than the source has: filters go from the smaller side of a join to the larger.
    table = keyed(held.take(pa.array([*range(5)] * 40)), 0)
    for name, change in claims.items():
        patch(put(f"{lake}/t/{name}.parquet", table, row_group_size=50), change)
    result = io.merge(keyed(keys.take(pa.array([0, 2, 4, 5])), 1), f"{lake}/t", "upsert", "id")
    assert [os.path.basename(path) for path in result.preserved_files] == []
    assert (result.inserted, result.updated) == (1, 3 * 40 * len(claims))


# P4, R3: with bounds or without
@pytest.mark.parametrize("change", [{3: 100}, {3: 100, 5: None, 6: None}, {3: None}], ids=str)
def test_keys_are_found_if_statistics_claim_only_nulls(io: AnyDatasetIO, lake: str, change: dict[int, Any]) -> None:
    path = put(f"{lake}/t/a.parquet", keyed(pa.array(range(100)), 0))
    patch(path, with_statistics(change))
    plan = io.plan(keyed(pa.array([5, 50, 100]), 1), f"{lake}/t", "upsert", "id")
    assert (plan.inserted, plan.updated) == (1, 2)


# K4, P4, R3
def test_null_keys_are_found_if_statistics_claim_none(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", keyed(pa.array([None, 0, 1, None, 5]), 0))
    patch(path, with_statistics({3: 0}))
    result = io.merge(keyed(pa.array([0, 5, 6]), 1), f"{lake}/t", "full_merge", "id")
    assert (result.inserted, result.updated, result.deleted) == (1, 2, 3)


# P2, P4
def test_keys_are_found_in_row_groups_with_wrong_statistics(io: AnyDatasetIO, lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", keyed(pa.array(range(100)), 0), row_group_size=10)
    far = struct.pack("<q", 1000)
    lie = with_statistics({5: far, 6: far, 7: False, 8: False})

    def half(tree: Struct) -> Struct:
        lying = lie(tree)[4]
        return tree.replace({4: ThriftList(tree[4].element, [(lying if at % 2 else tree[4])[at] for at in range(10)])})

    patch(path, half)
    # Of the honest row groups, one might hold a key; of the others, any might.
    plan = io.plan(keyed(pa.array([15, 25, 55, 95, 500]), 1), f"{lake}/t", "upsert", "id")
    assert (plan.updated, plan.inserted) == (4, 1)
    assert (plan.files[0].candidate_groups, plan.files[0].affected_groups) == (6, 4)


# D3, K8: names that the statement uses itself
@pytest.mark.usefixtures("_read_by_duckdb")
def test_keys_of_any_name_are_read_by_duckdb(lake: str) -> None:
    for name in ("file", "line", "told", "told_0", "parquet", "target", "source", "key_0", "source_row", "number"):
        table = pa.table({name: range(100), "v": [0] * 100})
        put(f"{lake}/{name}/day=1/a.parquet", table, row_group_size=50)
        put(f"{lake}/{name}/day=2/b.parquet", table.slice(0, 10))
        source = pa.table({name: [5, 7, 200], "v": [1] * 3, "day": [1, 2, 1]})
        plan = open_dataset_io("duckdb").plan(source, f"{lake}/{name}", "upsert", [name, "day"])
        assert (plan.updated, plan.inserted) == (2, 1)


# P2, R3: a part of many files, and many parts of one
def test_keys_are_found_in_parts_of_files(io: AnyDatasetIO, lake: str) -> None:
    for file in range(10):
        put(f"{lake}/t/{file}.parquet", keyed(pa.array(range(100 * file, 100 * file + 100)), 0), row_group_size=50)
    put(f"{lake}/t/many.parquet", keyed(pa.array(range(5000, 5500)), 0), row_group_size=10)
    keys = [*range(7, 1000, 100), *range(5003, 5500, 20), 9999]
    result = io.merge(keyed(pa.array(keys), 1), f"{lake}/t", "upsert", "id")
    assert (result.updated, result.inserted) == (35, 1)
    assert sorted(read_table(io, f"{lake}/t").filter(pc.equal(pc.field("v"), 1)).column("id").to_pylist()) == keys


# P4: few keys become a list in the scan, one a constant, and many a range
@pytest.mark.parametrize("count", [1, 4, 100, 5000])
def test_keys_are_found_however_many_are_asked_for(io: AnyDatasetIO, lake: str, count: int) -> None:
    ids = pa.array(range(10_000))
    path = put(f"{lake}/t/a.parquet", keyed(ids, 0), row_group_size=1000)
    far = struct.pack("<q", 1 << 40)
    patch(path, with_statistics({5: far, 6: far, 7: False, 8: False}))
    plan = io.plan(keyed(ids.take(pa.array(range(0, 10_000, 10_000 // count))), 1), f"{lake}/t", "upsert", "id")
    assert (plan.updated, plan.inserted) == (count, 0)


# P4
def test_keys_are_found_whatever_a_bloom_filter_claims(io: AnyDatasetIO, lake: str) -> None:
    os.makedirs(f"{lake}/t")
    path = f"{lake}/t/a.parquet"
    with duckdb.connect() as connection:
        relation = connection.sql("SELECT (i % 100)::BIGINT AS id, i AS v FROM range(10_000) AS r (i)")
        relation.write_parquet(path)
    chunk = footer(path)[4][0][1][0][3]
    start, length = chunk[14], chunk[15]
    # After a header come the bits, a power of two of them; with none set, no value is known.
    bits = 1 << (length.bit_length() - 1)
    with open(path, "r+b") as stream:
        stream.seek(start + length - bits)
        stream.write(bytes(bits))
    for keys, updated in (([5], 100), ([5, 7, 50, 1000], 300)):
        plan = io.plan(keyed(pa.array(keys), 1), f"{lake}/t", "upsert", "id")
        assert plan.updated == updated


# -------------------- what DuckDB pushes into its scan


class Explaining:
    """A connection that explains the statements that read Parquet, and keeps what it learns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, plans: list[Any]) -> None:
        self._connection = connection
        self._plans = plans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> Any:
        if "read_parquet" not in sql:
            return self._connection.execute(sql, *parameters)
        # It is run as well, so that filters which come up only then are known.
        rows = self._connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *parameters).fetchall()
        self._plans.append(json.loads(rows[0][1]))
        return None


def filters(plan: Any) -> Iterator[str]:
    """Return every filter inside a scan of Parquet files."""
    if isinstance(plan, list):
        for one in plan:
            yield from filters(one)
    if isinstance(plan, dict):
        info = plan.get("extra_info")
        if isinstance(info, dict) and "PARQUET" in info.get("Function", ""):
            yield from (str(text) for name, text in info.items() if "Filter" in name)
        for one in plan.values():
            yield from filters(one)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans of the statements that read Parquet."""
    found: list[Any] = []
    behind = partial(Explaining, plans=found)
    monkeypatch.setattr(DuckDBEngine, "connection", property(lambda self: behind(self.instance.connection)))
    return found


# P4
@pytest.mark.parametrize("count", [1, 4, 500])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.usefixtures("_read_by_duckdb")
def test_no_filter_on_a_key_column_reaches_the_scan(lake: str, plans: list[Any], kind: pa.DataType, count: int) -> None:
    keys = build(_many(kind, 1000), kind)
    put(f"{lake}/t/a.parquet", pa.table({"wanted": keys, "also": range(1000), "v": [0] * 1000}), row_group_size=100)
    source = pa.table({"wanted": keys.slice(0, count), "also": range(count), "v": [1] * count})
    for names in (["wanted"], ["also", "wanted"]):
        plan = open_dataset_io("duckdb").plan(source, f"{lake}/t", "upsert", names)
        assert (plan.updated, plan.inserted) == (count, 0)
    assert len(plans) == 2
    assert [text for text in filters(plans) if "wanted" in text or "also" in text] == []


def _many(kind: pa.DataType, count: int) -> list[Any]:
    return [f"key {number:04}" for number in range(count)] if kind == pa.string() else list(range(count))


# The test above would detect an existing filter.
def test_a_filter_on_a_key_column_is_detected(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"wanted": range(1000)}), row_group_size=100)
    found: list[Any] = []
    Explaining(duckdb.connect(), found).execute("SELECT * FROM read_parquet(?) WHERE wanted = 5", [path])
    assert [text for text in filters(found) if "wanted" in text] != []


# -------------------- candidates


def candidates(source: pa.Table, bounds: pa.Table) -> list[bool]:
    with DuckDBDatasetIO()._open_engine(OperationContext("plan", "t", Options())) as engine:
        spec = SourceSpec(
            schema=source.schema,
            keys=source.column_names,
            partition_columns=[],
            policy=MergePolicy(rule=find_rule("upsert"), columns=frozenset(source.column_names)),
            store=LocalStore(),
            staging=None,
        )
        found: list[bool] = engine.open(source).conform(spec).find_candidates(bounds).tolist()
    return found


def expected(source: pa.Table, bounds: pa.Table) -> list[bool]:
    found: list[bool] = might_match(bounds, to_canonical_keys(source, source.column_names)).tolist()
    return found


def bounds_table(columns: Sequence[tuple[pa.DataType, Sequence[tuple[Any, Any]]]]) -> pa.Table:
    """Lay bounds of each key column side by side, in the form that `Target.bounds` has."""
    count = len(columns[0][1])
    table = pa.table({"file": np.zeros(count, np.int32), "row_group": np.arange(count, dtype=np.int32)})
    for number, (kind, pairs) in enumerate(columns):
        for side, name in enumerate(("min", "max")):
            bound = to_canonical(pa.chunked_array([build([pair[side] for pair in pairs], kind)]))
            table = table.append_column(f"{name}_{number}", bound)
    return table


# A handle has no date64: Parquet has days only.
HANDLED = [kind for kind in PLAIN if kind != pa.date64()]


@st.composite
def sources_and_bounds(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    kinds = draw(st.lists(st.sampled_from(HANDLED), min_size=1, max_size=3))
    pools = [draw(st.lists(cells(kind).filter(_real), min_size=1, max_size=12)) for kind in kinds]
    rows = draw(st.lists(st.tuples(*map(st.sampled_from, pools)), min_size=1, max_size=30))
    source = pa.table({f"k{at}": build([row[at] for row in rows], kind) for at, kind in enumerate(kinds)})
    # Mostly values that the source has, so that bounds are met exactly; either side may be unknown.
    ends = [
        st.none() | st.sampled_from(pool) | cells(kind).filter(_real) for kind, pool in zip(kinds, pools, strict=True)
    ]
    pairs = draw(st.lists(st.tuples(*(st.tuples(end, end) for end in ends)), min_size=1, max_size=12))
    return source, bounds_table([(kind, [pair[at] for pair in pairs]) for at, kind in enumerate(kinds)])


def _real(value: Any) -> bool:
    return not is_null(value)


def check_candidates(case: tuple[pa.Table, pa.Table], step: int) -> None:
    # Some rows are tried before the others, so that in a short source too there are others.
    with mock.patch.multiple(duckdb_engine, _SAMPLE_STEPS=(step**2, step), _MIN_SAMPLE_ROWS=1):
        assert candidates(*case) == expected(*case)


# P3, R3
@settings(max_examples=30)
@given(case=sources_and_bounds(), step=st.sampled_from([2, 64]))
def test_candidates_are_those_of_might_match(case: tuple[pa.Table, pa.Table], step: int) -> None:
    check_candidates(case, step)


# P3, R3
@pytest.mark.slow
@settings(max_examples=100)
@given(case=sources_and_bounds(), step=st.sampled_from([2, 64]))
def test_candidates_are_those_of_might_match_in_many_cases(case: tuple[pa.Table, pa.Table], step: int) -> None:
    check_candidates(case, step)


# P3, R3: more rows than are tried at first
@pytest.mark.parametrize("seed", range(3))
def test_candidates_of_a_long_source(seed: int) -> None:
    random = np.random.default_rng(seed)
    source = pa.table({"a": random.integers(0, 1 << 40, 40_000), "b": random.integers(0, 1000, 40_000)})
    low = random.integers(0, 1 << 40, 300)
    first = [(int(one), int(one) + (1 << random.integers(20, 36))) for one in low]
    second = [(int(one), int(one) + 20) for one in random.integers(0, 1000, 300)]
    bounds = bounds_table([(pa.int64(), first), (pa.int64(), second)])
    want = expected(source, bounds)
    assert 0 < sum(want) < len(want)
    assert candidates(source, bounds) == want
    alone = bounds.select(["file", "row_group", "min_0", "max_0"])
    assert candidates(source.select(["a"]), alone) == expected(source.select(["a"]), alone)


# P3: nothing but the last row lies inside
def test_candidates_by_the_last_row_alone() -> None:
    count = 70_000
    source = pa.table({"a": np.arange(count), "b": np.where(np.arange(count) == count - 1, 1, 0)})
    bounds = bounds_table([(pa.int64(), [(None, None), (0, count - 2)]), (pa.int64(), [(1, 1), (1, 1)])])
    assert candidates(source, bounds) == [True, False]


# P3, K6
@pytest.mark.parametrize(
    ("kind", "keys", "pairs", "want"),
    [
        (pa.uint64(), [2**63], [(0, 2**63 - 1), (2**63, 2**63), (2**63 + 1, 2**64 - 1), (5, None)], [0, 1, 0, 1]),
        (pa.float64(), [-0.0], [(0.0, 0.0), (-0.0, -0.0), (5e-324, 1.0), (-math.inf, -5e-324)], [1, 1, 0, 0]),
        (pa.float64(), [math.inf], [(0.0, 1e308), (math.inf, math.inf), (None, None)], [0, 1, 1]),
        (pa.binary(), [b"", b"\x80"], [(b"\x00", b"\x7f"), (b"", b""), (b"\x7f\xff", b"\x80")], [0, 1, 1]),
        (pa.bool_(), [True], [(False, False), (False, True), (True, True)], [0, 1, 1]),
        (pa.int64(), [-(2**63)], [(-(2**63), -(2**63)), (1 - 2**63, 2**63 - 1), (None, -(2**63))], [1, 0, 1]),
    ],
    ids=str,
)
def test_candidates_at_the_ends_of_types(
    kind: pa.DataType, keys: list[Any], pairs: list[tuple[Any, Any]], want: list[int]
) -> None:
    source = pa.table({"id": build(keys, kind)})
    assert candidates(source, bounds_table([(kind, pairs)])) == [bool(one) for one in want]
