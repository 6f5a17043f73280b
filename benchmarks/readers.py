"""Counts what readers see beside constant changes: python -m benchmarks.readers [--plain] [--kind move] [--reads 1000].

Each group of rows is changed as a whole, and no row comes or goes: a state has each id once, and one batch per group.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import merganser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]
GROUPS, GROUP_ROWS = 3, 40
IDS = np.arange(GROUPS * GROUP_ROWS)
DAYS = np.array(["a", "b", "c"])
KINDS = ("update", "move", "compact", "overwrite", "mixed")
PAUSE_SECONDS, RETRIES = 0.02, 5


def make_rows(ids: Any, batch: int, shift: int) -> pa.Table:
    """Make rows of a batch; a shift gives them other days."""
    days = DAYS[(ids // 5 + shift) % len(DAYS)]
    return pa.table({"id": ids, "grp": ids // GROUP_ROWS, "batch": np.full(len(ids), batch), "day": days})


def write_first(path: str) -> None:
    """Write the dataset in several files."""
    merganser.merge(make_rows(IDS, 0, 0), path, key_columns="id", partition_columns="day", max_rows_per_file=15)


def change(path: str, kind: str, batch: int, group: int) -> None:
    """Make one change; only an overwrite concerns other groups, and is made by one writer alone."""
    ids = IDS[group == IDS // GROUP_ROWS]
    kind = ("update", "move", "compact")[batch % 3] if kind == "mixed" else kind
    if kind == "overwrite":
        merganser.write_dataset(make_rows(IDS, batch, 0), path, "overwrite", max_rows_per_file=15)
    elif kind == "compact" and batch % 2:
        merganser.compact(path)
    else:
        moves = kind in {"move", "compact", "mixed"}
        rows = make_rows(ids, batch, batch * moves)
        merganser.merge(rows, path, key_columns="id", on_partition_move="move", max_rows_per_file=10)


def write_until(path: str, kind: str, group: int, stop: str) -> int:
    """Change a group until a file exists; returns the number of changes."""
    batch = 0
    while not os.path.exists(stop):
        batch += 1
        change(path, kind, batch, group)
    return batch


def read_with_duckdb(folder: str) -> pa.Table:
    """Read with DuckDB, by a pattern."""
    with duckdb.connect() as connection:
        query = f"SELECT id, grp, batch FROM read_parquet('{folder}/**/*.parquet', hive_partitioning=true)"  # noqa: S608
        return connection.sql(query).to_arrow_table()


def read_with_pyarrow(folder: str) -> pa.Table:
    """Read the folder with PyArrow."""
    return ds.dataset(folder, format="parquet").to_table(columns=["id", "grp", "batch"])


def read_with_polars(folder: str) -> pa.Table:
    """Read the folder with Polars."""
    import polars as pl  # noqa: PLC0415  the others do without it

    return pl.read_parquet(folder, columns=["id", "grp", "batch"]).to_arrow()


def read_with_retry(folder: str) -> pa.Table:
    """Read with Polars again while that fails, because a file that it listed was removed or replaced meanwhile."""
    for left in reversed(range(RETRIES)):
        try:
            return read_with_polars(folder)
        except BaseException:  # a panic of Polars is no Exception
            if not left:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError


def read_with_spark(folder: str) -> pa.Table:
    """Read the folder with Spark's own reader."""
    from tests.support import get_spark_session  # noqa: PLC0415  starts Spark

    return get_spark_session().read.parquet(folder).select("id", "grp", "batch").toArrow()


READERS: dict[str, Callable[[str], pa.Table]] = {
    "duckdb": read_with_duckdb,
    "pyarrow": read_with_pyarrow,
    "polars": read_with_polars,
    "polars-retry": read_with_retry,
    "spark": read_with_spark,
}


def judge(found: pa.Table) -> str:
    """Say what is wrong with what was read, if anything."""
    ids, groups, batches = (found.column(name).to_numpy() for name in ("id", "grp", "batch"))
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(IDS):
        return "missed rows"
    if (counts > 1).any():
        return "rows twice"
    of_groups = (np.unique(batches[groups == group]) for group in range(GROUPS))
    return "mixed batches" if any(len(one) > 1 for one in of_groups) else "one state"


def read_many(path: str, reader: str, reads: int, *, plain: bool) -> Counter[str]:
    """Read a number of times, from a snapshot each time or from the dataset as it is, and count what is seen."""
    read, seen = READERS[reader], Counter[str]()
    for _ in range(reads):
        try:
            with contextlib.nullcontext(path) if plain else merganser.snapshot(path) as folder:
                seen[judge(read(folder))] += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  whatever a reader fails with is counted
            seen["error"] += 1
            print(f"{reader}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    return seen


@contextlib.contextmanager
def writing(path: str, kind: str) -> Iterator[list[int]]:
    """Let writers change a dataset; at the end, the list has their numbers of changes."""
    stop, changes = f"{path}.stop", list[int]()
    command = [sys.executable, "-m", "benchmarks.readers", "--write", kind, path]
    writers = [
        subprocess.Popen([*command, str(group)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for group in range(1 if kind == "overwrite" else GROUPS)
    ]
    try:
        yield changes
    finally:
        Path(stop).touch()
        for writer in writers:
            output, errors = writer.communicate()
            if writer.returncode:
                raise RuntimeError(errors)
            changes.append(int(output))
        os.remove(stop)


def run(path: str, kind: str, reads: dict[str, int], *, plain: bool) -> tuple[dict[str, Counter[str]], list[int]]:
    """Let readers read beside writers, each in a process of its own."""
    write_first(path)
    command = [sys.executable, "-m", "benchmarks.readers", "--path", path, *(["--plain"] if plain else [])]
    with writing(path, kind) as changes:
        readers = [
            subprocess.Popen([*command, "--reader", name, "--reads", str(count)], cwd=ROOT, stdout=subprocess.PIPE)
            for name, count in reads.items()
        ]
        outputs = [reader.communicate()[0] for reader in readers]
    if any(reader.returncode for reader in readers):
        raise RuntimeError("a reader failed")
    return {name: Counter(json.loads(output)) for name, output in zip(reads, outputs, strict=True)}, changes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each reader saw beside each kind of change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="read the dataset as it is, not a snapshot")
    parser.add_argument("--kind", choices=KINDS, action="append", help="what writers do; default each in turn")
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--reader", choices=READERS, action="append")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.write:
        kind, path, group = given.write
        print(write_until(path, kind, int(group), f"{path}.stop"))
    elif given.path:
        print(json.dumps(read_many(given.path, given.reader[0], given.reads, plain=given.plain)))
    else:
        names = given.reader or [name for name in READERS if name != "spark"]
        for kind in given.kind or KINDS:
            with tempfile.TemporaryDirectory() as folder:
                found, changes = run(f"{folder}/t", kind, dict.fromkeys(names, given.reads), plain=given.plain)
            print(
                f"{kind}: {sum(changes)} changes", *(f"{name} {dict(one)}" for name, one in found.items()), sep="\n  "
            )


if __name__ == "__main__":
    main()
