"""Any list of clauses agrees with DuckDB's own MERGE: rows, counts, plan and audit."""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.clause_oracle import merge_natively, needs_merge, write_statement
from tests.support import load, open_dataset_io, snapshot

from merganser.core.model.clauses import Clause
from merganser.core.model.engine import ACTION_COLUMN

if TYPE_CHECKING:
    from merganser.core.merge.dataset_io import DatasetIO

TARGET = pa.schema(
    [
        ("id", pa.int64()),
        ("Kind", pa.string()),
        ("qty", pa.int32()),
        ("price", pa.decimal128(9, 2)),
        ("name", pa.string()),
        ("active", pa.bool_()),
        ("day", pa.date32()),
        ("seen at", pa.timestamp("us")),
        ("rate", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
# The source has the columns of the target but one, and two that the target lacks.
SOURCE = pa.schema([*(one for one in TARGET if one.name != "rate"), ("op", pa.string()), ("factor", pa.int32())])
POOLS: dict[str, list[Any]] = {
    "id": [*range(12)],
    "Kind": ["a", "A", "", "b'c"],
    "qty": [0, 1, 2, 5, -3],
    "price": [Decimal("0.00"), Decimal("1.50"), Decimal("99.99")],
    "name": ["ann", "Bob", "", "x"],
    "active": [True, False],
    "day": [dt.date(2026, 11, day) for day in (15, 16, 17)],
    "seen at": [dt.datetime(2026, 11, day, 12) for day in (1, 2, 3)],  # noqa: DTZ001  it has no zone
    "rate": [0.0, 1.5, -2.0],
    "tags": [[], ["x"], ["x", None, "y"]],
    "op": ["I", "U", "D"],
    "factor": [1, 2, 3],
}
S_CONDITIONS = [
    "s.op = 'D'",
    "s.op <> 'D'",
    "s.qty > 1",
    "s.name IS NULL",
    "s.active",
    "len(s.tags) > 0",
    "op IN ('I')",
]
T_CONDITIONS = [
    "t.qty >= 2",
    "t.day = DATE '2026-11-16'",
    "t.day > DATE '2026-11-15' AND t.qty < 5",
    "t.active",
    "NOT t.active",
    "t.name IS NULL",
    "t.\"seen at\" <= TIMESTAMP '2026-11-02 12:00:00'",
    "t.rate > 0",
    "t.price = 1.5",
    "t.price < 50",
    "t.id < 4",
    "3 <= t.id",
    "list_contains(t.tags, 'x')",
    "t.qty = NULL",
    "t.Kind = 'a'",
]
BOTH_CONDITIONS = [
    's."seen at" > t."seen at"',
    "s.qty > t.qty",
    "s.qty IS DISTINCT FROM t.qty",
    "s.name = t.name OR s.op = 'D'",
    "s.price + t.price > 2",
    "s.active AND t.active",
]
T_VALUES = {
    "qty": ["t.qty + 1", "0", "NULL", "abs(t.qty)", "t.id::INT"],
    "name": ["upper(t.name)", "'gone'", "t.name || '!'", "t.Kind"],
    "active": ["false", "NOT t.active", "t.qty > 0"],
    "price": ["t.price", "1", "0.25", "CAST(t.qty AS DECIMAL(9, 2))"],
    "rate": ["t.rate * 2", "t.qty", "NULL", "0.5"],
    "seen at": ["TIMESTAMP '2026-11-09'", 't."seen at" + INTERVAL 1 DAY'],
    "tags": ["list_append(t.tags, 'z')", "[]", "NULL"],
}
S_VALUES = {
    "qty": ["s.qty", "s.qty * s.factor", "factor", "7"],
    "name": ["s.name", "lower(s.name)", "s.op", "NULL"],
    "active": ["s.active", "s.op = 'I'"],
    "price": ["s.price", "s.qty"],
    "rate": ["s.factor / 2", "s.qty"],
    "seen at": ['s."seen at"'],
    "tags": ["s.tags", "[s.op]"],
}
BOTH_VALUES = {
    "qty": ["t.qty + s.qty", "coalesce(s.qty, t.qty)", "greatest(s.qty, t.qty)"],
    "name": ["coalesce(s.name, t.name)", "concat(s.name, t.name)"],
    "active": ["s.active OR t.active"],
    "price": ["coalesce(s.price, t.price)"],
    "rate": ["t.rate + s.factor"],
    "seen at": ['greatest(s."seen at", t."seen at")'],
    "tags": ["list_concat(t.tags, s.tags)"],
}


@dataclass(frozen=True)
class Case:
    """A dataset, a source, and the clauses that merge the one into the other."""

    target: pa.Table
    source: pa.Table
    keys: list[str]
    clauses: list[Clause]
    partition_columns: list[str]
    rows_per_file: int
    rows_per_group: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def on(self) -> str:
        return " AND ".join(f't."{name}" = s."{name}"' for name in self.keys)

    def __repr__(self) -> str:
        return write_statement(TARGET.names, SOURCE.names, self.on, self.clauses)


def make_case(rnd: random.Random) -> Case:
    keys = rnd.choice([["id"], ["id"], ["id", "Kind"], ["Kind", "id", "day"]])
    partition_columns = rnd.choice([[], [], ["day"], ["active"]])
    target = _rows(rnd, TARGET, rnd.choice([1, 6, 14]), keys, null_keys=0.05)
    source = _rows(rnd, SOURCE, rnd.choice([0, 3, 6, 10]), keys, null_keys=0)
    clauses = _clauses(rnd, keys, partition_columns)
    options = {"skip_unchanged": True} if rnd.random() < 0.3 and _updates(clauses) else {}
    return Case(target, source, keys, clauses, partition_columns, rnd.randint(1, 6), rnd.randint(1, 3), options)


def _rows(rnd: random.Random, schema: pa.Schema, count: int, keys: list[str], *, null_keys: float) -> pa.Table:
    rows: dict[Any, dict[str, Any]] = {}
    for _ in range(count):
        nulls = {name: null_keys if name in keys else 0.15 for name in schema.names}
        row = {name: None if rnd.random() < nulls[name] else rnd.choice(POOLS[name]) for name in schema.names}
        rows[tuple(row[name] for name in keys)] = row
    return pa.Table.from_pylist(list(rows.values()), schema)


def _clauses(rnd: random.Random, keys: list[str], partition_columns: list[str]) -> list[Clause]:
    fixed = {*keys, *partition_columns}
    found: list[Clause] = []
    for _ in range(rnd.randint(1, 5)):
        side = rnd.choice(["matched", "matched", "not_matched", "not_matched_by_source"])
        # No row would reach a clause behind one without a condition.
        if not any(one.side == side and one.where is None for one in found):
            make = {"matched": _matched, "not_matched": _new, "not_matched_by_source": _missing}[side]
            found.append(make(rnd, fixed))
    return found


def _matched(rnd: random.Random, fixed: set[str]) -> Clause:
    where = _condition(rnd, [*S_CONDITIONS, *T_CONDITIONS, *BOTH_CONDITIONS])
    action = rnd.choice(["update", "update", "update", "delete", "nothing"])
    if action != "update":
        return Clause(side="matched", action=action, where=where)  # type: ignore[arg-type]
    if rnd.random() < 0.3:
        exclude = {"rate", *(fixed - {"id"}), *rnd.sample(["qty", "name", "tags"], rnd.randint(0, 2))}
        return Clause(side="matched", action="update", where=where, exclude=tuple(sorted(exclude)))
    values = _values(rnd, [T_VALUES, S_VALUES, BOTH_VALUES], fixed)
    return Clause(side="matched", action="update", where=where, values=values)


def _new(rnd: random.Random, fixed: set[str]) -> Clause:
    where = _condition(rnd, S_CONDITIONS)
    if rnd.random() < 0.15:
        return Clause(side="not_matched", action="nothing", where=where)
    if rnd.random() < 0.4:
        exclude = {"rate", *rnd.sample(sorted({"qty", "name", "tags"} - fixed), 1)}
        return Clause(side="not_matched", action="insert", where=where, exclude=tuple(sorted(exclude)))
    values = {name: f's."{name}"' for name in sorted(fixed)} | _values(rnd, [S_VALUES], fixed)
    return Clause(side="not_matched", action="insert", where=where, values=values)


def _missing(rnd: random.Random, fixed: set[str]) -> Clause:
    where = _condition(rnd, T_CONDITIONS)
    action = rnd.choice(["update", "update", "delete", "nothing"])
    values = _values(rnd, [T_VALUES], fixed) if action == "update" else None
    return Clause(side="not_matched_by_source", action=action, where=where, values=values)  # type: ignore[arg-type]


def _condition(rnd: random.Random, pool: list[str]) -> str | None:
    if rnd.random() < 0.35:
        return None
    one, other = rnd.choice(pool), rnd.choice(pool)
    return rnd.choice([one, one, f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})"])


def _values(rnd: random.Random, pools: list[dict[str, list[str]]], fixed: set[str]) -> dict[str, str]:
    names = [name for name in T_VALUES if name not in fixed]
    return {name: rnd.choice(rnd.choice(pools)[name]) for name in rnd.sample(names, rnd.randint(1, 4))}


def _updates(clauses: list[Clause]) -> bool:
    return any(one.action == "update" for one in clauses)


# Q1 Q2 Q4 Q6
@needs_merge
@pytest.mark.slow
def test_random_clauses_agree_with_native_merge(engine: str, example_count: int) -> None:
    io = open_dataset_io(engine)
    seeds = st.integers(0, 1 << 32)
    settings(max_examples=example_count)(given(seed=seeds)(lambda seed: _check(io, make_case(random.Random(seed)))))()


def _check(io: DatasetIO, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/t"
        io.write_dataset(
            case.target,
            path,
            partition_columns=case.partition_columns,
            max_rows_per_file=case.rows_per_file,
            row_group_size=case.rows_per_group,
        )
        before = snapshot(path)
        merge = io.merge_into(path, case.source, case.keys, audit=True, batch_id="one", **case.options)
        for clause in case.clauses:
            merge = merge.add(clause)
        expected, counts = merge_natively(case.target, case.source, case.on, case.clauses)
        plan = merge.plan()
        assert snapshot(path) == before, "a plan changed the dataset"
        result = merge.execute()
        assert oracle.to_multiset(load(io, path).to_pylist()) == oracle.to_multiset(expected)
        found = {"insert": result.inserted, "update": result.updated, "delete": result.deleted}
        assert {"insert": plan.inserted, "update": plan.updated, "delete": plan.deleted} == found
        assert result.audit is not None
        audited = result.audit.column(ACTION_COLUMN).to_pylist()
        assert {name: audited.count(name) for name in found} == found
        if case.options:
            # Updates that change nothing are not counted.
            assert found["update"] <= counts.pop("update")
            del found["update"]
        assert found == counts
        assert result.target_count_after == len(expected)
