"""Jobs: task inputs to executors, results and errors back.

A task is a function of this package, sent by name, so executors need the package (see `package`). Its errors reach the
driver as they were raised, not as Spark's report of a failed Python worker.

Task inputs and results are pickled. They are in packets and columns of their own, so no value of a source or target can
become one.
"""

from __future__ import annotations

import pickle
import re
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException

from merganser.engines.spark import error_transport
from merganser.engines.spark.columns import ERROR, NUMBER, RESULT
from merganser.engines.spark.exchange import decode_inputs, encode_inputs
from merganser.engines.spark.partitioning import repartition_by_number
from merganser.engines.spark.types import to_spark_schema
from merganser.errors import DatasetMergeError, MerganserError, OutOfMemoryError, StagingError
from merganser.timeline import record_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]

RESULT_SCHEMA = f"{NUMBER} int, {RESULT} binary, {ERROR} string"
_RESULT_ARROW_SCHEMA = pa.schema([(NUMBER, pa.int32()), (RESULT, pa.binary()), (ERROR, pa.string())])
_MAX_UNSHUFFLED_TASKS = 4
# What most tasks import; PyArrow's joins import pandas, too.
_TASK_MODULES = ("merganser.engines.spark.engine", "merganser.core.merge.stage", "pyarrow.acero")
_SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
# Rows that arrive one by one fail with the error of Java itself; the client of Spark Connect alone has no Java.
with suppress(ImportError):
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    _SPARK_ERRORS += (Py4JJavaError,)
# Every line before the first traceback of a Python worker: none contains a value of a row.
_PREAMBLE_LINE = re.compile(
    r"\s*|\tat .*|An error occurred while calling \S+|(?:Caused by|): \S+: Exception thrown in awaitResult: |"
    r"(?:(?:Caused by|): \S+PythonException: )?\s*(?:(?:\[PYTHON_EXCEPTION\] )?An exception was thrown from .*)?"
)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def run_tasks(
    spark: SparkSession, task: Callable[[Any], Any], task_inputs: Sequence[Any], name: str = "run tasks"
) -> list[Any]:
    """Run a task once for each input, on any executor, and return the results in the order of the inputs."""
    run = partial(_run_each, error_transport.SIGNING_KEY, task)
    return collect_results(make_task_frame(spark, task_inputs).mapInArrow(run, RESULT_SCHEMA), name)


def warm_up(spark: SparkSession) -> None:
    """Let executors start Python and import what tasks need, while the driver has something else to do."""
    run_tasks(spark, _import_modules, range(_MAX_UNSHUFFLED_TASKS))


def _import_modules(_: int) -> None:
    for module in _TASK_MODULES:
        import_module(module)


def make_task_frame(spark: SparkSession, task_inputs: Sequence[Any]) -> DataFrame:
    """Make a DataFrame of numbered task inputs, as packets, one partition each."""
    frame = create_small_frame(spark, encode_inputs((number, 0, one) for number, one in enumerate(task_inputs)))
    # Spark distributes so few rows over its cores by itself, without a shuffle.
    return frame if len(task_inputs) <= _MAX_UNSHUFFLED_TASKS else repartition_by_number(frame, len(task_inputs))


def create_small_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Create a DataFrame of a few rows on the driver."""
    # Connect cannot infer the schema of a table without rows.
    return spark.createDataFrame(table, to_spark_schema(table.schema))


def collect_results(frame: DataFrame, name: str) -> list[Any]:
    """Run a job and return its results by number; an error among them is raised."""
    with watch_job(name):
        table = frame.toArrow().sort_by(NUMBER)
    error = next(filter(None, table.column(ERROR).to_pylist()), None)
    if error is not None:
        raise error_transport.decode_error(error)
    return [pickle.loads(result) for result in table.column(RESULT).to_pylist()]  # noqa: S301  our own


def encode_result(number: int, result: Any) -> pa.RecordBatch:
    """Encode the result of a task for `collect_results`."""
    return _to_batch(number, pickle.dumps(result), None)


def _to_batch(number: int, result: bytes | None, error: str | None) -> pa.RecordBatch:
    arrays = [
        pa.array([value], data_type)
        for value, data_type in zip((number, result, error), _RESULT_ARROW_SCHEMA.types, strict=True)
    ]
    return pa.record_batch(arrays, schema=_RESULT_ARROW_SCHEMA)


def get_partition_id() -> int:
    """Return the number of this task's partition."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _run_each(key: bytes, task: Callable[[Any], Any], batches: Batches) -> Batches:
    for number, task_input in decode_inputs(batches):
        try:
            result = task(task_input)
        except MerganserError as error:
            yield _to_batch(number, None, error_transport.encode_error(error))
        except (OSError, MemoryError) as error:
            # Another attempt may succeed; only the last one's error reaches the driver.
            raise _to_signed_error(error, key) from error
        else:
            yield encode_result(number, result)


def tag_errors(work: Callable[..., Batches], *arguments: Any) -> Callable[[Batches], Batches]:
    """Wrap work that returns rows, not results, so that `translate_errors` finds its errors."""
    return partial(_run_tagged, error_transport.SIGNING_KEY, work, arguments)


def _run_tagged(key: bytes, work: Callable[..., Batches], arguments: Iterable[Any], batches: Batches) -> Batches:
    try:
        yield from work(*arguments, batches)
    except (MerganserError, OSError, MemoryError) as error:
        raise _to_signed_error(error, key) from error


def _to_signed_error(error: MerganserError | OSError | MemoryError, key: bytes) -> RuntimeError:
    """Embed an error in one that Spark reports by its message; only the message of a foreign one is kept."""
    if isinstance(error, MemoryError) and not isinstance(error, MerganserError):
        error = OutOfMemoryError(
            f"An executor is out of memory: {str(error) or 'no more could be allocated'}. Give executors more "
            "non-heap memory (spark.executor.memoryOverhead), or work on fewer rows at a time."
        )
    elif not isinstance(error, MerganserError):
        error = StagingError(f"An executor cannot read or write: {error}. Check free space and permissions there.")
    return RuntimeError(f"{error} ({error_transport.sign_error(error, key)})")


@contextmanager
def watch_job(name: str) -> Iterator[None]:
    """Record the time of a job by a short name, and raise the error that caused it to fail."""
    with record_span("job", name), translate_errors():
        yield


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn Spark's report of a failed task into the error that caused it."""
    try:
        yield
    except _SPARK_ERRORS as error:
        text = str(error)
        found = error_transport.find_signed_error(text, error_transport.SIGNING_KEY)
        if found is not None:
            raise found from None
        missing = find_missing_module(text)
        if missing is not None:
            raise DatasetMergeError(
                f"The Python of the executors has no module {missing!r}. For merganser itself, call "
                "merganser.engines.spark.ship(spark) or submit with --py-files; for others, set PYSPARK_PYTHON to a "
                "Python that has them."
            ) from error
        raise


def find_missing_module(report: str) -> str | None:
    """Find the missing module that the first traceback in Spark's report of a failed task ends with, if any."""
    before, _, after = report.partition("Traceback (most recent call last):\n")
    if not all(map(_PREAMBLE_LINE.fullmatch, before.split("\n"))):
        return None
    last = next((line for line in after.split("\n") if not line.startswith(" ")), "")
    found = _MISSING_MODULE.match(last)
    return found and found[1]
