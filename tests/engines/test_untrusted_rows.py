"""What a row, a file name or a footer says is data: it is stored and quoted, and never run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support import hostile_cell, on_executors, rows, unchanged

from merganser.core.errors import ColumnValueError, DuplicateKeyError

if TYPE_CHECKING:
    from tests.support import Door


# M11
def test_a_cell_that_would_run_is_stored(io: Door, lake: str, tmp_path: Path) -> None:
    cell = hostile_cell(tmp_path / "made")
    with Path(f"{lake}/feed.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "v"), (cell, cell), ("plain", cell)])
    io.merge(f"{lake}/feed.csv", f"{lake}/t", key_columns="id")
    io.merge(pa.table({"id": [cell], "v": ["new"]}), f"{lake}/t", key_columns="id")
    assert rows(io, f"{lake}/t") == [{"id": cell, "v": "new"}, {"id": "plain", "v": cell}]
    assert not (tmp_path / "made").exists()


# M11, K5
def test_a_key_that_would_run_is_quoted(io: Door, lake: str, tmp_path: Path) -> None:
    cell = hostile_cell(tmp_path / "made")
    io.merge(pa.table({"id": ["a"]}), f"{lake}/t", key_columns="id")
    with unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match="merganser-error") as caught:
        io.merge(pa.table({"id": [cell, cell]}), f"{lake}/t", key_columns="id")
    assert cell in str(caught.value)
    assert not (tmp_path / "made").exists()


# M11, M4
def test_a_value_that_would_run_is_quoted_where_it_is_refused(io: Door, lake: str, tmp_path: Path) -> None:
    cell = hostile_cell(tmp_path / "made")
    io.merge(pa.table({"id": [1]}), f"{lake}/t", key_columns="id")
    source = pa.table({"id": [2], "op": [cell]})
    if on_executors(io):
        # Rows of a DataFrame are looked at by executors, and what these refuse comes back in a report of Spark's.
        source = io.spark.createDataFrame(source)  # type: ignore[attr-defined]
    with unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match="Operation column 'op' holds") as caught:
        io.merge(source, f"{lake}/t", key_columns="id", operation_column="op")
    assert cell in str(caught.value)
    assert not (tmp_path / "made").exists()
