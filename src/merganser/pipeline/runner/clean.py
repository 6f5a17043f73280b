"""From raw files to clean rows: read, rename, cast, derive, filter, and find the rules that each row fails.

Every row of a source that passes its filters comes out once, with the names of the rules that it fails; a row that
fails none is clean. Its raw form is kept beside it, for the quarantine.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that
from pyspark.sql.types import StringType, StructType

from merganser.core.dataset.listing import check_no_table_format
from merganser.core.storage.location import locate
from merganser.errors import PipelineError, UnsupportedFileError
from merganser.graph.sqlite.sql import quote_spark_identifier
from merganser.pipeline.config.field_types import to_expressions
from merganser.pipeline.config.tables import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from merganser.pipeline.config.table import Table
    from merganser.pipeline.config.tables import Dataset, Node, Pipeline, Source

CORRUPT = "_corrupt_record"
# Columns of staged rows beside their own.
FAILED, RAW, FILE = "_merganser_failed", "_merganser_raw", "_merganser_file"
INTERNAL_COLUMNS = (FAILED, RAW, FILE)
# The built-in rules.
MALFORMED, CAST, NULL_KEY = "malformed", "cast ", "null key "
# The formats whose readers return the text of a malformed row.
_TEXT_FORMATS = ("csv", "json")
# The options of a reader that select files.
_FILE_OPTIONS = {"recursivefilelookup", "pathglobfilter", "modifiedafter", "modifiedbefore", "basepath"}
# An unreadable file is an error, whatever the settings of the session.
_STRICT = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


@dataclass(frozen=True, slots=True)
class RawSource:
    """The rows of a source as Spark reads them, and the column with the text of malformed rows."""

    frame: DataFrame
    corrupt_column: str | None


def list_files(spark: SparkSession, source: Source) -> list[tuple[str, int, int]]:
    """List the files of a source: path, size and modification time in microseconds."""
    chosen = {name: _format_option(value) for name, value in source.options.items() if name.lower() in _FILE_OPTIONS}
    if source.format == "parquet":
        _check_no_table_format(source)
    with translate_run_errors(source, "listing its files"), translate_analysis_errors(source, "path"):
        found, below = (
            spark.read.format("binaryFile").options(**{**chosen, **more}).load(list(source.path))
            for more in ({}, {"recursiveFileLookup": "true"})
        )
        paths = found.inputFiles()
        unread = {*below.inputFiles()}.difference(paths)
    if unread or not paths:
        fault = f"{min(unread)} is in a subfolder, which is not read" if unread else "there is no file"
        raise source.make_error("path", f"{fault}. Correct the path, or set recursiveFileLookup = true in options.")
    if all(path.startswith("file:") for path in paths):
        # A server of Spark Connect may have files that this machine does not.
        with suppress(OSError):
            return sorted(map(_describe_local_file, paths))
    with translate_run_errors(source, "listing its files"):
        rows = found.select("path", "length", F.unix_micros("modificationTime")).collect()
    return sorted((str(path), int(size), int(changed)) for path, size, changed in rows)


def _describe_local_file(url: str) -> tuple[str, int, int]:
    facts = os.stat(url2pathname(urlsplit(url).path))
    return url, facts.st_size, facts.st_mtime_ns // 1000


def _check_no_table_format(source: Source) -> None:
    """Refuse local folders that are tables of another format: Spark would read their obsolete files too."""
    for path in filter(os.path.isdir, source.path):
        try:
            check_no_table_format(locate(path))
        except UnsupportedFileError as error:
            raise source.make_error("path", str(error)) from error


def read_raw(spark: SparkSession, source: Source) -> RawSource:
    """Read the files of a source, each row with the path of its file."""
    with translate_run_errors(source, "inspecting its files"), translate_analysis_errors(source, "schema"):
        # `.schema` makes Spark parse or infer it.
        schema = _make_reader(spark, source, source.schema).load(list(source.path)).schema
        has_corrupt = source.format in _TEXT_FORMATS
        if has_corrupt and CORRUPT not in schema.names:
            schema = StructType([*schema.fields]).add(CORRUPT, StringType())
        frame = _make_reader(spark, source, schema if has_corrupt else source.schema).load(list(source.path))
        return RawSource(frame.select("*", F.col("_metadata.file_path").alias(FILE)), CORRUPT if has_corrupt else None)


def _make_reader(spark: SparkSession, source: Source, schema: StructType | str | None) -> DataFrameReader:
    reader = spark.read.format(source.format).options(**_STRICT)
    if source.format in _TEXT_FORMATS:
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    reader = reader.options(**{name: _format_option(value) for name, value in source.options.items()})
    return reader if schema is None else reader.schema(schema)


def _format_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def clean_rows(raw: RawSource, source: Source, pipeline: Pipeline) -> DataFrame:
    """Clean the rows that pass the filters; each has the rules that it fails and, if it fails any, its raw text."""
    read = [name for name in raw.frame.columns if name not in {FILE, raw.corrupt_column}]
    with_raw = raw.frame.select("*", F.struct(*(F.col(quote_spark_identifier(name)) for name in read)).alias(RAW))
    frame, uncast = _transform_columns(with_raw, read, source)
    corrupt, never, passes = raw.corrupt_column, F.lit(False), F.lit(True)  # noqa: FBT003 - SQL's
    malformed = never if corrupt is None else F.col(quote_spark_identifier(corrupt)).isNotNull()
    for condition in source.where:
        with translate_analysis_errors(source, "where"):
            passes &= _parse_condition(frame, condition)
    failed = F.filter(
        F.array(*(F.when(fails, F.lit(name)) for name, fails in [*uncast, *_list_rules(frame, source, pipeline)])),
        lambda name: name.isNotNull(),
    )
    # All other rules would fail for a malformed row, too.
    failed = F.when(malformed, F.array(F.lit(MALFORMED))).otherwise(F.array_distinct(failed.cast("array<string>")))
    own = [name for name in _list_columns(frame) if name not in {corrupt, *source.drop}]
    # Filters do not apply to a row whose values could not be read.
    unreadable = reduce(Column.__or__, [malformed, *(lost for _, lost in uncast)])
    kept = frame.where(unreadable | F.coalesce(passes, never)).withColumn(FAILED, failed)
    text = F.when(malformed, F.col(quote_spark_identifier(corrupt or FILE))).otherwise(F.to_json(RAW))
    row = F.when(F.size(FAILED) > 0, text).alias(RAW)
    return kept.select(*(F.col(quote_spark_identifier(name)) for name in own), FAILED, row, FILE)


def is_clean() -> Column:
    """Make the condition that clean rows meet."""
    return F.size(FAILED) == 0


def _transform_columns(
    frame: DataFrame, read: Sequence[str], source: Source
) -> tuple[DataFrame, list[tuple[str, Column]]]:
    """Rename, cast and derive columns; also return, for each cast, the condition that it lost a value."""
    for old in source.rename:
        if old not in read:
            raise source.make_error("rename", f"the files have no column {old!r}. They have: {', '.join(read)}.")
    renamed = [source.rename.get(name, name) for name in read]
    duplicate = next((name for name, count in Counter(renamed).items() if count > 1), None)
    if duplicate is not None:
        raise source.make_error("rename", f"two columns would be named {duplicate!r}. Rename or drop the other.")
    frame = frame.withColumnsRenamed(dict(source.rename))
    uncast = []
    for name, data_type in source.cast.items():
        if name not in frame.columns:
            message = f"there is no column {name!r} to cast. Columns after renaming: {', '.join(_list_columns(frame))}."
            raise source.make_error("cast", message)
        lost = f"_merganser_uncast_{name}"
        with translate_analysis_errors(source, f"cast.{name}"):
            column = F.col(quote_spark_identifier(name))
            cast = column.try_cast(data_type)
            frame = frame.withColumn(lost, column.isNotNull() & cast.isNull()).withColumn(name, cast)
            uncast.append((f"{CAST}{name}", F.col(quote_spark_identifier(lost))))
    for name, expression in source.derive.items():
        with translate_analysis_errors(source, f"derive.{name}"):
            frame = frame.withColumn(name, F.expr(expression))
    for name in source.drop:
        if name not in frame.columns:
            message = f"there is no column {name!r} to drop. The columns are: {', '.join(_list_columns(frame))}."
            raise source.make_error("drop", message)
    return frame, uncast


def _list_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not name.startswith("_merganser_")]


def _list_rules(frame: DataFrame, source: Source, pipeline: Pipeline) -> Iterator[tuple[str, Column]]:
    """Yield the rules that rows may fail, each with the condition under which they do."""
    for dataset in pipeline.dataset:
        if dataset.source == source.name and dataset.merge.get("null_keys") != "match":
            for name in dataset.key_columns:
                yield _make_null_key_rule(frame, dataset, "key_columns", name, dataset.find_expression(name))
    for table in pipeline.graph_tables:
        if table.source == source.name and not table.skip_null_keys:
            for name, expression in list_match_expressions(table):
                yield _make_null_key_rule(frame, table, "match", name, expression)
    for check in pipeline.find_checks(source.name):
        with translate_analysis_errors(check, "rule"):
            yield check.name, ~F.coalesce(_parse_condition(frame, check.rule), F.lit(False))  # noqa: FBT003 - as above


def list_match_expressions(table: Node | Edge) -> list[tuple[str, str]]:
    """List the expressions that identify the records of a table, and the nodes that they connect."""
    expressions = [*to_expressions(table.match).items()]
    if isinstance(table, Edge):
        for key, endpoint in (("from_node", table.from_node), ("to_node", table.to_node)):
            expressions += [(f"{key}.{name}", text) for name, text in to_expressions(endpoint.match).items()]
    return expressions


def _make_null_key_rule(
    frame: DataFrame, table: Dataset | Node | Edge, key: str, name: str, expression: str
) -> tuple[str, Column]:
    with translate_analysis_errors(table, key):
        column = F.expr(expression)
        frame.select(column).schema  # noqa: B018 - analyses it
        table_name = table.name if hasattr(table, "name") else table.type
        return f"{NULL_KEY}{table_name}.{name}", column.isNull()


def _parse_condition(frame: DataFrame, condition: str) -> Column:
    """Parse a condition, and let Spark analyse it for these rows."""
    column = F.expr(condition)
    frame.where(column).schema  # noqa: B018 - analyses it
    return column


@contextmanager
def translate_analysis_errors(table: Table, key: str) -> Iterator[None]:
    """Add the table and key to errors of Spark's analysis."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise table.make_error(key, f"Spark reports: {_shorten_error(error)} Correct it.") from error


@contextmanager
def translate_run_errors(table: Table, doing: str) -> Iterator[None]:
    """Add the table to errors of Spark's jobs."""
    try:
        yield
    except PySparkException as error:
        raise PipelineError(
            f"{table.label}: {doing} failed. Spark reports: {_shorten_error(error)} Steps committed before remain; fix "
            "the cause and run again to continue from there."
        ) from error


def _shorten_error(error: PySparkException) -> str:
    """Shorten an error of Spark's to its message, without plan and stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n'", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("== SQL", "---"))]
    return " ".join(lines[:3])[:500]
