"""Structured Streaming: each batch of a query once (X7), and batch ids on any engine (M7)."""

from __future__ import annotations

import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import open_spark, put, read_rows, snapshot

from merganser import history
from merganser.errors import InvalidArgumentError, TargetPathError, UnsupportedFileError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO


def run(spark: Any, lake: str, sink: Any, checkpoint: str) -> None:
    """Run a query over all that is in the folder of arrivals, file by file, and stop."""
    stream = spark.readStream.schema("id long, v string").option("maxFilesPerTrigger", 1).parquet(f"{lake}/arrivals")
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", f"{lake}/{checkpoint}")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None


def arrive(lake: str, name: str, ids: list[int], value: str) -> None:
    path = put(f"{lake}/arrivals/{name}.parquet", pa.table({"id": ids, "v": [value] * len(ids)}))
    # Spark takes files by age, and these may be of one age.
    os.utime(path, (ord(name), ord(name)))


# X7
def test_a_repeated_batch_is_merged_once(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    sink = io.foreach_batch(f"{lake}/t", "upsert", "id", query_name="feed")  # type: ignore[attr-defined]
    arrive(lake, "a", [1, 2], "first")
    arrive(lake, "b", [2, 3], "second")
    run(spark, lake, sink, "checkpoint")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["first", "second", "second"]
    # Someone corrects a row; then the query is started again from a checkpoint that has not heard of its last batch.
    io.merge(pa.table({"id": [2], "v": ["corrected"]}), f"{lake}/t", key_columns="id")
    for path in (Path(lake) / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    before = snapshot(f"{lake}/t")
    run(spark, lake, sink, "checkpoint")
    assert snapshot(f"{lake}/t") == before
    arrive(lake, "c", [4], "third")
    run(spark, lake, sink, "checkpoint")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["first", "corrected", "second", "third"]
    # Another query counts from 0 again, which is not a replay.
    shutil.rmtree(f"{lake}/arrivals")
    arrive(lake, "d", [1, 2, 5], "anew")
    other = io.foreach_batch(f"{lake}/t", "upsert", "id", query_name="feed again")  # type: ignore[attr-defined]
    run(spark, lake, other, "another")
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["anew", "anew", "second", "third", "anew"]


# X7
def test_a_counter_counts_each_batch_once(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    counting = (
        io.merge_into(f"{lake}/t", on="id", skip_unchanged=True)  # type: ignore[call-arg]
        .when_matched_delete("s.v = 'gone'")
        .when_matched_update({"v": "t.v || ' ' || s.v"})
        .when_not_matched_insert_all("s.v <> 'gone'")
    )
    # As Spark Connect does; what remains is the default session.
    sink = pickle.loads(pickle.dumps(counting.foreach_batch(query_name="feed")))  # type: ignore[attr-defined]  # noqa: S301
    arrive(lake, "a", [1, 2, 3], "one")
    arrive(lake, "b", [2, 3, 4], "two")
    arrive(lake, "c", [3, 5], "gone")
    run(spark, lake, sink, "checkpoint")
    counted = [(1, "one"), (2, "one two"), (4, "two")]
    assert [(row["id"], row["v"]) for row in read_rows(io, f"{lake}/t")] == counted
    # The query is started again from a checkpoint that has not heard of its second and third batch.
    for number in (1, 2):
        for path in (Path(lake) / "checkpoint" / "commits").glob(f"*{number}*"):
            path.unlink()
    before = snapshot(f"{lake}/t")
    run(spark, lake, sink, "checkpoint")
    assert snapshot(f"{lake}/t") == before
    arrive(lake, "d", [1], "three")
    run(spark, lake, sink, "checkpoint")
    assert read_rows(io, f"{lake}/t")[0]["v"] == "one three"
    assert [(one.strategy, one.batch_id, one.options["clauses"][0]) for one in history(f"{lake}/t")] == [
        ("merge", f"feed:{number}", "WHEN MATCHED AND s.v = 'gone' THEN DELETE") for number in (3, 2, 1, 0)
    ]


# X7
@pytest.mark.parametrize(
    ("options", "where", "match"),
    [
        ({"query_name": ""}, "true", "query_name"),
        ({"query_name": "q", "batch_id": "b"}, "true", "batch_id"),
        ({"query_name": "q", "compression": "best"}, "true", "compression"),
        ({"query_name": "q", "update_columns": "v"}, "true", "update_columns does not go with clauses"),
        ({"query_name": "q", "on": ()}, "true", "key"),
        ({"query_name": "q", "source": pa.table({"id": [1]})}, "true", "Leave the source of merge_into out"),
        ({"query_name": "q"}, "s.v >", "not an expression of SQL"),
        ({"query_name": "q"}, None, "needs a clause"),
    ],
)
def test_clauses_that_cannot_work_are_refused_before_the_query_starts(
    broadcast_io: AnyDatasetIO, lake: str, options: dict[str, Any], where: str | None, match: str
) -> None:
    given = {"source": None, "on": "id", **options}
    query_name = given.pop("query_name")
    merge = broadcast_io.merge_into(f"{lake}/t", **given)
    merge = merge if where is None else merge.when_matched_update_all(where)
    with pytest.raises(InvalidArgumentError, match=match):
        merge.foreach_batch(query_name=query_name)  # type: ignore[attr-defined]


# X7, E3
def test_a_stream_may_bring_new_columns(spark: Any, lake: str) -> None:
    io = open_spark()
    io.merge(pa.table({"id": pa.array([1, 2], pa.int32()), "kept": ["a", "b"]}), f"{lake}/t", key_columns="id")
    arrive(lake, "a", [2, 3], "new")
    evolving = io.foreach_batch(  # type: ignore[attr-defined]
        f"{lake}/t", "upsert", "id", query_name="feed", schema_mode="evolve"
    )
    run(spark, lake, evolving, "checkpoint")
    assert read_rows(io, f"{lake}/t") == [
        {"id": 1, "kept": "a", "v": None},
        {"id": 2, "kept": "b", "v": "new"},
        {"id": 3, "kept": None, "v": "new"},
    ]


# X7
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"query_name": ""}, "query_name"),
        ({"query_name": "q", "batch_id": "b"}, "batch_id"),
        ({"query_name": "q", "compression": "best"}, "compression"),
        ({"query_name": "q", "key_columns": ()}, "key"),
        ({"query_name": "q", "strategy": "replace"}, "replace"),
        ({"query_name": "q", "strategy": "deduplicate"}, "dedup_order_by"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_the_query_starts(
    broadcast_io: AnyDatasetIO, lake: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        broadcast_io.foreach_batch(f"{lake}/t", **{"key_columns": "id", **options})  # type: ignore[attr-defined]


# X7
def test_a_sink_knows_its_folder_wherever_batches_come_to(
    broadcast_io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake)
    sink = broadcast_io.foreach_batch("t", "upsert", "id", query_name="feed")  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(sink)).path == os.path.realpath(f"{lake}/t")  # noqa: S301  our own


# M10, X7
def test_a_sink_above_a_dataset_is_refused_before_the_query_starts(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/lake/t/_delta_log/checkpoint.parquet", pa.table({"version": [0]}))
    os.makedirs(f"{lake}/lake/orders")
    os.makedirs(f"{lake}/lake/.orders.merganser/history")
    before = snapshot(lake)
    sink = partial(io.foreach_batch, query_name="feed")  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedFileError, match=f"contains the Delta Lake table {lake}/lake/t:"):
        sink(f"{lake}/lake", "upsert", "id")
    with pytest.raises(TargetPathError, match=f"contains the dataset {lake}/lake/orders"):
        sink(f"{lake}/lake", "upsert", "id", ignore_table_format=True)
    assert snapshot(lake) == before
