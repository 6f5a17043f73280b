"""`snapshot` prints a folder that stays; `--as-of` names a past state."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import merganser

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.fixture
def path(tmp_path: Path) -> str:
    for value in "ab":
        merganser.merge(pa.table({"id": [1], "v": [value]}), tmp_path / "t", key_columns="id", retain=5)
    return str(tmp_path / "t")


# V6
@pytest.mark.parametrize(("keep", "expected"), [([], 3600), (["--keep", "90s"], 90), (["--keep", "2d"], 172_800)])
def test_a_snapshot_is_printed_and_kept(path: str, cli: Callable[..., Result], keep: list[str], expected: int) -> None:
    folder = cli("snapshot", path, *keep).stdout.strip()
    merganser.merge(pa.table({"id": [1], "v": ["c"]}), path, key_columns="id", retain=5)
    assert pq.read_table(folder)["v"].to_pylist() == ["b"]
    until = datetime.fromisoformat((Path(folder).parent / "until").read_text())
    assert abs(until - datetime.now(UTC) - timedelta(seconds=expected)) < timedelta(seconds=60)


# V5
def test_a_past_state_is_printed_and_shown(path: str, cli: Callable[..., Result], answer: Callable[..., Any]) -> None:
    record = merganser.history(path)[1]
    for as_of in ("1", record.id, record.committed_at.isoformat()):
        assert answer("show", path, "--as-of", as_of) == [{"id": 1, "v": "a"}]
        folder = answer("snapshot", path, "--as-of", as_of)["folder"]
        assert pq.read_table(folder)["v"].to_pylist() == ["a"]
    refused = cli("show", path, "--as-of", "2", code=1)
    assert "is not retained. States are retained from" in refused.stderr


@pytest.mark.parametrize("keep", ["", "1", "h", "1w", "-1h", "9999999999d"])
def test_what_is_no_duration_is_refused(path: str, cli: Callable[..., Result], keep: str) -> None:
    assert "--keep" in cli("snapshot", path, "--keep", keep, code=2).stderr
    assert not os.path.exists(f"{os.path.dirname(path)}/.t.merganser/snapshots")


# V7
def test_changes_are_shown(path: str, cli: Callable[..., Result], answer: Callable[..., Any]) -> None:
    expected = {"id": 1, "v": "b", "merge_action": "update", "merge_old": {"id": 1, "v": "a"}}
    for key in ([], ["--key", "id"]):
        assert answer("changes", path, "--since", "1", *key) == [expected]
    assert cli("changes", path, "--since", "0").stdout == "id  v  merge_action  merge_old\n0 rows\n"
    assert "is not retained" in cli("changes", path, "--since", "2", code=1).stderr
    assert "--since" in cli("changes", path, code=2).stderr
