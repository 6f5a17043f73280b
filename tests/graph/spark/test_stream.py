"""Rows on their way from Spark to the driver: all of them, in order, as they are, a few at a time."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from merganser.engines.spark.jobs import tag_errors
from merganser.errors import InvalidArgumentError
from merganser.graph.spark import collect as stream
from merganser.graph.spark.collect import stream_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_a_sorted_frame_comes_in_order_and_in_small_tables(spark: Any) -> None:
    """G17."""
    frame = spark.range(25_000, numPartitions=3).selectExpr("25000 - id AS id").sort("id")
    tables = list(stream_tables(frame, rows=7_000))
    assert [number for table in tables for number in table.column("id").to_pylist()] == list(range(1, 25_001))
    assert 4 <= len(tables) <= 6
    assert max(table.num_rows for table in tables) <= 7_000
    # Spark may hand over more rows at once than a table is to have.
    assert [table.num_rows for table in stream_tables(spark.range(0, 7, 1, 1), rows=3)] == [3, 3, 1]


def test_tables_of_large_values_are_cut_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """G17."""
    batches = [pa.record_batch({"text": ["x" * 1_000]})] * 3
    assert len(list(stream._encode_partition(3, batches))) == 1
    monkeypatch.setattr(stream, "_BYTES", 1_500)
    assert len(list(stream._encode_partition(3, batches))) == 3


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_all_values_arrive_as_they_are(spark: Any, configured: Callable[..., None], zone: str) -> None:
    """G5, G17. Times with a zone are the same instant in UTC, in lists, structs and maps too."""
    configured({"spark.sql.session.timeZone": zone})
    frame = spark.sql(
        "SELECT 1L AS i, 1.5D AS f, 'å\\0' AS s, true AS b, DATE'2026-01-02' AS d, "
        "TIMESTAMP'2026-01-02 03:04:05.000006Z' AS t, TIMESTAMP_NTZ'2026-07-02 03:04:05' AS n, "
        "array(1, NULL) AS l, map('k', 'v') AS m, named_struct('x', 1, 'y', NULL) AS o, CAST(NULL AS string) AS z, "
        "named_struct('l', array(TIMESTAMP'2026-01-02 03:04:05Z'), 'm', map('k', TIMESTAMP'2026-01-02 03:04:05Z')) AS q"
    )
    (table,) = stream_tables(frame)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    (row,) = table.to_pylist(maps_as_pydicts="strict")
    assert row == {
        "i": 1,
        "f": 1.5,
        "s": "å\0",
        "b": True,
        "d": date(2026, 1, 2),
        "t": moment.replace(microsecond=6),
        "n": datetime(2026, 7, 2, 3, 4, 5),  # noqa: DTZ001 - it has no zone
        "l": [1, None],
        "m": {"k": "v"},
        "o": {"x": 1, "y": None},
        "z": None,
        "q": {"l": [moment], "m": {"k": moment}},
    }
    assert row["t"].isoformat() == "2026-01-02T03:04:05.000006+00:00"
    assert row["q"]["l"][0].isoformat() == row["q"]["m"]["k"].isoformat() == "2026-01-02T03:04:05+00:00"


def test_an_error_of_an_executor_is_reported_unchanged(spark: Any) -> None:
    """G17."""

    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise InvalidArgumentError("on purpose")

    frame = spark.range(1).mapInArrow(tag_errors(refuse), "id long")
    with pytest.raises(InvalidArgumentError, match=r"^on purpose$"):
        list(stream_tables(frame))


def test_a_frame_without_rows_gives_nothing(spark: Any) -> None:
    """G17."""
    assert list(stream_tables(spark.range(5).where("id > 9").sort("id"))) == []
