"""From raw files to clean rows: read, rename, cast, derive, filter, and tell the rows that fail a rule.

Every row of a source that its filters keep comes out once, with the names of the rules that it fails: none of them
makes it clean. What a row was in its file is kept beside it, for the quarantine.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that
from pyspark.sql.types import StringType, StructType

from merganser.core.dataset.snapshot import check_plain
from merganser.core.storage.location import locate
from merganser.errors import PipelineError, UnsupportedFileError
from merganser.graph.sqlite.sql import backquoted
from merganser.pipeline.config.field_types import expressions
from merganser.pipeline.config.tables import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from merganser.pipeline.config.tables import Dataset, Node, Pipeline, Source, Table

CORRUPT = "_corrupt_record"
# Columns that a row carries beside its own.
FAILED, RAW, FILE = "_merganser_failed", "_merganser_raw", "_merganser_file"
OURS = (FAILED, RAW, FILE)
# The rules that there are without a [[check]].
MALFORMED, CAST, NULL_KEY = "malformed", "cast ", "null key "
# The formats whose readers keep the text of a row that they cannot read.
_KEEP_TEXT = ("csv", "json")
# The options of a reader that choose files.
_CHOOSE = {"recursivefilelookup", "pathglobfilter", "modifiedafter", "modifiedbefore", "basepath"}
# Whatever the session says, a file that cannot be read is an error.
_STRICT = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


@dataclass(frozen=True, slots=True)
class Raw:
    """The files of a source as Spark reads them, and the column with the text of rows that it cannot read."""

    frame: DataFrame
    corrupt: str | None


def list_files(spark: SparkSession, source: Source) -> list[tuple[str, int, int]]:
    """List the files of a source: path, size and microsecond of the last change."""
    chosen = {name: _setting(value) for name, value in source.options.items() if name.lower() in _CHOOSE}
    if source.format == "parquet":
        _check_plain(source)
    with running(source, "listing its files"), explained(source, "path"):
        found, below = (
            spark.read.format("binaryFile").options(**{**chosen, **more}).load(list(source.path))
            for more in ({}, {"recursiveFileLookup": "true"})
        )
        rows = found.select("path", "length", F.unix_micros("modificationTime")).collect()
        unread = below.select("path").join(found.select("path"), "path", "left_anti").limit(1).collect()
    if unread or not rows:
        what = f"{unread[0][0]} lies in a folder below, which is not read" if unread else "there is no file"
        message = f"{what}. Correct the path, or set recursiveFileLookup = true in options."
        raise source.refuse("path", message)
    return sorted((str(path), int(size), int(changed)) for path, size, changed in rows)


def _check_plain(source: Source) -> None:
    """Refuse folders of this machine that are tables of another format: Spark would read their dead files too."""
    for path in filter(os.path.isdir, source.path):
        try:
            check_plain(locate(path))
        except UnsupportedFileError as error:
            raise source.refuse("path", str(error)) from error


def read_raw(spark: SparkSession, source: Source) -> Raw:
    """Open the files of a source, each row with the path of its file."""
    with running(source, "looking at its files"), explained(source, "schema"):
        # Asked for, the schema is parsed or inferred.
        schema = _reader(spark, source, source.schema).load(list(source.path)).schema
        keeps = source.format in _KEEP_TEXT
        if keeps and CORRUPT not in schema.names:
            schema = StructType([*schema.fields]).add(CORRUPT, StringType())
        frame = _reader(spark, source, schema if keeps else source.schema).load(list(source.path))
        return Raw(frame.select("*", F.col("_metadata.file_path").alias(FILE)), CORRUPT if keeps else None)


def _reader(spark: SparkSession, source: Source, schema: StructType | str | None) -> DataFrameReader:
    reader = spark.read.format(source.format).options(**_STRICT)
    if source.format in _KEEP_TEXT:
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    reader = reader.options(**{name: _setting(value) for name, value in source.options.items()})
    return reader if schema is None else reader.schema(schema)


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def clean_rows(raw: Raw, source: Source, pipeline: Pipeline) -> DataFrame:
    """Give every row that the filters keep, with the rules that it fails and, if it fails any, its raw text."""
    read = [name for name in raw.frame.columns if name not in {FILE, raw.corrupt}]
    whole = raw.frame.select("*", F.struct(*(F.col(backquoted(name)) for name in read)).alias(RAW))
    frame, uncast = _shaped(whole, read, source)
    malformed = F.lit(False) if raw.corrupt is None else F.col(backquoted(raw.corrupt)).isNotNull()  # noqa: FBT003 - SQL's
    kept = F.lit(True)  # noqa: FBT003 - as above
    for condition in source.where:
        with explained(source, "where"):
            kept &= _checked(frame, condition)
    failed = F.filter(
        F.array(*(F.when(fails, F.lit(name)) for name, fails in [*uncast, *_rules(frame, source, pipeline)])),
        lambda name: name.isNotNull(),
    )
    # What a malformed row lacks says nothing more.
    failed = F.when(malformed, F.array(F.lit(MALFORMED))).otherwise(F.array_distinct(failed.cast("array<string>")))
    own = [name for name in _shown(frame) if name not in {raw.corrupt, *source.drop}]
    # Nor does a filter, of a row whose values are not what they were.
    told = reduce(Column.__or__, [malformed, *(lost for _, lost in uncast)])
    marked = frame.where(told | F.coalesce(kept, F.lit(False))).withColumn(FAILED, failed)  # noqa: FBT003 - as above
    text = F.when(malformed, F.col(backquoted(raw.corrupt or FILE))).otherwise(F.to_json(RAW))
    row = F.when(F.size(FAILED) > 0, text).alias(RAW)
    return marked.select(*(F.col(backquoted(name)) for name in own), FAILED, row, FILE)


def is_clean() -> Column:
    """Give the condition that clean rows meet."""
    return F.size(FAILED) == 0


def _shaped(frame: DataFrame, read: Sequence[str], source: Source) -> tuple[DataFrame, list[tuple[str, Column]]]:
    """Rename, cast and derive; give the rows, and for each cast the condition that it lost a value."""
    for old in source.rename:
        if old not in read:
            message = f"the files have no column {old!r}. They have: {', '.join(read)}."
            raise source.refuse("rename", message)
    renamed = [source.rename.get(name, name) for name in read]
    twice = next((name for name, count in Counter(renamed).items() if count > 1), None)
    if twice is not None:
        message = f"two columns would be {twice!r}. Rename or drop the other."
        raise source.refuse("rename", message)
    frame = frame.withColumnsRenamed(dict(source.rename))
    uncast = []
    for name, kind in source.cast.items():
        if name not in frame.columns:
            message = f"there is no column {name!r} to cast. Columns after renaming: {', '.join(_shown(frame))}."
            raise source.refuse("cast", message)
        lost = f"_merganser_uncast_{name}"
        with explained(source, f"cast.{name}"):
            column = F.col(backquoted(name))
            cast = column.try_cast(kind)
            frame = frame.withColumn(lost, column.isNotNull() & cast.isNull()).withColumn(name, cast)
            uncast.append((f"{CAST}{name}", F.col(backquoted(lost))))
    for name, expression in source.derive.items():
        with explained(source, f"derive.{name}"):
            frame = frame.withColumn(name, F.expr(expression))
    for name in source.drop:
        if name not in frame.columns:
            message = f"there is no column {name!r} to drop. The columns are: {', '.join(_shown(frame))}."
            raise source.refuse("drop", message)
    return frame, uncast


def _shown(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not name.startswith("_merganser_")]


def _rules(frame: DataFrame, source: Source, pipeline: Pipeline) -> Iterator[tuple[str, Column]]:
    """Give the rules that rows may fail, each with the condition under which they do."""
    for dataset in pipeline.dataset:
        if dataset.source == source.name:
            for name in dataset.key_columns:
                yield _null_key(frame, dataset, "key_columns", name, dataset.expression(name))
    for part in pipeline.parts:
        if part.source == source.name and not part.skip_null_keys:
            for name, expression in match_expressions(part):
                yield _null_key(frame, part, "match", name, expression)
    for check in pipeline.rules(source.name):
        with explained(check, "rule"):
            yield check.name, ~F.coalesce(_checked(frame, check.rule), F.lit(False))  # noqa: FBT003 - as above


def match_expressions(part: Node | Edge) -> list[tuple[str, str]]:
    """Give what identifies a part's records, and the nodes that they connect."""
    ends = {"from_node": part.from_node, "to_node": part.to_node} if isinstance(part, Edge) else {}
    of_ends = [(f"{key}.{name}", text) for key, end in ends.items() for name, text in expressions(end.match).items()]
    return [*expressions(part.match).items(), *of_ends]


