"""What travels: counts to the driver, source rows to files, and never a target row (X1, X2, X5)."""

from __future__ import annotations

import ast
import re
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import put, read_rows

import merganser.engines.spark as engine
from merganser.core.dataset import snapshot as dataset
from merganser.core.model.engine import UNKNOWN_PARTITION, FileNumber, GroupNumber, ScanFile
from merganser.core.parquet.footer import read_footer
from merganser.core.rows.key_scan import make_key_schema
from merganser.core.storage.location import locate
from merganser.engines.spark import engine as spark_engine
from merganser.engines.spark.exchange import decode_packet, encode_inputs
from merganser.engines.spark.shuffle_matches import emit_target_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

FILES, ROWS, WIDE = 4, 5_000, 200


def target(path: str) -> int:
    """Write files of keys that interleave, so that none can be pruned, with a wide payload; gives its bytes."""
    payload = np.random.default_rng(5).bytes(ROWS * WIDE)
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(WIDE), ROWS, [None, pa.py_buffer(payload)])
    for file in range(FILES):
        ids = pa.array(range(file, FILES * ROWS, FILES))
        put(f"{path}/{file}.parquet", pa.table({"id": ids, "payload": column}), compression="none")
    return FILES * ROWS * WIDE


def stages(spark: Any) -> Callable[[], list[Any]]:
    """Return what Spark knows of stages that ran since."""
    store = spark.sparkContext._jsc.sc().statusStore()

    def listed() -> dict[int, Any]:
        found = store.stageList(None, False, False, _none(spark), None)
        return {found.apply(at).stageId(): found.apply(at) for at in range(found.size())}

    before = set(listed())
    return lambda: [stage for number, stage in listed().items() if number not in before]


def _none(spark: Any) -> Any:
    return spark.sparkContext._gateway.new_array(spark._jvm.double, 0)


# X5, X1
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_no_stage_shuffles_target_rows(io: AnyDatasetIO, spark: Any, lake: str, strategy: Any) -> None:
    size = target(f"{lake}/t")
    io._group_rows = FILES * ROWS // 2  # type: ignore[attr-defined]
    frame = spark.range(0, FILES * ROWS + 100, 201).selectExpr("id", "cast(repeat('n', 200) as binary) payload")
    ran = stages(spark)
    result = io.merge(frame, f"{lake}/t", strategy, "id")
    assert len(result.rewritten_files) == FILES
    found = ran()
    assert found
    written = sum(stage.shuffleWriteBytes() for stage in found)
    # Source rows, keys of the target and orders travel; the payload of the target alone is forty times the source's.
    assert written < size / 8
    # Nor do they come back to the driver.
    assert sum(stage.resultSize() for stage in found) < size / 8


