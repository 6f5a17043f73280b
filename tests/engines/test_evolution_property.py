"""Chains of `alter` and of merges that evolve, against dicts: after each step all files have one schema (E1 to E4)."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import list_data_files, open_dataset_io, read_everywhere, read_rows, snapshot

from merganser import history, undo
from merganser.core.model.schema import is_same_logical_type
from merganser.core.model.widening import find_common_type

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

Row = dict[str, Any]
NAMES = ("a", "b", "c", "d e", "f.g")
# Types by kind, each wider than the one before; values fit the first.
KINDS: dict[str, list[pa.DataType]] = {
    "integer": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "decimal": [pa.int16(), pa.decimal128(7, 1), pa.decimal128(12, 3)],
    "float": [pa.int8(), pa.float32(), pa.float64()],
    "string": [pa.null(), pa.string()],
    "list": [pa.list_(pa.null()), pa.list_(pa.int8()), pa.list_(pa.int64())],
    "struct": [
        pa.struct([("x", pa.int8())]),
        pa.struct([("x", pa.int32())]),
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
    ],
}


def make_value(kind: pa.DataType, number: int) -> Any:
    """Make a value of a type, the same number in each."""
    if number == 0 or pa.types.is_null(kind):
        return None
    if pa.types.is_list(kind):
        return [None, make_value(kind.value_type, number)]
    if pa.types.is_struct(kind):
        return {one.name: make_value(one.type, number) for one in kind}
    return str(number) if pa.types.is_string(kind) else number


def fit(value: Any, kind: pa.DataType) -> Any:
    """Return a value as a column of a wider type holds it: structs have more fields."""
    if value is not None and pa.types.is_struct(kind):
        return {one.name: fit(value.get(one.name), one.type) for one in kind}
    return value


@dataclass
class Model:
    """The dataset in dicts: the types of its columns, and its rows by key."""

    types: dict[str, pa.DataType]
    kinds: dict[str, str]
    rows: dict[int, Row] = field(default_factory=dict)

    def list_rows(self) -> list[Row]:
        """Return all rows in the types of now, by key."""
        found = [{name: fit(row[name], kind) for name, kind in self.types.items()} for row in self.rows.values()]
        return sorted(found, key=lambda row: row["id"])

    def widen(self, name: str, given: pa.DataType) -> None:
        common = find_common_type(self.types[name], given)
        assert common is not None
        self.types[name] = common

    def merge(self, source: list[Row], types: dict[str, pa.DataType], strategy: str) -> None:
        """Merge rows; columns that only one side has are NULL or kept."""
        for name, kind in types.items():
            if name not in self.types:
                self.types[name] = kind
                for row in self.rows.values():
                    row[name] = None
            else:
                self.widen(name, kind)
        old, missing = self.rows, {} if strategy == "full_merge" else self.rows
        new = dict(missing)
        for row in source:
            key = row["id"]
            if key in old:
                new[key] = old[key] if strategy == "insert" else old[key] | row
            elif strategy != "update":
                new[key] = dict.fromkeys(self.types) | row
        self.rows = new


Choice = Any


class Chain:
    """A dataset and its model, changed together; `choose` picks from a list, `pick` an integer below a number."""

    def __init__(self, io: AnyDatasetIO, path: str, pick: Any) -> None:
        self.io, self.path, self.pick = io, path, pick
        self.model = Model({"id": pa.int8()}, {"id": "integer"})
        self.io.merge(pa.table({"id": pa.array([1, 2, 3], pa.int8())}), path, key_columns="id", max_rows_per_file=2)
        self.model.rows = {key: {"id": key} for key in (1, 2, 3)}

    def choose(self, values: Any) -> Any:
        return list(values)[self.pick(len(values))]

    def step(self) -> None:
        """Make one change, compare, and undo and repeat it."""
        before, records = snapshot(self.path), len(history(self.path))
        change = self.choose([self.merge, self.merge, self.add, self.drop, self.rename, self.widen])
        described = change()
        self.check(described)
        if len(history(self.path)) > records and self.pick(3) == 0:
            after = snapshot(self.path)
            undo(self.path)
            assert snapshot(self.path) == before, described
            # The model has the change already: make it again.
            self.io.alter(self.path, **described) if "strategy" not in described else self.run_merge(described)
            assert {*snapshot(self.path)} >= {*before} & {*after}
            self.check(described)

    def check(self, described: Any) -> None:
        rows = sorted(read_everywhere(self.path), key=lambda row: row["id"])
        assert rows == self.model.list_rows(), described
        found = pq.read_schema(f"{self.path}/{list_data_files(self.path)[0]}")
        assert {*found.names} == {*self.model.types}
        for name, kind in self.model.types.items():
            assert is_same_logical_type(found.field(name).type, kind), (described, name)

    def merge(self) -> Row:
        ids = sorted({1 + self.pick(8) for _ in range(1 + self.pick(4))})
        types = {"id": self.choose(KINDS["integer"])}
        for name in NAMES:
            if self.pick(2):
                kind = self.model.kinds.setdefault(name, self.choose(KINDS))
                types[name] = self.choose(KINDS[kind])
        rows = [{"id": one, **{n: make_value(k, self.pick(9)) for n, k in types.items() if n != "id"}} for one in ids]
        strategy = self.choose(["upsert", "update", "insert", "full_merge"])
        described = {"strategy": strategy, "rows": rows, "types": types}
        self.run_merge(described)
        self.model.merge(rows, types, strategy)
        return described

    def run_merge(self, described: Row) -> None:
        source = pa.Table.from_pylist(described["rows"], pa.schema(list(described["types"].items())))
        options: Any = {"schema_mode": "evolve", "retain": 1, "max_rows_per_file": 2}
        self.io.merge(source, self.path, described["strategy"], "id", **options)

    def others(self) -> list[str]:
        return [name for name in self.model.types if name != "id"]

    def add(self) -> Row:
        name = self.choose(NAMES)
        if name in self.model.types:
            return {}
        kind = self.model.kinds.setdefault(name, self.choose(KINDS))
        self.model.types[name] = self.choose(KINDS[kind])
        default = make_value(self.model.types[name], self.pick(9))
        for row in self.model.rows.values():
            row[name] = default
        return self.alter(add={name: self.model.types[name]}, default={name: default})

    def drop(self) -> Row:
        if not self.others():
            return {}
        name = self.choose(self.others())
        for columns in (self.model.types, self.model.kinds, *self.model.rows.values()):
            del columns[name]
        return self.alter(drop=name)

    def rename(self) -> Row:
        free = [name for name in NAMES if name not in self.model.types]
        if not self.others() or not free:
            return {}
        old, new = self.choose(self.others()), self.choose(free)
        for columns in (self.model.types, self.model.kinds, *self.model.rows.values()):
            columns[new] = columns.pop(old)
        return self.alter(rename={old: new})

    def widen(self) -> Row:
        name = self.choose(self.model.types)
        kind = self.choose(KINDS[self.model.kinds[name]])
        common = find_common_type(self.model.types[name], kind)
        assert common is not None
        self.model.types[name] = common
        return self.alter(widen={name: common})

    def alter(self, **changes: Any) -> Row:
        self.io.alter(self.path, **changes, retain=1)
        return {**changes, "retain": 1}


# E1, E2, E3, E4
@pytest.mark.parametrize("name", ["arrow", "duckdb"])
@settings(max_examples=6)
@given(st.data())
def test_any_chain_of_changes_gives_what_dicts_give(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as lake:
        chain = Chain(open_dataset_io(name), f"{lake}/t", lambda below: data.draw(st.integers(0, below - 1)))
        for _ in range(data.draw(st.integers(1, 6))):
            chain.step()
        assert read_rows(chain.io, chain.path) == chain.model.list_rows()


# E1, E2, E3, E4
@pytest.mark.parametrize("seed", range(2))
def test_a_chain_of_changes_gives_what_dicts_give_on_every_engine(io: AnyDatasetIO, lake: str, seed: int) -> None:
    chain = Chain(io, f"{lake}/t", random.Random(seed).randrange)
    for _ in range(12):
        chain.step()
        if io.engine_name == "spark":
            assert read_with_spark(io, chain.path) == chain.model.list_rows()
    assert read_rows(io, chain.path) == chain.model.list_rows()


def read_with_spark(io: Any, path: str) -> list[dict[str, Any]]:
    """Read a dataset with Spark's own reader, without options."""
    files = [f"{path}/{name}" for name in list_data_files(path)]
    return sorted(io.spark.read.parquet(*files).toArrow().to_pylist(), key=lambda row: row["id"])