def _null_key(
    frame: DataFrame, user: Dataset | Node | Edge, key: str, name: str, expression: str
) -> tuple[str, Column]:
    with explained(user, key):
        column = F.expr(expression)
        frame.select(column).schema  # noqa: B018 - analyses it
        named = user.type if not hasattr(user, "name") else user.name
        return f"{NULL_KEY}{named}.{name}", column.isNull()


def _checked(frame: DataFrame, condition: str) -> Column:
    """Give a condition that Spark can tell of these rows."""
    column = F.expr(condition)
    frame.where(column).schema  # noqa: B018 - analyses it
    return column


@contextmanager
def explained(table: Table, key: str) -> Iterator[None]:
    """Name the table and key that Spark objects to."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise table.refuse(key, f"Spark says: {_first(error)} Correct it.") from error


@contextmanager
def running(table: Table, doing: str) -> Iterator[None]:
    """Name the table that Spark failed on."""
    try:
        yield
    except PySparkException as error:
        message = (
            f"{table.label}: {doing} failed. Spark says: {_first(error)} What was merged before is whole; correct the "
            "cause and run again, and it goes on from there."
        )
        raise PipelineError(message) from error


def _first(error: PySparkException) -> str:
    """Give Spark's sentence without its plan and its stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n'", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("== SQL", "---"))]
    return " ".join(lines[:3])[:500]