# X5
def test_a_broadcast_source_shuffles_no_row(
    broadcast_io: AnyDatasetIO, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target(f"{lake}/t")
    frame = spark.range(0, FILES * ROWS, 100).selectExpr("id", "cast(repeat('n', 200) as binary) payload").persist()
    plans = watch(monkeypatch)
    broadcast_io.merge(frame, f"{lake}/t", "upsert", "id")
    assert plans
    assert not [plan for plan in plans if "Join" in plan or "HashAggregate" in plan]


# X5
def test_rows_of_a_shuffled_source_travel_in_packets(spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    io = engine.SparkDatasetIO(spark)
    io._broadcast_limit = -1
    target(f"{lake}/t")
    frame = spark.range(0, FILES * ROWS, 100).selectExpr("id", "cast(repeat('n', 200) as binary) payload")
    plans = watch(monkeypatch)
    io.merge(frame, f"{lake}/t", "upsert", "id")
    lines = [line for plan in plans for line in plan.splitlines()]
    # Spark brings packets to tasks by their number, and has nothing else to do.
    assert any("Exchange" in line for line in lines)
    assert not [line for line in lines if "Join" in line or "Aggregate" in line]
    sorts = {column for line in lines if "Sort [" in line for column in re.findall(r"(\w+)#", line)}
    assert sorts <= {"place"}


# X5
def test_only_keys_of_the_target_are_sent(lake: str) -> None:
    target(f"{lake}/t")
    location = locate(f"{lake}/t")
    scan = ScanFile(
        number=FileNumber(0),
        path=f"{lake}/t/0.parquet",
        groups=[GroupNumber(0)],
        constants={},
        partition=UNKNOWN_PARTITION,
    )
    spec: Any = SimpleNamespace(store=location.store, keys=["id"])
    inputs = encode_inputs([(0, 0, scan)]).to_batches()
    sent = list(emit_target_keys(spec, [pa.int64()], 3, iter(inputs)))
    assert sum(batch.nbytes for batch in sent) < ROWS * 30
    rows = sum(
        decode_packet(packet.as_py(), make_key_schema([pa.int64()])).num_rows
        for batch in sent
        for packet in batch.column("packet")
    )
    assert rows == ROWS


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the physical plan of everything that is run."""
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415  slow to import

    plans: list[str] = []

    def watched(name: str) -> Any:
        inner = getattr(DataFrame, name)

        def outer(frame: Any, *arguments: Any) -> Any:
            plans.append(frame._jdf.queryExecution().executedPlan().toString())
            return inner(frame, *arguments)

        return outer

    for name in ("toArrow", "count"):
        monkeypatch.setattr(DataFrame, name, watched(name))
    return plans


# X2
def test_only_the_dataframe_api_is_used() -> None:
    forbidden = {"sparkContext", "_jvm", "_jsc", "_jdf", "_sc", "rdd", "_jsparkSession", "sqlContext"}
    for path in sorted(Path(engine.__file__).parent.glob("*.py")):
        if path.name == "pins.py":
            # It asks Java whether a plan can still be reached, and keeps snapshots where there is no Java to ask.
            continue
        names = {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
        assert not names & forbidden, path.name


# X4
def test_what_a_lost_attempt_has_staged_is_not_published(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    io.merge(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", key_columns="id")
    marker = Path(lake) / "failed"

    def fail_once(batches: Any) -> Any:
        yield from batches
        if not marker.exists():
            marker.touch()
            message = "this attempt is lost after its rows are written"
            raise RuntimeError(message)

    frame = spark.range(2, 5).selectExpr("id", "'new' v").repartition(1).mapInArrow(fail_once, "id long, v string")
    if spark.conf.get("spark.master", "local") == "local[2]":
        # A local session tries once: the merge fails, and nothing is left.
        with pytest.raises(Exception, match="this attempt is lost"):
            io.merge(frame, f"{lake}/t", key_columns="id")
    result = io.merge(frame, f"{lake}/t", key_columns="id")
    assert (result.updated, result.inserted) == (1, 2)
    assert [row["v"] for row in read_rows(io, f"{lake}/t")] == ["a", "new", "new", "new"]
    assert not list((Path(lake) / ".t.merganser").glob(".staging*"))


# X1
def test_footers_of_many_files_are_read_by_executors(
    broadcast_io: AnyDatasetIO, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in range(10):
        put(f"{lake}/t/{file}.parquet", pa.table({"id": [file, file + 100], "v": ["a", "b"]}))
    here: list[str] = []

    def watched(store: Any, path: str, shown: str) -> Any:
        here.append(shown)
        return read_footer(store, path, shown)

    monkeypatch.setattr(dataset, "read_footer", watched)
    monkeypatch.setattr(spark_engine, "MAX_DRIVER_FILES", 3)
    monkeypatch.setattr(spark_engine, "_FILES_PER_TASK", 4)
    result = broadcast_io.merge(pa.table({"id": [7, 200], "v": ["new", "new"]}), f"{lake}/t", key_columns="id")
    assert (result.target_count_before, result.updated, result.inserted) == (20, 1, 1)
    # The others are compared with the footer of the first file.
    assert [Path(name).name for name in here] == ["0.parquet"]


# X3
def test_a_plan_evaluates_its_source_once_too(broadcast_io: AnyDatasetIO, spark: Any, lake: str) -> None:
    broadcast_io.merge(pa.table({"id": [1, 2], "v": ["a", "b"]}), f"{lake}/t", key_columns="id")
    marks = Path(lake) / "marks"
    marks.mkdir()

    def marked(batches: Any) -> Any:
        (marks / uuid.uuid4().hex).touch()
        yield from batches

    frame = spark.range(2, 5, 1, 1).selectExpr("id", "'new' v").mapInArrow(marked, "id long, v string")
    planned = broadcast_io.plan(frame, f"{lake}/t", key_columns="id")
    assert (planned.updated, planned.inserted, len(list(marks.iterdir()))) == (1, 2, 1)
