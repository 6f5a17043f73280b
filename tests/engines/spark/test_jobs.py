"""An executor that lacks memory reports it."""

from __future__ import annotations

from typing import Any

import pytest

from merganser.engines.spark.jobs import run_tasks
from merganser.errors import OutOfMemoryError


# X1
def test_an_executor_out_of_memory_is_reported(spark: Any) -> None:
    with pytest.raises(OutOfMemoryError, match=r"An executor is out of memory: .*spark\.executor\.memoryOverhead"):
        run_tasks(spark, bytearray, [1 << 62])
