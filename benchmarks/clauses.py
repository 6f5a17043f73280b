"""MERGE in clauses, scenario L: `python -m benchmarks.clauses [--rows N] [--repeat N]`.

- counter: the rows of scenario C add to a column where they are newer; compared with C itself, by the same engine.
- by-source: 1 % of the rows, in every row group, change because the source lacks them; compared with DuckDB, which
  rewrites every file.
- by-source-one: the same where bounds confine the condition to one file.

Each measurement has a process of its own and a fresh copy of the dataset, and follows a first merge into a small one.
The clock stops when everything is flushed. They take turns; best time and highest memory count. The number of changed
rows is checked every time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np

import merganser as mg
from benchmarks.contenders.plain import flush
from benchmarks.data import FILES, ROWS, build, rows
from benchmarks.table import markdown_table
from benchmarks.worker import peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

ENGINES = ("duckdb", "arrow")
PEER = "duckdb rewrite"
SEED = 5_000_000
# The most that merganser may take of the time of what it is compared with.
GOALS = {"counter": 1.25, "by-source": 1.1, "by-source-one": 0.2}
# About one row in a hundred.
CHANGED = "t.customer % 100 = 7"
SET = {"status": "'gone'", "quantity": "t.quantity + 1"}


def pick_rows(row_count: int) -> pa.Table:
    """Pick the incoming rows of scenario C: some of every file."""
    count = max(FILES, min(100_000, 100_000 * row_count // ROWS))
    return rows(np.arange(count) * (row_count // count), SEED)


def upsert(path: Path, row_count: int, engine: str) -> int:
    """Do what scenario C does."""
    return mg.merge(pick_rows(row_count), path, key_columns="id", engine=engine).updated


def count_up(path: Path, row_count: int, engine: str) -> int:
    """Add to a column."""
    merge = mg.merge_into(path, pick_rows(row_count), "id", engine=engine, batch_id="L")
    return merge.when_matched_update({"quantity": "t.quantity + s.quantity"}, where="s.day >= t.day").execute().updated


def change_missing(path: Path, row_count: int, engine: str) -> int:
    """Change rows of every file that the source lacks."""
    merge = mg.merge_into(path, pick_rows(row_count).slice(0, 10), "id", engine=engine, batch_id="L")
    return merge.when_not_matched_by_source_update(SET, where=CHANGED).execute().updated


def change_missing_of_one(path: Path, row_count: int, engine: str) -> int:
    """Change rows of one file that the source lacks."""
    merge = mg.merge_into(path, pick_rows(row_count).slice(0, 10), "id", engine=engine, batch_id="L")
    first = 7 * (row_count // FILES)
    where = f"t.id >= {first} AND t.id < {first + row_count // FILES} AND {CHANGED}"
    return merge.when_not_matched_by_source_update(SET, where=where).execute().updated


def rewrite_everything(path: Path, _row_count: int, _engine: str) -> int:
    """Let DuckDB rewrite every file, on all cores, and flush the new ones."""
    new = path.with_name("new")
    new.mkdir()
    status = f"CASE WHEN {CHANGED} THEN 'gone' ELSE t.status END AS status"
    quantity = f"CASE WHEN {CHANGED} THEN t.quantity + 1 ELSE t.quantity END AS quantity"
    changes = f"REPLACE ({status}, {quantity})"
    with duckdb.connect() as connection:
        query = connection.read_parquet(f"{path}/*.parquet").set_alias("t").select(f"t.* {changes}")
        query.write_parquet(str(new), per_thread_output=True)
        count = connection.read_parquet(f"{new}/*.parquet").set_alias("t").filter(CHANGED).count("*").fetchall()[0][0]
    flush([*new.iterdir(), new])
    shutil.rmtree(path)
    new.rename(path)
    return int(count)


ACTIONS: dict[str, Callable[[Path, int, str], int]] = {
    "C": upsert,
    "counter": count_up,
    "by-source": change_missing,
    "by-source-one": change_missing_of_one,
    PEER: rewrite_everything,
}


def measure(name: str, engine: str, path: Path, row_count: int) -> dict[str, float]:
    """Take the time of one action in this process, after a first one on a few rows."""
    act = ACTIONS[name]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        act(build(Path(folder), 4_000, FILES), 4_000, engine)
    start = time.perf_counter()
    changed = act(path, row_count, engine)
    return {"seconds": time.perf_counter() - start, "peak_mb": peak_memory(), "changed": changed}


def run(data: Path, row_count: int, repeat: int) -> list[list[str]]:
    """Let everything take turns, and return a line for each."""
    source = build(data, row_count)
    live = data / "live-clauses"
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    pairs = [(name, engine) for name in ACTIONS if name != PEER for engine in ENGINES]
    for _ in range(repeat):
        for name, engine in [*pairs, (PEER, "")]:
            shutil.rmtree(live, ignore_errors=True)
            live.mkdir()
            shutil.copytree(source, live / "t")
            command = [sys.executable, "-m", "benchmarks.clauses", "--measure", name, "--engine", engine]
            command += ["--data", str(live / "t"), "--rows", str(row_count)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name, engine].append(json.loads(done.stdout.splitlines()[-1]))
    shutil.rmtree(live)
    return [_make_line(name, engine, found) for name, engine in found]


def _make_line(name: str, engine: str, found: dict[tuple[str, str], list[dict[str, float]]]) -> list[str]:
    seconds, peer = (
        min(one["seconds"] for one in found[name, engine]),
        ("C", engine) if name == "counter" else (PEER, ""),
    )
    changed = {one["changed"] for one in found[name, engine]}
    assert len(changed) == 1, f"{name} changed {changed} rows"
    expected = {"counter": ("C", engine), "by-source": (PEER, "")}.get(name)
    if expected is not None:
        assert abs(changed.pop() - found[expected][0]["changed"]) <= 10, f"{name} differs from {expected}"
    ratio = seconds / min(one["seconds"] for one in found[peer])
    goal = GOALS.get(name)
    verdict = "" if goal is None else f"at most {goal}: {'reached' if ratio <= goal else 'missed'}"
    peak = max(one["peak_mb"] for one in found[name, engine])
    shown = "" if goal is None else f"{ratio:.2f} of {peer[0]}"
    return [name, engine, f"{seconds:.3f}", shown, verdict, f"{peak:,.0f}"]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data", help="folder for datasets")
    parser.add_argument("--measure", choices=list(ACTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--engine", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.engine, arguments.data, arguments.rows)))
        return
    lines = run(arguments.data.resolve(), arguments.rows, arguments.repeat)
    print(markdown_table(("action", "engine", "seconds", "ratio", "goal", "peak MB"), lines))


if __name__ == "__main__":
    main()
