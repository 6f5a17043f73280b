"""Spark with a small source, and in each execution mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import open_spark, open_spark_broadcast, open_spark_shuffle

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


@pytest.fixture
def broadcast_io() -> AnyDatasetIO:
    """Spark with a source that each task reads."""
    return open_spark_broadcast()


@pytest.fixture(params=[open_spark, open_spark_broadcast, open_spark_shuffle], ids=["task", "broadcast", "shuffle"])
def io(request: pytest.FixtureRequest) -> AnyDatasetIO:
    """Each execution mode."""
    return request.param()  # type: ignore[no-any-return]
