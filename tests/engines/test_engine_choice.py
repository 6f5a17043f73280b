"""The default engine: PyArrow for a small source, DuckDB for any other, chosen by the source alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged

import merganser as mg
from merganser.engines import auto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from merganser.core.merge.dataset_io import DatasetIO

ROWS = 5000
SOURCE = pa.table({"id": range(1000, 1000 + ROWS), "v": [f"new {number}" for number in range(ROWS)]})
BATCHES = SOURCE.to_batches(max_chunksize=500)


def as_file(folder: Path) -> str:
    pq.write_table(SOURCE, folder / "source.parquet", row_group_size=500)
    return str(folder / "source.parquet")


def as_text(folder: Path) -> str:
    (folder / "source.csv").write_text("id,v\n" + "".join(f"{row['id']},{row['v']}\n" for row in SOURCE.to_pylist()))
    return str(folder / "source.csv")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "table": lambda _: SOURCE,
    "rows": lambda _: SOURCE.to_pylist(),
    "reader": lambda _: pa.RecordBatchReader.from_batches(SOURCE.schema, iter(BATCHES)),
    "batches": lambda _: (batch for batch in BATCHES),
    "dataset": lambda folder: pads.dataset(as_file(folder)),
    "scanner": lambda folder: pads.dataset(as_file(folder)).scanner(),
    "Parquet": as_file,
    "CSV": as_text,
}


def load(lake: str) -> str:
    mg.merge(pa.table({"id": range(2000), "v": ["old"] * 2000}), f"{lake}/t", key_columns="id")
    return f"{lake}/t"


def expect_rows() -> list[dict[str, Any]]:
    merged = dict.fromkeys(range(2000), "old") | {row["id"]: row["v"] for row in SOURCE.to_pylist()}
    return [{"id": number, "v": value} for number, value in sorted(merged.items())]


# F1
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(("limit", "chosen"), [(auto.MAX_ARROW_BYTES, "arrow"), (SOURCE.nbytes // 2, "duckdb")])
def test_the_size_of_the_source_chooses_the_engine(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, limit: int, chosen: str
) -> None:
    path = load(lake)
    monkeypatch.setattr(auto, "MAX_ARROW_BYTES", limit)
    assert mg.plan(SOURCES[kind](tmp_path), path, key_columns="id").inserted == 4000
    result = mg.merge(SOURCES[kind](tmp_path), path, key_columns="id")
    assert (result.engine, result.inserted, result.updated) == (chosen, 4000, 1000)
    assert mg.history(path)[0].engine == chosen
    assert mg.read(path).sort_by("id").to_pylist() == expect_rows()


# F1
@pytest.mark.parametrize(("limit", "chosen"), [(auto.MAX_ARROW_BYTES, "arrow"), (SOURCE.nbytes // 2, "duckdb")])
def test_a_write_chooses_likewise(lake: str, monkeypatch: pytest.MonkeyPatch, limit: int, chosen: str) -> None:
    monkeypatch.setattr(auto, "MAX_ARROW_BYTES", limit)
    mg.write_dataset(iter(BATCHES), f"{lake}/t")
    assert mg.history(f"{lake}/t")[0].engine == chosen
    assert mg.read(f"{lake}/t").sort_by("id").equals(SOURCE)


# F1
def test_relations_and_options_of_duckdb_choose_duckdb(lake: str) -> None:
    connection = duckdb.connect()
    relation = connection.sql("SELECT 1 AS id, 'a' AS v")
    assert mg.merge(relation, f"{lake}/t", key_columns="id").engine == "duckdb"
    assert mg.merge([{"id": 2, "v": "b"}], f"{lake}/t", key_columns="id", use_merge=False).engine == "duckdb"
    assert mg.read(f"{lake}/t").sort_by("id").to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    broken = connection.sql("SELECT 3 AS id, error('no such price') AS v")
    with pytest.raises(mg.DatasetMergeError, match="no such price"), assert_unchanged(f"{lake}/t"):
        mg.merge(broken, f"{lake}/t", key_columns="id")


# F1
def test_the_result_names_the_engine(io: DatasetIO, lake: str) -> None:
    first = io.merge(SOURCE, f"{lake}/t", key_columns="id", batch_id="monday")
    assert first.engine == mg.history(f"{lake}/t")[0].engine
    assert io.engine_name in ("auto", first.engine)
    assert io.merge(SOURCE, f"{lake}/t", key_columns="id", batch_id="monday").engine == first.engine
    if io.engine_name != "auto":
        assert io.merge(SOURCE, f"{lake}/t", key_columns="id", skip_unchanged=True).engine == io.engine_name


@pytest.mark.parametrize("limit", [auto.MAX_ARROW_BYTES, BATCHES[0].nbytes])
def test_a_stream_that_fails_changes_nothing(lake: str, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from BATCHES[:5]
        raise ConnectionError("the line is dead")

    path = load(lake)
    monkeypatch.setattr(auto, "MAX_ARROW_BYTES", limit)
    source = pa.RecordBatchReader.from_batches(SOURCE.schema, broken())
    with pytest.raises(ConnectionError, match="the line is dead"), assert_unchanged(path):
        mg.merge(source, path, key_columns="id")


# D5
@pytest.mark.parametrize("limit", [auto.MAX_ARROW_BYTES, 0])
def test_no_path_is_refused_for_the_size_of_a_source(lake: str, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(auto, "MAX_ARROW_BYTES", limit)
    with pytest.raises(mg.InvalidArgumentError, match="could end or change an SQL statement"):
        mg.merge(SOURCE, f"{lake}/it's", key_columns="id")


# F1
def test_a_clause_merge_and_a_statement_choose_too(lake: str) -> None:
    path = load(lake)
    builder = mg.merge_into(path, SOURCE, on="id").when_not_matched_insert_all()
    assert builder.execute().engine == "arrow"
    statement = f"MERGE INTO '{path}' AS t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v"
    assert mg.sql(statement, s=SOURCE).engine == "arrow"
