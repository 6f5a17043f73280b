"""How far a merge has come, to whoever listens and on a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import open_door, put, snapshot

import merganser
from merganser.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    from merganser.core.progress import Progress


@pytest.mark.parametrize("name", ["duckdb", "arrow"])
def test_a_listener_hears_of_every_stage_and_file(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for number in range(3):
        put(f"{path}/f{number}.parquet", pa.table({"id": [2 * number, 2 * number + 1], "v": ["a", "b"]}))
    heard: list[Progress] = []
    source = pa.table({"id": [0, 2, 4, 9], "v": ["x"] * 4})
    open_door(name).merge(source, path, "upsert", "id", progress=heard.append)
    assert list(dict.fromkeys(one.stage for one in heard)) == ["read", "plan", "rewrite", "add", "commit", "done"]
    assert [one.done for one in heard if one.stage == "rewrite"] == [0, 1, 2, 3]
    assert {one.total for one in heard if one.stage == "rewrite"} == {3}
    assert {one.rows for one in heard if one.stage != "read"} == {4}
    assert "progress" not in merganser.history(path)[0].options


def test_a_listener_that_cannot_listen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="progress must be something to call"):
        open_door("arrow").merge(pa.table({"id": [1]}), str(tmp_path / "t"), "upsert", "id", progress=True)  # type: ignore[arg-type]


def test_a_listener_that_fails_stops_the_merge_before_it_changes_anything(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    put(f"{path}/a.parquet", pa.table({"id": [1]}))
    before = snapshot(path)

    def stop(progress: Progress) -> None:
        if progress.stage == "commit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_door("arrow").merge(pa.table({"id": [2]}), path, "upsert", "id", progress=stop)
    assert snapshot(path) == before


def on_a_terminal(arguments: list[str], until: bytes = b"", then: signal.Signals | None = None) -> tuple[int, str]:
    """Run the command line on a terminal; after some output, send a signal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "merganser.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                seen += os.read(ours, 65_536)
            except OSError:
                break
        if then is not None and until in seen:
            process.send_signal(then)
            then = None
    os.close(ours)
    return process.wait(timeout=60), seen.decode()


@pytest.mark.slow
def test_a_terminal_shows_a_bar_and_takes_it_away(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "rows.parquet")
    code, seen = on_a_terminal(["merge", str(tmp_path / "rows.parquet"), str(tmp_path / "t"), "--key", "id"])
    assert code == 0
    assert "━━━" in seen
    assert "2 inserted, 0 updated" in seen.rpartition("\x1b[2K")[2]


@pytest.mark.slow
def test_ctrl_c_leaves_the_dataset_as_it_was_and_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for number in range(40):
        rows = pa.table({"id": range(50_000 * number, 50_000 * (number + 1))})
        put(f"{path}/f{number:02}.parquet", rows.append_column("v", pa.array([str(n) for n in range(50_000)])))
    source = pa.table({"id": range(0, 2_000_000, 50)})
    pq.write_table(source.append_column("v", pa.array(["new"] * len(source))), tmp_path / "rows.parquet")
    before = snapshot(path)
    arguments = ["merge", str(tmp_path / "rows.parquet"), path, "--key", "id"]
    code, seen = on_a_terminal(arguments, b"rewriting files", signal.SIGINT)
    assert "Interrupted. Nothing was changed." in seen
    assert code == 1
    assert snapshot(path) == before
