"""`show` prints rows; `--quiet` prints nothing, and neither does progress without a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import merganser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "", None], "n": [1.5, None, 2.0]})


@pytest.fixture
def path(tmp_path: Path) -> str:
    merganser.write_dataset(ROWS, tmp_path / "t")
    return str(tmp_path / "t")


def test_rows_are_shown_as_a_table(path: str, cli: Callable[..., Result]) -> None:
    assert cli("show", path).stdout == "id  v     n\n1   a     1.5\n2   ''    NULL\n3   NULL  2.0\n3 rows\n"
    shown = cli("show", path, "--columns", "v,id", "--where", "id >= 2", "--limit", "1").stdout
    assert shown == "v   id\n''  2\n1 row; --limit shows more\n"
    assert cli("show", path, "--where", "id > 9").stdout == "id  v  n\n0 rows\n"


def test_rows_are_shown_as_json(path: str, answer: Callable[..., Any]) -> None:
    assert answer("show", path, "--where", "v IS NULL OR v = ''") == ROWS.slice(1).to_pylist()


def test_wide_rows_are_cut(tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    merganser.write_dataset({f"c{at}": ["x" * 60] for at in range(4)}, tmp_path / "t")
    lines = cli("show", str(tmp_path / "t")).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[1] == "  ".join([f"{'x' * 39}…"] * 2)
    assert lines[-1] == "columns not shown: c2, c3; --columns selects them"


def test_days_that_python_lacks_are_shown(
    tmp_path: Path, cli: Callable[..., Result], answer: Callable[..., Any]
) -> None:
    merganser.write_dataset({"id": [1], "day": pa.array([10_000_000], pa.date32())}, tmp_path / "t")
    assert cli("show", str(tmp_path / "t")).stdout == "id  day\n1   29349-01-26\n1 row\n"
    assert answer("show", str(tmp_path / "t")) == [{"id": 1, "day": "29349-01-26"}]


def test_columns_are_aligned_where_characters_are_escaped(tmp_path: Path, cli: Callable[..., Result]) -> None:
    merganser.write_dataset({"v": ["a\nb", "c"], "n": [1, 2]}, tmp_path / "t")
    assert cli("show", str(tmp_path / "t")).stdout == "v     n\na\\nb  1\nc     2\n2 rows\n"


def test_what_cannot_be_shown_is_refused(path: str, tmp_path: Path, cli: Callable[..., Result]) -> None:
    assert "no Parquet files below" in cli("show", str(tmp_path / "none"), code=1).stderr
    assert "has no column 'w'" in cli("show", path, "--columns", "w", code=1).stderr
    assert "--where 'w > 1' cannot be evaluated" in cli("show", path, "--where", "w > 1", code=1).stderr


def test_quiet_prints_errors_only(path: str, tmp_path: Path, cli: Callable[..., Result]) -> None:
    (tmp_path / "rows.csv").write_text("id,v,n\n1,b,2.5\n")
    merge = ("merge", str(tmp_path / "rows.csv"), path, "--key", "id")
    done = cli(*merge)
    assert "1 updated" in done.stdout
    # There is no terminal, so there is no progress.
    assert done.stderr == ""
    done = cli(*merge, "--quiet")
    assert (done.stdout, done.stderr) == ("", "")
    assert cli(*merge, "--quiet", "--json").stdout.startswith("{")
    assert "nobody" in cli("merge", str(tmp_path / "rows.csv"), path, "--key", "nobody", "--quiet", code=1).stderr
