"""Processes change one dataset at the same time, some of them killed: the history is a serial order of these."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from tests import oracle
from tests.support import put

import merganser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.commit.history import HistoryRecord

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
KEYS = 25  # of a partition
STRATEGIES = ["upsert", "upsert", "insert", "update", "delete"]

# Each change is planned from its number alone, so that the test can replay it. The row group size tells appends apart.
WRITER = """
import json, sys
import pyarrow as pa
import merganser
from tests.crash.test_serial_order import plan_change
path, engine, kind, me, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
if engine == "spark":
    from tests.support import get_spark_session
    spark = get_spark_session()
for number in range(me * 1000, me * 1000 + count):
    action, rows, options = plan_change(kind, number)
    source = pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.int64())]))
    if action == "compact":
        merganser.compact(path)
    elif action == "append":
        merganser.write_dataset(source, path, engine=engine, row_group_size=1_000_000 + number)
    else:
        merganser.merge(source, path, action, "id", engine=engine, batch_id=str(number), **options)
    print(number, flush=True)
"""


def plan_change(kind: str, number: int) -> tuple[str, list[oracle.Row], dict[str, Any]]:
    """Plan a change: in the writer's own partition, on keys that all share, or mixed with other calls."""
    rnd = random.Random(number)
    own = number // 1000 % PARTITIONS
    action, options = rnd.choice(STRATEGIES), dict[str, Any]()
    if kind == "mixed":
        action = rnd.choice([*STRATEGIES, "append", "compact", "full_merge"])
    partitions = [own] if kind == "disjoint" or action == "full_merge" else range(PARTITIONS)
    keys = [1000 * one + key for one in partitions for key in rnd.sample(range(KEYS), rnd.randint(1, 4))]
    if action == "append":
        # Keys of its own, so that no later merge finds a key twice.
        keys = [1_000_000 + number * 10 + at for at in range(3)]
    if action == "full_merge":
        options["scope"] = {"p": own}
    rows = [{"id": key, "v": f"by {number}", "p": key // 1000 if key < 1_000_000 else own} for key in keys]
    return action, rows, options


def start_writers(path: str, engine: str, kind: str, count: int, writers: Sequence[int]) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, path, engine, kind]
    return [
        subprocess.Popen(
            [*command, str(me), str(count)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for me in writers
    ]


def write_target(path: str) -> list[oracle.Row]:
    rows = [{"id": 1000 * one + key, "v": "old", "p": one} for one in range(PARTITIONS) for key in range(0, KEYS, 2)]
    for one in range(PARTITIONS):
        of_one = [{"id": row["id"], "v": row["v"]} for row in rows if row["p"] == one]
        for at in range(2):
            table = pa.Table.from_pylist(of_one[at::2], pa.schema([("id", pa.int64()), ("v", pa.string())]))
            put(f"{path}/p={one}/f{at}.parquet", table, row_group_size=4)
    return rows


def replay(records: Sequence[HistoryRecord], kind: str, rows: list[oracle.Row]) -> list[oracle.Row]:
    """Make the changes of the history one after the other, and compare the counts of each."""
    for record in records:
        if record.operation != "compact":
            number = int(record.batch_id or record.options["row_group_size"] - 1_000_000)
            action, source, options = plan_change(kind, number)
            if action == "append":
                after = [*rows, *source]
            else:
                scope = {name: [value] for name, value in options.get("scope", {}).items()}
                outcome = oracle.merge(
                    {"f": rows}, source, action, ["id"], ["p"], (), oracle.Options(["id", "v", "p"], scope=scope)
                )
                assert record.updated == outcome.count("update")
                after = outcome.rows
            assert (record.target_count_before, record.target_count_after) == (len(rows), len(after))
            rows = after
    return rows


def check_end(path: str, kind: str, before: list[oracle.Row]) -> list[str | None]:
    """Check that the dataset is what its history makes of it, and that nothing is left; returns the batches."""
    merganser.recover(path)
    records = merganser.history(path)[::-1]
    assert [record.id for record in records] == sorted(record.id for record in records)
    expected = replay(records, kind, before)
    glob = f"{path}/**/*.parquet"
    with duckdb.connect() as connection:
        query = f"SELECT id, v, p FROM read_parquet('{glob}', hive_partitioning=true)"  # noqa: S608
        found = connection.execute(query).fetchall()
    assert sorted(found) == sorted((row["id"], row["v"], row["p"]) for row in expected)
    assert not [name for name in os.listdir(f"{os.path.dirname(path)}/.t.merganser") if name.startswith(".staging")]
    return [record.batch_id for record in records]


# The engine and kind of changes, writers, and changes of each.
RUNS = [("duckdb", "mixed", 3, 4), ("arrow", "mixed", 3, 4)]
ALL_RUNS = [
    *((engine, kind, 8, 50) for engine in ("duckdb", "arrow") for kind in ("disjoint", "overlapping", "mixed")),
    ("spark", "overlapping", 2, 5),
]
# The engine, how often writers are killed, and how many.
KILLS = [("duckdb", 1, 3)]
ALL_KILLS = [("duckdb", 25, 8), ("arrow", 25, 8)]


def list_merges(done: Sequence[str], kind: str) -> list[str]:
    """Leave out the changes that have no batch id."""
    return [number for number in done if plan_change(kind, int(number))[0] not in {"append", "compact"}]


# V1, C5
@pytest.mark.slow
def test_the_history_is_a_serial_order_of_what_processes_did(lake: str, request: pytest.FixtureRequest) -> None:
    runs = ALL_RUNS if request.config.getoption("--all-examples") else RUNS
    for at, (engine, kind, writers, count) in enumerate(runs):
        path, done = f"{lake}/{at}/t", list[str]()
        before = write_target(path)
        for writer in start_writers(path, engine, kind, count, range(writers)):
            output, errors = writer.communicate(timeout=1000)
            assert writer.returncode == 0, errors
            done += output.split()
        assert len(done) == writers * count
        batches = check_end(path, kind, before)
        assert sorted(filter(None, batches)) == sorted(list_merges(done, kind)), "each merge is committed once"


# V1, C4
@pytest.mark.slow
def test_killed_processes_leave_a_serial_order(lake: str, request: pytest.FixtureRequest) -> None:
    for engine, rounds, writers in ALL_KILLS if request.config.getoption("--all-examples") else KILLS:
        path, rnd = f"{lake}/{engine}/t", random.Random(engine)
        before, done = write_target(path), list[str]()
        for number in range(rounds):
            running = start_writers(path, engine, "mixed", 50, [number * writers + me for me in range(writers)])
            for writer in running:
                assert writer.stdout is not None
                done += writer.stdout.readline().split()
            time.sleep(rnd.uniform(0, 1))
            for writer in running:
                time.sleep(rnd.uniform(0, 0.1))
                os.kill(writer.pid, signal.SIGKILL)
            for writer in running:
                output, errors = writer.communicate(timeout=60)
                assert writer.returncode in {-signal.SIGKILL, 0}, errors
                done += output.split()
        batches = [one for one in check_end(path, "mixed", before) if one is not None]
        assert set(list_merges(done, "mixed")) <= set(batches), "no merge that was reported is lost"
        assert len(set(batches)) == len(batches)


def test_a_plan_of_changes_is_the_same_in_every_process() -> None:
    command = (
        "import json; from tests.crash.test_serial_order import plan_change as p; print(json.dumps(p('mixed', 7)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert json.loads(output) == json.loads(json.dumps(plan_change("mixed", 7)))
