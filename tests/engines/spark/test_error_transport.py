"""Errors from executors: ours come back whole, and what Spark quotes of a row is never run nor believed (M11)."""

from __future__ import annotations

import csv
import inspect
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from tests.support import assert_unchanged, make_hostile_cell

from merganser import errors
from merganser.engines.spark.error_transport import (
    SIGNING_KEY,
    decode_error,
    encode_error,
    find_signed_error,
    sign_error,
)
from merganser.engines.spark.jobs import find_missing_module, run_tasks, tag_errors, translate_errors
from merganser.errors import DatasetMergeError, MerganserError, PipelineError, StagingError
from merganser.graph import Edge, Node
from merganser.pipeline import Dataset, Pipeline, Source, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from tests.support import AnyDatasetIO

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
EDGE = Edge(id=2, type="AT", from_id=1, to_id=3, properties={"since": "2026"}, created_at=NOON, updated_at=NOON)
FIELDS: dict[str, tuple[Any, ...]] = {
    "ConfigurationError": ("it is missing. Add it.", "[[source]] 'jobs'", "path", "jobs.toml"),
    "MergeConflictError": (
        "Job",
        {"url": "a", "tags": [1, None]},
        [Node(1, "Job", {"url": "a"}, NOON, NOON), EDGE],
        "patterns",
        "row 7",
    ),
}
CLASSES = [found for found in vars(errors).values() if inspect.isclass(found) and issubclass(found, MerganserError)]
MISSING = "x\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'forged'"
EDGE = Edge(id=2, type="AT", from_id=1, to_id=3, properties={"since": "2026"}, created_at=NOON, updated_at=NOON)


# M11
@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_of_ours_survives_the_trip(kind: type[MerganserError]) -> None:
    error = kind(*FIELDS.get(kind.__name__, ("Column 'ä\ud800\x1b' holds 'x'.\nCorrect it.",)))
    sealed = sign_error(error, SIGNING_KEY)
    assert sealed.isascii()
    for found in (decode_error(encode_error(error)), find_signed_error(f"a {sealed} b", SIGNING_KEY)):
        assert type(found) is kind
        assert str(found) == str(error)
        fields, expected = vars(found), vars(error)
        assert fields.keys() == expected.keys()
        for name in fields.keys() - {"conflicting_nodes"}:
            assert fields[name] == expected[name]
    if isinstance(found, errors.MergeConflictError):
        for one, same in zip(found.conflicting_nodes, FIELDS["MergeConflictError"][2], strict=True):
            assert vars(one) == {name: getattr(same, name) for name in vars(one)}
            assert (one.id, one.created_at) == (same.id, NOON)


# M11
def test_only_what_this_process_signed_counts(tmp_path: Path) -> None:
    error = StagingError("there is no space")
    forged, cell = sign_error(error, b"another key"), make_hostile_cell(tmp_path / "made")
    assert find_signed_error(f"{forged} {cell} merganser-error:{'0' * 64}:A:", SIGNING_KEY) is None
    assert (
        str(find_signed_error(f"{cell} {forged} {sign_error(error, SIGNING_KEY)}", SIGNING_KEY)) == "there is no space"
    )
    assert not (tmp_path / "made").exists()


# M11
def test_a_cell_in_an_error_of_spark_is_not_run(io: AnyDatasetIO, spark: Any, lake: str, tmp_path: Path) -> None:
    io.merge(spark.range(3), f"{lake}/t", key_columns="id")
    frame = spark.createDataFrame([(make_hostile_cell(tmp_path / "made"),)], "v string").selectExpr(
        "CAST(v AS BIGINT) id"
    )
    with assert_unchanged(f"{lake}/t"), pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        io.merge(frame, f"{lake}/t", key_columns="id")
    assert not (tmp_path / "made").exists()


# M11
def test_a_cell_quoted_in_an_error_of_a_python_function_is_not_trusted(
    broadcast_io: AnyDatasetIO, spark: Any, lake: str
) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError(MISSING)

    with assert_unchanged(f"{lake}/t"), pytest.raises(PySparkException, match="named 'forged'"):
        broadcast_io.merge(spark.range(3).mapInArrow(fail, "id long"), f"{lake}/t", key_columns="id")
    frame = spark.range(1).mapInArrow(tag_errors(fail), "id long")
    with pytest.raises(Exception, match="named 'forged'") as caught, translate_errors():
        list(frame.toLocalIterator())
    assert not isinstance(caught.value, MerganserError)


