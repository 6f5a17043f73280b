"""Work on executors: tasks out, answers and errors back.

A task is a function of this package, sent by name, so executors need the package (see `ship`). What it refuses comes
back as the error that it raised, not as Spark's report of a failed Python worker.

Orders and answers are pickled. They are columns that these functions make, beside the columns of rows or in frames of
their own, so no value of a source or target can become one.
"""

from __future__ import annotations

import pickle
import re
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from merganser.engines.spark.error_transport import (
    SIGNING_KEY,
    decode_error,
    encode_error,
    find_signed_error,
    sign_error,
)
from merganser.engines.spark.types import to_spark_schema
from merganser.errors import DatasetMergeError, MerganserError, OutOfMemoryError, StagingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]

RESULT_SCHEMA = "number int, answer binary, error string"
_TASK_ARROW_SCHEMA = pa.schema([("number", pa.int32()), ("packed", pa.binary())])
_RESULT_ARROW_SCHEMA = pa.schema([("number", pa.int32()), ("answer", pa.binary()), ("error", pa.string())])
_MAX_UNSHUFFLED_TASKS = 4
_SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
# Rows that come one by one fail with the error of Java itself; the client of Spark Connect alone has no Java.
with suppress(ImportError):
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    _SPARK_ERRORS += (Py4JJavaError,)
# Every line before the first traceback of a Python worker: no row has a say in these.
_PREAMBLE_LINE = re.compile(
    r"\s*|\tat .*|An error occurred while calling \S+|(?:Caused by|): \S+: Exception thrown in awaitResult: |"
    r"(?:(?:Caused by|): \S+PythonException: )?\s*(?:(?:\[PYTHON_EXCEPTION\] )?An exception was thrown from .*)?"
)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def run_tasks(spark: SparkSession, task: Callable[[Any], Any], task_inputs: Sequence[Any]) -> list[Any]:
    """Run a task once for each order, wherever there is room, and give the answers in the order of the orders."""
    return collect_results(
        make_task_frame(spark, task_inputs).mapInArrow(partial(_run_each, SIGNING_KEY, task), RESULT_SCHEMA)
    )


def make_task_frame(spark: SparkSession, task_inputs: Sequence[Any]) -> DataFrame:
    """Give a DataFrame of numbered orders, one partition each."""
    columns = [range(len(task_inputs)), [pickle.dumps(order) for order in task_inputs]]
    frame = create_small_frame(spark, pa.table(columns, schema=_TASK_ARROW_SCHEMA))
    # So few rows Spark lays out over its cores by itself, without a shuffle.
    return frame if len(task_inputs) <= _MAX_UNSHUFFLED_TASKS else frame.repartitionById(len(task_inputs), "number")


def create_small_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Give a few rows of the driver's to Spark."""
    # Connect cannot tell the schema of a table without rows.
    return spark.createDataFrame(table, to_spark_schema(table.schema))


def collect_results(frame: DataFrame) -> list[Any]:
    """Run what gives answers, and give them by number; an error among them is raised."""
    with translate_errors():
        table = frame.toArrow().sort_by("number")
    error = next(filter(None, table.column("error").to_pylist()), None)
    if error is not None:
        raise decode_error(error)
    return [pickle.loads(answer) for answer in table.column("answer").to_pylist()]  # noqa: S301  our own


def encode_result(number: int, result: Any) -> pa.RecordBatch:
    """Give an answer the form in which it goes back."""
    return _to_batch(number, pickle.dumps(result), None)


def _to_batch(number: int, result: bytes | None, error: str | None) -> pa.RecordBatch:
    arrays = [
        pa.array([value], kind) for value, kind in zip((number, result, error), _RESULT_ARROW_SCHEMA.types, strict=True)
    ]
    return pa.record_batch(arrays, schema=_RESULT_ARROW_SCHEMA)


def decode_tasks(batches: Batches) -> Iterator[tuple[int, Any]]:
    """Give the orders of a partition."""
    for batch in batches:
        for number, packed in zip(batch.column("number").to_pylist(), batch.column("packed").to_pylist(), strict=True):
            yield number, pickle.loads(packed)  # noqa: S301  our own


def _run_each(key: bytes, task: Callable[[Any], Any], batches: Batches) -> Batches:
    for number, order in decode_tasks(batches):
        try:
            answer = task(order)
        except MerganserError as error:
            yield _to_batch(number, None, encode_error(error))
        except (OSError, MemoryError) as error:
            # Another attempt may fare better; only the last one's error is the driver's.
            raise _to_signed_error(error, key) from error
        else:
            yield encode_result(number, answer)


def tag_errors(work: Callable[..., Batches], *arguments: Any) -> Callable[[Batches], Batches]:
    """Let the errors of work that gives rows, not answers, be known again by `translate_errors`."""
    return partial(_run_tagged, SIGNING_KEY, work, arguments)


def _run_tagged(key: bytes, work: Callable[..., Batches], arguments: Iterable[Any], batches: Batches) -> Batches:
    try:
        yield from work(*arguments, batches)
    except (MerganserError, OSError, MemoryError) as error:
        raise _to_signed_error(error, key) from error


def _to_signed_error(error: MerganserError | OSError | MemoryError, key: bytes) -> RuntimeError:
    """Write an error into one that Spark reports by its text; of one that is not ours, only the words are kept."""
    if isinstance(error, MemoryError) and not isinstance(error, MerganserError):
        error = OutOfMemoryError(
            f"An executor is out of memory: {str(error) or 'no more could be allocated'}. Give executors more memory "
            "beside Java's (spark.executor.memoryOverhead), or work on fewer rows at a time."
        )
    elif not isinstance(error, MerganserError):
        error = StagingError(f"An executor cannot read or write: {error}. See to space and permissions there.")
    return RuntimeError(f"{error} ({sign_error(error, key)})")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn Spark's report of a failed task into the error that made it fail."""
    try:
        yield
    except _SPARK_ERRORS as error:
        text = str(error)
        found = find_signed_error(text, SIGNING_KEY)
        if found is not None:
            raise found from None
        missing = find_missing_module(text)
        if missing is not None:
            message = (
                f"The Python of the executors has no module {missing!r}. For merganser itself, call "
                "merganser.engines.spark.package(spark) or submit with --py-files; for others, set PYSPARK_PYTHON to a "
                "Python that has them."
            )
            raise DatasetMergeError(message) from error
        raise


def find_missing_module(report: str) -> str | None:
    """Find in Spark's report of a failed task the module that the first traceback ends with, if it is missing."""
    before, _, after = report.partition("Traceback (most recent call last):\n")
    if not all(map(_PREAMBLE_LINE.fullmatch, before.split("\n"))):
        return None
    last = next((line for line in after.split("\n") if not line.startswith(" ")), "")
    found = _MISSING_MODULE.match(last)
    return found and found[1]
