"""Tasks: an executor that lacks memory reports it, and rows are brought to tasks by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that

from merganser.engines.spark.columns import NUMBER
from merganser.engines.spark.jobs import run_tasks
from merganser.engines.spark.partitioning import choose_salts, hash_integers, repartition_by_salt
from merganser.errors import OutOfMemoryError


# X1
def test_an_executor_out_of_memory_is_reported(spark: Any) -> None:
    with pytest.raises(OutOfMemoryError, match=r"An executor is out of memory: .*spark\.executor\.memoryOverhead"):
        run_tasks(spark, bytearray, [1 << 62])


# X1: as before Spark 4.1, which has no partitions by number
def test_rows_are_brought_to_partitions_by_the_hashes_of_salts(spark: Any) -> None:
    numbers = spark.createDataFrame([(number % 7,) for number in range(100)], f"{NUMBER} int")
    found = repartition_by_salt(numbers, 7).select(NUMBER, F.spark_partition_id().alias("partition"))
    assert found.where(f"{NUMBER} <> partition").count() == 0
    assert found.select("partition").distinct().count() == 7


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_every_partition_has_a_salt(count: int) -> None:
    hashes = hash_integers(np.array(choose_salts(count), np.int32))
    assert np.mod(hashes.astype(np.int64), count).tolist() == list(range(count))
