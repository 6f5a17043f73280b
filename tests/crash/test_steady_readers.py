"""Processes read snapshots while others change the dataset: each reader sees one state, and none fails."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import readers

ALL_READS = {"duckdb": 5000, "pyarrow": 5000, "polars": 5000, "spark": 50}


# V2
@pytest.mark.slow
def test_readers_of_snapshots_see_one_state_beside_writers(lake: str, request: pytest.FixtureRequest) -> None:
    is_all = request.config.getoption("--all-examples")
    reads = ALL_READS if is_all else {"duckdb": 10, "pyarrow": 10, "polars": 10}
    found, changes = readers.run(f"{lake}/t", "mixed", reads, plain=False)
    assert {name: dict(seen) for name, seen in found.items()} == {name: {"one state": n} for name, n in reads.items()}
    assert min(changes) > 0


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (readers.IDS[1:], "missed rows"),
        ([*readers.IDS, 0], "rows twice"),
        (readers.IDS, "one state"),
    ],
)
def test_what_is_wrong_with_a_read_is_noticed(rows: list[int], expected: str) -> None:
    found = readers.make_rows(np.array(rows), 1, 0)
    assert readers.judge(found) == expected
    old = readers.make_rows(np.array(rows[:1]), 0, 0)
    mixed = pa.concat_tables([old, found.slice(1)])
    assert readers.judge(mixed) == expected.replace("one state", "mixed batches")
