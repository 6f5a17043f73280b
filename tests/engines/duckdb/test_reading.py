"""`merganser.read`: columns and rows by a condition of SQL, in the types of the dataset."""

from __future__ import annotations

import datetime as dt
import gc
import re
import weakref
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import pyarrow as pa
import pytest
from tests.support import put
from tests.values import NESTED, PLAIN

import merganser
from merganser.core.columnar.take import take
from merganser.engines.duckdb import remote_dataset
from merganser.errors import InvalidArgumentError, TargetPathError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "v": ["a", "", None, "b"],
        "amount": pa.array([Decimal("1.50"), None, Decimal("2.00"), Decimal("9.99")], pa.decimal128(10, 2)),
        "at": pa.array([0, 1, 2, 3], pa.timestamp("ms", "Europe/Paris")),
        "day": [dt.date(2025, 1, 6), dt.date(2025, 1, 6), dt.date(2025, 1, 7), None],
    }
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    merganser.write_dataset(ROWS, path, partition_by="day")
    return path


# O3
def test_all_rows_and_columns_are_read_by_default(path: str) -> None:
    found = merganser.read(path)
    assert found.schema.names == ROWS.schema.names
    assert found.schema.types == ROWS.schema.types
    assert found.sort_by("id").to_pylist() == ROWS.to_pylist()


# O3
def test_a_relation_outlives_the_dataset_io_that_it_came_from(path: str) -> None:
    relation = merganser.DuckDBDatasetIO().read(path).filter("id > 1").order("id")
    gc.collect()
    assert relation.project("id").fetchall() == [(2,), (3,), (4,)]
    assert relation.limit(1).to_arrow_table().column("id").to_pylist() == [2]


# O3
def test_a_connection_is_closed_with_its_last_relation(path: str) -> None:
    io = merganser.DuckDBDatasetIO()
    connection = weakref.ref(io.connection)
    relation = io.read(path).order("id")
    del io
    gc.collect()
    assert connection() is not None or relation.fetchall()
    del relation
    gc.collect()
    assert connection() is None


# O3
def test_columns_are_read_in_the_order_that_is_asked_for(path: str) -> None:
    assert merganser.read(path, ["day", "id"]).schema.names == ["day", "id"]
    assert merganser.read(path, columns="v").num_rows == 4


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("id > 2", [3, 4]),
        ("v = ''", [2]),
        ("v IS NULL", [3]),
        ("day = '2025-01-06' AND amount >= 1.5", [1]),
        ("day IS NULL", [4]),
        ('"ID" IN (1, 4) -- a comment', [1, 4]),
        ("\"at\" >= TIMESTAMPTZ '1970-01-01 00:00:00.002+00'", [3, 4]),
        ("true", [1, 2, 3, 4]),
        ("false", []),
    ],
)
def test_rows_that_meet_a_condition(path: str, where: str, ids: list[int]) -> None:
    found = merganser.read(path, where=where)
    assert found.schema.types == ROWS.schema.types
    assert sorted(found.column("id").to_pylist()) == ids
    assert sorted(merganser.read(path, "id", where).column("id").to_pylist()) == ids


def test_a_condition_sees_all_columns_that_it_does_not_name(path: str) -> None:
    assert merganser.read(path, "id", "COLUMNS(*) IS NOT NULL").column("id").to_pylist() == [1]
    assert sorted(merganser.read(path, "id", "#1 >= 3").column("id").to_pylist()) == [3, 4]


def test_a_condition_reads_the_columns_that_it_names(tmp_path: Path) -> None:
    # DuckDB has no decimals of this size.
    table = pa.table({"id": [1, 2], "d": pa.nulls(2, pa.decimal256(60, 1)), "merganser_row": [9, 1], 'a "b': [1, 2]})
    put(str(tmp_path / "t" / "a.parquet"), table)
    for where in ("id = 2", "merganser_row = 1", '"a ""b" = 2'):
        assert merganser.read(tmp_path / "t", "id", where).column("id").to_pylist() == [2]


def test_columns_that_differ_in_case_only_are_ambiguous(tmp_path: Path) -> None:
    put(str(tmp_path / "t" / "a.parquet"), pa.table({"id": [1, 2], "a": [1, 2], "A": [2, 1]}))
    assert merganser.read(tmp_path / "t", "id", "id = 2").num_rows == 1
    with pytest.raises(InvalidArgumentError, match="'a' and 'A' differ in case only"):
        merganser.read(tmp_path / "t", "id", '"A" = 1')


