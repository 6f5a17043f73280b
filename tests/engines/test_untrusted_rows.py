"""Rows, file names and footers are data: they are stored and quoted, and never run."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, make_hostile_cell, read_rows, runs_on_executors, snapshot

import merganser
from merganser.errors import ColumnValueError, DuplicateKeyError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO


# M11
def test_a_cell_that_would_run_is_stored(io: AnyDatasetIO, lake: str, tmp_path: Path) -> None:
    cell = make_hostile_cell(tmp_path / "made")
    with Path(f"{lake}/feed.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "v"), (cell, cell), ("plain", cell)])
    io.merge(f"{lake}/feed.csv", f"{lake}/t", key_columns="id")
    io.merge(pa.table({"id": [cell], "v": ["new"]}), f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t") == [{"id": cell, "v": "new"}, {"id": "plain", "v": cell}]
    assert not (tmp_path / "made").exists()


# M11, K5
def test_a_key_that_would_run_is_quoted(io: AnyDatasetIO, lake: str, tmp_path: Path) -> None:
    cell = make_hostile_cell(tmp_path / "made")
    io.merge(pa.table({"id": ["a"]}), f"{lake}/t", key_columns="id")
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match="merganser-error") as caught:
        io.merge(pa.table({"id": [cell, cell]}), f"{lake}/t", key_columns="id")
    assert cell in str(caught.value)
    assert not (tmp_path / "made").exists()


# M11, M4
def test_a_value_that_would_run_is_quoted_where_it_is_refused(io: AnyDatasetIO, lake: str, tmp_path: Path) -> None:
    cell = make_hostile_cell(tmp_path / "made")
    io.merge(pa.table({"id": [1]}), f"{lake}/t", key_columns="id")
    source = pa.table({"id": [2], "op": [cell]})
    if runs_on_executors(io):
        # Rows of a DataFrame are looked at by executors, and what these refuse comes back in a report of Spark's.
        source = io.spark.createDataFrame(source)  # type: ignore[attr-defined]
    with assert_unchanged(f"{lake}/t"), pytest.raises(ColumnValueError, match="Operation column 'op' holds") as caught:
        io.merge(source, f"{lake}/t", key_columns="id", operation_column="op")
    assert cell in str(caught.value)
    assert not (tmp_path / "made").exists()


DEEP = {"list": "[" * 20_000 + "]" * 20_000, "object": '{"a":' * 20_000 + "1" + "}" * 20_000}


# M11
@pytest.mark.parametrize("kind", DEEP)
def test_a_source_that_is_nested_too_deeply_is_refused(io: AnyDatasetIO, lake: str, kind: str) -> None:
    io.merge(pa.table({"id": [1], "v": ["old"]}), f"{lake}/t", key_columns="id")
    Path(f"{lake}/feed.json").write_text(f'{{"id": 2, "v": {DEEP[kind]}}}\n', "utf-8")
    with (
        assert_unchanged(f"{lake}/t"),
        pytest.raises(UnreadableFileError, match=r"feed\.json: it is nested over 200 levels"),
    ):
        io.merge(f"{lake}/feed.json", f"{lake}/t", key_columns="id")
    Path(f"{lake}/feed.csv").write_text(f"id,v\n2,'{DEEP['list']}'\n", "utf-8")
    io.merge(f"{lake}/feed.csv", f"{lake}/t", key_columns="id")
    assert read_rows(io, f"{lake}/t")[1]["v"] == f"'{DEEP['list']}'"


# M11
def test_a_record_of_ours_that_someone_changed_is_refused(lake: str) -> None:
    path, control = f"{lake}/t", Path(f"{lake}/.t.merganser")
    table = pa.table({"id": [1], "d": ["x"]})
    merge = partial(merganser.merge, table, path, key_columns="id", engine="arrow")
    merge(partition_columns="d", batch_id="monday")
    calls: dict[str, Callable[[], Any]] = {
        "history/*.json": partial(merganser.history, path),
        "batches/*": partial(merge, batch_id="monday"),
        "partitions.json": merge,
    }
    for pattern, call in calls.items():
        (file,) = control.glob(pattern)
        before = file.read_bytes()
        file.write_text(DEEP["list"], "utf-8")
        with assert_unchanged(path), pytest.raises(UnreadableFileError, match="is damaged: it is nested too deeply"):
            call()
        file.write_bytes(before)
    staging = control / ".staging_0123456789abcdef0123456789abcdef"
    staging.mkdir()
    data = snapshot(path)
    for journal in (DEEP["object"], "[]", "{}"):
        (staging / "journal.json").write_text(journal, "utf-8")
        with pytest.raises(UnreadableFileError, match="is not a journal of merganser:"):
            merganser.recover(path)
        assert snapshot(path) == data
