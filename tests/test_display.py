"""Results as plain values, as Arrow, and as a table in a notebook."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import open_dataset_io

import merganser
from merganser.core.maintenance.inspect import inspect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Any]:
    """One of each kind, of a dataset whose name needs escaping."""
    path = str(tmp_path / "<b>&t")
    written = merganser.write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), path)
    source = pa.table({"id": [2, 3], "v": ["x", "<i>"]})
    planned = merganser.plan(source, path, key_columns="id")
    merged = open_dataset_io("arrow").merge(source, path, "upsert", "id", audit="rows")
    record = merganser.history(path)[0]
    return {"write": written, "plan": planned, "merge": merged, "history": record, "inspect": inspect(path, "id")}


def test_plain_values_are_what_json_takes(results: dict[str, Any]) -> None:
    for name, result in results.items():
        found = result.to_dict()
        assert json.loads(json.dumps(found, default=str)), name
        assert list(found) == list(result.__dataclass_fields__), name
    assert [row["v"] for row in results["merge"].to_dict()["audit"]] == ["<i>", "x"]


def test_files_are_a_table(results: dict[str, Any]) -> None:
    for name in ("write", "plan", "merge", "history"):
        table = results[name].to_arrow()
        assert table.num_rows == len(results[name].files) > 0, name
        assert table.column("path").to_pylist() == [file.path for file in results[name].files], name
    assert results["merge"].to_arrow().schema.field("size_bytes").type == pa.int64()


def test_no_files_are_a_table_with_the_same_columns(results: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    nothing = open_dataset_io("arrow").merge(pa.table({"id": [1]}), str(tmp_path / "new"), "update", "id")
    assert nothing.files == []
    assert nothing.to_arrow().schema == results["merge"].to_arrow().schema


def test_a_repr_fits_a_screen(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"id": range(300), "part": range(300)})
    loaded = merganser.merge(rows, path, key_columns="id", partition_by="part")
    planned = merganser.plan(rows, path, key_columns="id")
    merged = open_dataset_io("arrow").merge(rows, path, "upsert", "id", audit=True)
    for result in (loaded, planned, merged, merganser.history(path)[0], inspect(path, "id")):
        lines = repr(result).splitlines()
        assert lines[0].startswith(f"{type(result).__name__}(")
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 160
    assert "inserted=300" in repr(loaded)
    assert "… 299 more]" in repr(loaded)
    assert "audit=<300 rows of id, merge_action>" in repr(merged)
    short = merganser.MergeStats(inserted=1, updated=0, deleted=0, total=1)
    assert repr(short) == "{'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 1}"


def test_a_notebook_shows_a_plan_as_a_map_of_partitions(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2], "part": ["<b>x&", "y"]})
    merganser.merge(rows, path, key_columns="id", partition_by="part")
    page = merganser.plan(rows.slice(1), path, key_columns="id")._repr_html_()
    assert page.startswith("<pre")
    assert '<span style="color:goldenrod">█</span>' in page
    assert "upsert of 1 row into" in page
    assert "<b>" not in page
    assert "part=&lt;b&gt;x&amp;" in page or "part=%3Cb%3Ex&amp;" in page


def test_a_notebook_shows_a_table_with_escaped_html(results: dict[str, Any]) -> None:
    for name, result in results.items():
        page = result._repr_html_()
        assert page.startswith("<pre" if name == "plan" else "<table>"), name
        assert "<b>" not in page, name
        assert "<i>" not in page, name
    assert "&lt;b&gt;&amp;t" in results["plan"]._repr_html_()


def test_a_notebook_is_not_flooded(tmp_path: Path) -> None:
    rows = pa.table({"id": range(120)})
    result = open_dataset_io("arrow").merge(rows, str(tmp_path / "t"), "insert", "id", max_rows_per_file=1)
    page = result._repr_html_()
    assert "… 70 more" in page
    assert page.count("part-") == 100
