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

from merganser.engines.spark.error_transport import KEY, decode_error, encode_error, seal, unseal
from merganser.engines.spark.types import spark_schema
from merganser.errors import DatasetMergeError, MerganserError, OutOfMemoryError, StagingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]

ANSWERS = "number int, answer binary, error string"
_ORDERS = pa.schema([("number", pa.int32()), ("packed", pa.binary())])
_ANSWERS = pa.schema([("number", pa.int32()), ("answer", pa.binary()), ("error", pa.string())])
_FEW = 4
_FAILURES: tuple[type[Exception], ...] = (PySparkException,)
# Rows that come one by one fail with the error of Java itself; the client of Spark Connect alone has no Java.
with suppress(ImportError):
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    _FAILURES += (Py4JJavaError,)
# Every line before the first traceback of a Python worker: no row has a say in these.
_BEFORE = re.compile(
    r"\s*|\tat .*|An error occurred while calling \S+|(?:Caused by|): \S+: Exception thrown in awaitResult: |"
    r"(?:(?:Caused by|): \S+PythonException: )?\s*(?:(?:\[PYTHON_EXCEPTION\] )?An exception was thrown from .*)?"
)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def spread(spark: SparkSession, task: Callable[[Any], Any], orders: Sequence[Any]) -> list[Any]:
    """Run a task once for each order, wherever there is room, and give the answers in the order of the orders."""
    return answers(orders_frame(spark, orders).mapInArrow(partial(_each, KEY, task), ANSWERS))


def orders_frame(spark: SparkSession, orders: Sequence[Any]) -> DataFrame:
    """Give a DataFrame of numbered orders, one partition each."""
    columns = [range(len(orders)), [pickle.dumps(order) for order in orders]]
    frame = small_frame(spark, pa.table(columns, schema=_ORDERS))
    # So few rows Spark lays out over its cores by itself, without a shuffle.
    return frame if len(orders) <= _FEW else frame.repartitionById(len(orders), "number")


def small_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Give a few rows of the driver's to Spark."""
    # Connect cannot tell the schema of a table without rows.
    return spark.createDataFrame(table, spark_schema(table.schema))


def answers(frame: DataFrame) -> list[Any]:
    """Run what gives answers, and give them by number; an error among them is raised."""
    with explained():
        table = frame.toArrow().sort_by("number")
    error = next(filter(None, table.column("error").to_pylist()), None)
    if error is not None:
        raise decode_error(error)
    return [pickle.loads(answer) for answer in table.column("answer").to_pylist()]  # noqa: S301  our own


def one_answer(number: int, answer: Any) -> pa.RecordBatch:
    """Give an answer the form in which it goes back."""
    return _to_batch(number, pickle.dumps(answer), None)


def _to_batch(number: int, answer: bytes | None, error: str | None) -> pa.RecordBatch:
    arrays = [pa.array([value], kind) for value, kind in zip((number, answer, error), _ANSWERS.types, strict=True)]
    return pa.record_batch(arrays, schema=_ANSWERS)


def unpacked(batches: Batches) -> Iterator[tuple[int, Any]]:
    """Give the orders of a partition."""
    for batch in batches:
        for number, packed in zip(batch.column("number").to_pylist(), batch.column("packed").to_pylist(), strict=True):
            yield number, pickle.loads(packed)  # noqa: S301  our own


def _each(key: bytes, task: Callable[[Any], Any], batches: Batches) -> Batches:
    for number, order in unpacked(batches):
        try:
            answer = task(order)
        except MerganserError as error:
            yield _to_batch(number, None, encode_error(error))
        except (OSError, MemoryError) as error:
            # Another attempt may fare better; only the last one's error is the driver's.
            raise _sealed(error, key) from error
        else:
            yield one_answer(number, answer)


def marked(work: Callable[..., Batches], *given: Any) -> Callable[[Batches], Batches]:
    """Let the errors of work that gives rows, not answers, be known again by `explained`."""
    return partial(_marking, KEY, work, given)


def _marking(key: bytes, work: Callable[..., Batches], given: Iterable[Any], batches: Batches) -> Batches:
    try:
        yield from work(*given, batches)
    except (MerganserError, OSError, MemoryError) as error:
        raise _sealed(error, key) from error


def _sealed(error: MerganserError | OSError | MemoryError, key: bytes) -> RuntimeError:
    """Write an error into one that Spark reports by its text; of one that is not ours, only the words are kept."""
    if isinstance(error, MemoryError) and not isinstance(error, MerganserError):
        error = OutOfMemoryError(
            f"An executor is out of memory: {str(error) or 'no more could be allocated'}. Give executors more memory "
            "beside Java's (spark.executor.memoryOverhead), or work on fewer rows at a time."
        )
    elif not isinstance(error, MerganserError):
        error = StagingError(f"An executor cannot read or write: {error}. See to space and permissions there.")
    return RuntimeError(f"{error} ({seal(error, key)})")


@contextmanager
def explained() -> Iterator[None]:
    """Turn Spark's report of a failed task into the error that made it fail."""
    try:
        yield
    except _FAILURES as error:
        text = str(error)
        found = unseal(text, KEY)
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
    if not all(map(_BEFORE.fullmatch, before.split("\n"))):
        return None
    last = next((line for line in after.split("\n") if not line.startswith(" ")), "")
    found = _MISSING.match(last)
    return found and found[1]
