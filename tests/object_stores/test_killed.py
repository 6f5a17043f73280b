"""Processes that are killed or stopped before a request to a real store, with a takeover; and many writers at once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.object_stores.histories import CHANGES, list_outcomes, make_rows, read_rows, upsert

import merganser

ROOT = Path(__file__).parents[2]
KILLS = 40  # of each change, in each way
REQUESTS = 120  # more than a change sends


@pytest.mark.all_stores
@pytest.mark.s3_only
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["killed", "stopped"])
@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_lost_or_doubled_or_half_applied(lake: str, name: str, kind: str) -> None:
    # N1, N4: SIGKILL, or SIGSTOP with a takeover past the lease and SIGCONT, before a request
    numbers = list(range(1, REQUESTS + 1, REQUESTS // KILLS))
    command = [sys.executable, "-m", "tests.object_stores.killed", lake, name, kind, json.dumps(numbers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == KILLS
    ends = set()
    for path, code in told:
        assert code in {"killed", 0, 3}, (path, code, done.stderr[-3000:])
        outcomes = [*list_outcomes(name, happened=True)] if code != 3 else []
        outcomes += list_outcomes(name, happened=False) if code != 0 else []
        assert read_rows(path) in outcomes, (path, code)
        ends.add(code)
        upsert(path, {1001: "after"})
        assert (1001, "after") in read_rows(path)
    assert ("killed" if kind == "killed" else 3) in ends


WRITER = """
import json, sys
import pyarrow as pa
import merganser
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    rows = pa.table({"id": [first + number, 0], "v": [f"{first}", f"{first + number}"]})
    merganser.merge(rows, path, key_columns="id", engine="arrow", lock_timeout=600)
"""


@pytest.mark.all_stores
@pytest.mark.s3_only
@pytest.mark.timeout(900)
def test_no_change_of_many_writers_is_lost(lake: str) -> None:
    # N1: 4 processes with 20 merges each, all of one row and of one that is theirs
    path = f"{lake}/t"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(first), "20"], stderr=subprocess.PIPE, text=True)
        for first in (100, 200, 300, 400)
    ]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, errors
    rows = dict(read_rows(path))
    assert set(rows) == {0} | {first + number for first in (100, 200, 300, 400) for number in range(20)}
    assert len(read_rows(path)) == 81
    records = merganser.history(path)
    assert [record.lease for record in records] == list(range(80, 0, -1))


@pytest.mark.all_stores
@pytest.mark.timeout(900)
def test_random_merges_leave_the_same_as_on_a_disk(lake: str, tmp_path: Path) -> None:
    chance = random.Random(27)
    for number in range(100):
        ids = chance.sample(range(60), chance.randint(1, 12))
        rows = make_rows(dict.fromkeys(ids, f"{number}"))
        strategy: Any = chance.choice(["insert", "update", "upsert", "delete", "full_merge"])
        told = [
            merganser.merge(rows, path, strategy, "id", engine="arrow", max_rows_per_file=9).stats
            for path in (f"{lake}/t", f"{tmp_path}/t")
        ]
        assert told[0] == told[1], (number, strategy)
    assert read_rows(f"{lake}/t") == read_rows(f"{tmp_path}/t")


def test_writers_that_wait_for_each_other(lake: str) -> None:
    # N1: threads of one process
    path = f"{lake}/t"
    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(merganser.merge, pa.table({"id": [one]}), path, key_columns="id", engine="arrow")
            for one in range(6)
        ]
        assert sorted(one.result().inserted for one in done) == [1] * 6
    assert [record.lease for record in merganser.history(path)] == [6, 5, 4, 3, 2, 1]
