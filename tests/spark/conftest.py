"""The one Spark session of this process, and the door on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support import open_spark, open_spark_far, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import Door


@pytest.fixture
def spark() -> Any:
    """The session."""
    return spark_session()


@pytest.fixture
def near() -> Door:
    """Spark with a source that each task reads."""
    return open_spark()


@pytest.fixture(params=[open_spark, open_spark_far], ids=["near", "far"])
def io(request: pytest.FixtureRequest) -> Door:
    """Both ways of working on a source."""
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture
def configured(spark: Any) -> Iterator[Callable[..., None]]:
    """Set settings of the session until the test ends."""
    before: dict[str, str | None] = {}

    def configure(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield configure
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
