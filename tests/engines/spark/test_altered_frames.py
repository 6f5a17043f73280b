"""DataFrames that were made before their dataset was altered fail, or read the files as they were (E2)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support import open_spark

ROWS = pa.table({"id": [1, 2], "old_name": ["a", "b"]})
# Spark and Arrow read a column that a file lacks as NULL.
CHANGES: list[dict[str, Any]] = [{"rename": {"old_name": "new_name"}}, {"drop": "old_name"}]


# E2
@pytest.mark.parametrize("changes", CHANGES, ids=lambda one: next(iter(one)))
def test_a_frame_of_the_old_schema_does_not_read_new_files(spark: Any, lake: str, changes: dict[str, Any]) -> None:
    io = open_spark()
    io.write_dataset(ROWS, f"{lake}/t")
    plain, snapshot = spark.read.parquet(f"{lake}/t"), io.read(f"{lake}/t")
    assert [plain.count(), snapshot.count()] == [2, 2]
    io.alter(f"{lake}/t", **changes)
    with pytest.raises(Exception, match=r"NOT_EXIST|no longer exists"):
        plain.collect()
    assert sorted(map(tuple, snapshot.collect())) == [(1, "a"), (2, "b")]
    assert spark.read.parquet(f"{lake}/t").columns == io.read(f"{lake}/t").columns


# E2
def test_a_frame_made_before_a_column_was_added_or_widened_reads_its_own_columns(spark: Any, lake: str) -> None:
    io = open_spark()
    io.write_dataset(ROWS, f"{lake}/t")
    frames = [spark.read.parquet(f"{lake}/t"), io.read(f"{lake}/t")]
    io.alter(f"{lake}/t", add={"x": "int64"}, default={"x": 1})
    for frame in frames:
        assert sorted(map(tuple, frame.collect())) == [(1, "a"), (2, "b")]