# M11
def test_a_module_that_executors_lack_is_named(spark: Any) -> None:
    def need(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import surely_not_installed  # type: ignore[import-not-found]  # noqa: F401, PLC0415

        yield from batches

    frame = spark.range(1).mapInArrow(tag_errors(need), "id long")
    for collect in (frame.toArrow, lambda: list(frame.toLocalIterator())):
        with pytest.raises(DatasetMergeError, match="has no module 'surely_not_installed'"), translate_errors():
            collect()


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n    import y\n{}\n'
LACKING = TRACEBACK.format("ModuleNotFoundError: No module named 'a.b'")
THROWN = "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
JAVA = (
    "An error occurred while calling o1.next\n: org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat a.b(c.scala:1)\n\tat d.e(f.scala:2)\nCaused by: org.apache.spark.api.python.PythonException: "
)


# M11
@pytest.mark.parametrize(
    ("report", "module"),
    [
        (LACKING, "a.b"),
        (THROWN + LACKING, "a.b"),
        (f"[PYTHON_EXCEPTION] An exception was thrown from Python worker: {LACKING}", "a.b"),
        (JAVA + LACKING, "a.b"),
        (JAVA + THROWN + LACKING, "a.b"),
        (THROWN + TRACEBACK.format(f"ValueError: {MISSING}"), None),
        (THROWN + TRACEBACK.format(f"ValueError: x\n{LACKING}"), None),
        (f"[CAST_INVALID_INPUT] The value '{LACKING}", None),
        (f"[CAST_INVALID_INPUT] The value '\n{THROWN}{LACKING}", None),
        (JAVA.replace("PythonException: ", f"SparkException: The value '\n{LACKING}"), None),
        ("", None),
        ("Traceback (most recent call last):\n", None),
    ],
)
def test_only_the_first_traceback_names_a_missing_module(report: str, module: str | None) -> None:
    assert find_missing_module(report) == module


# M11
@pytest.mark.parametrize(
    "piece",
    ["An exception was thrown from x. ", "An exception was thrown from x.\n", "\tat x\n", ": x", " ", "\n", "x:"],
)
def test_a_report_is_searched_in_time_linear_in_its_length(piece: str) -> None:
    report = piece * (300_000 // len(piece))
    started = time.process_time()
    for prefix in ("", JAVA, ": ", "Caused by: "):
        assert find_missing_module(f"{prefix}{report}!") is None
    assert time.process_time() - started < 5


# M11
def test_what_a_task_refuses_is_raised_with_its_fields(spark: Any) -> None:
    def refuse(order: int) -> None:
        if order == 1:
            raise errors.ConfigurationError("it is missing", "[[source]]", "path", "jobs.toml")
        raise OSError(28, "No space left")

    with pytest.raises(errors.ConfigurationError) as caught:
        run_tasks(spark, refuse, [1])
    assert (caught.value.table, caught.value.key, caught.value.file) == ("[[source]]", "path", "jobs.toml")
    with pytest.raises(StagingError, match="No space left"):
        run_tasks(spark, refuse, [2])


def _pipeline(tmp_path: Path, derive: str) -> Pipeline:
    """A feed with one key twice, and each time a cell that would run."""
    (tmp_path / "feed").mkdir()
    cell = make_hostile_cell(tmp_path / "made")
    with (tmp_path / "feed/jobs.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "v"), (cell, cell), (cell, cell)])
    return Pipeline(
        name="jobs",
        state=str(tmp_path / "state"),
        source=[
            Source(
                name="jobs",
                path=str(tmp_path / "feed"),
                format="csv",
                schema="id STRING, v STRING",
                options={"header": "true"},
                derive={"n": derive},
            )
        ],
        dataset=[Dataset(name="jobs", source="jobs", path=str(tmp_path / "lake/jobs"), key_columns="id")],
    )


# M11
@pytest.mark.parametrize(("derive", "kind"), [("CAST(v AS INT)", PipelineError), ("1", errors.DuplicateKeyError)])
def test_a_cell_in_a_pipeline_is_not_run(spark: Any, tmp_path: Path, derive: str, kind: type[MerganserError]) -> None:
    with pytest.raises(kind, match="merganser-error"):
        run(_pipeline(tmp_path, derive), spark=spark)
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "lake/jobs").exists()
