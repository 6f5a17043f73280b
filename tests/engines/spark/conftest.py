"""Spark with a small source, and with either execution mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import open_spark, open_spark_shuffle

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


@pytest.fixture
def broadcast_io() -> AnyDatasetIO:
    """Spark with a source that each task reads."""
    return open_spark()


@pytest.fixture(params=[open_spark, open_spark_shuffle], ids=["broadcast", "shuffle"])
def io(request: pytest.FixtureRequest) -> AnyDatasetIO:
    """Both execution modes."""
    return request.param()  # type: ignore[no-any-return]