# S4
def test_a_condition_changes_no_type_and_no_value(tmp_path: Path) -> None:
    types = [one for one in (*PLAIN, *NESTED) if not pa.types.is_dictionary(one)]
    table = pa.table({"id": [1, 2], **{f"c{at}": pa.nulls(2, one) for at, one in enumerate(types)}})
    put(str(tmp_path / "t" / "a.parquet"), table)
    found = merganser.read(tmp_path / "t", where="id = 2")
    assert found.equals(merganser.read(tmp_path / "t").slice(1))


def test_columns_are_read_only_from_files_that_have_rows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def watch(table: pa.Table, rows: Any) -> pa.Table:
        taken.append(table.num_rows)
        return take(table, rows)

    monkeypatch.setattr("merganser.engines.duckdb.reading.take", watch)
    assert merganser.read(path, where="day = '2025-01-07'").num_rows == 1
    assert taken == [1]


def test_one_row_group_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merganser.write_dataset({"id": range(10), "v": range(10)}, tmp_path / "t", row_group_size=3)
    taken: list[int] = []

    def watch(table: pa.Table, rows: Any) -> pa.Table:
        taken.append(table.num_rows)
        return take(table, rows)

    monkeypatch.setattr("merganser.engines.duckdb.reading.take", watch)
    assert merganser.read(tmp_path / "t", where="id % 5 = 4").column("v").to_pylist() == [4, 9]
    assert taken == [3, 1]


# M11
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nope > 1", 'Referenced column "nope" not found'),
        ("id >", "cannot be evaluated: Parser Error"),
        ("id IN (SELECT 1 FROM read_csv('/etc/passwd'))", "disabled by configuration"),
        ("true); DROP TABLE x; SELECT (true", "cannot be evaluated"),
        ("false) OR (true", "cannot be evaluated: Parser Error"),
        ("false); SELECT 0 AS merganser_row WHERE (true", "cannot be evaluated: Parser Error"),
        ("", "where must be a condition of SQL"),
        (5, "where must be a condition of SQL"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(path: str, where: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        merganser.read(path, where=where)


def test_what_does_not_exist_is_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no column 'w'\. Its columns are: id, v, amount, at, day"):
        merganser.read(path, ["id", "w"])
    with pytest.raises(TargetPathError, match="no Parquet files below"):
        merganser.read(tmp_path / "none")


# O3
def test_a_dataset_in_memory_is_read_as_one_on_disk(path: str) -> None:
    io, url = merganser.DuckDBDatasetIO(), "memory://lake/t"
    merganser.write_dataset(ROWS, url, partition_by="day", max_rows_per_file=1)
    here, there = io.read(path), io.read(url)
    assert there.columns == here.columns
    assert there.types == here.types
    for ask in ("SELECT * FROM {} ORDER BY id", "SELECT v FROM {} WHERE id > 1 AND day IS NOT NULL ORDER BY id"):
        expected, found = (one.query("one", ask.format("one")) for one in (here, there))
        assert expected is not None
        assert found is not None
        assert found.fetchall() == expected.fetchall() != []
    assert there.aggregate("count(*), sum(amount)").fetchall() == [(4, Decimal("13.49"))]
    assert len(there.limit(2).fetchall()) == 2


# O3
def test_only_what_is_asked_for_is_read_of_a_dataset_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    merganser.write_dataset(ROWS, "memory://lake/t", partition_by="day")
    asked = list[tuple[list[str], str]]()
    original = remote_dataset.RemoteDataset.scanner

    def scanner(self: Any, columns: list[str], filter: Any = None) -> Any:  # noqa: A002  DuckDB passes these names
        asked.append((columns, str(filter)))
        return original(self, columns, filter)

    monkeypatch.setattr(remote_dataset.RemoteDataset, "scanner", scanner)
    relation = merganser.DuckDBDatasetIO().read("memory://lake/t")
    assert relation.filter("id > 2").project("v").fetchall() == [(None,), ("b",)]
    ((columns, condition),) = asked
    assert "v" in columns
    assert "amount" not in columns
    assert "id > 2" in condition


# O3
def test_an_object_that_is_gone_is_named_when_it_is_read() -> None:
    merganser.write_dataset(ROWS, "memory://lake/t")
    relation = merganser.DuckDBDatasetIO().read("memory://lake/t")
    filesystem = fsspec.filesystem("memory")
    (name,) = filesystem.glob("/lake/t/*.parquet")
    filesystem.rm(name)
    with pytest.raises((duckdb.Error, OSError), match=re.escape(name)):
        relation.fetchall()
