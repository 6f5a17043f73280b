"""Progress of a merge, to a callback and on a terminal."""

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
from tests.support import put, snapshot

if TYPE_CHECKING:
    from pathlib import Path


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
