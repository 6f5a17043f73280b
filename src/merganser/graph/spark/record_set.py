"""The records of a source: one for each key, in a DataFrame or in row files, to be merged into a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.rows.fold import ROWS, FoldCounts, fold_rows
from merganser.display import pluralize
from merganser.engines.spark.exchange import decode_inputs
from merganser.engines.spark.grouping import Grouping, run_groupings
from merganser.engines.spark.jobs import make_task_frame, tag_errors
from merganser.engines.spark.row_files import RowFiles, SelectedRows, write_row_files
from merganser.engines.spark.types import to_arrow_schema, to_spark_schema
from merganser.errors import KeyColumnError, MerganserError, PropertyValueError
from merganser.graph.spark import collect
from merganser.graph.spark.reading import to_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from merganser.core.rows.fold import FoldPlan
    from merganser.core.storage.location import Location
    from merganser.core.storage.store import Store
    from merganser.engines.spark.row_files import RowFile
    from merganser.graph.spark.record_plan import RecordPlan
    from merganser.graph.values import Value

# The forms of a record: its properties if it is new or was found, and the match properties of the nodes of an edge.
FORMS = ("new", "found", "from_match", "to_match")


@dataclass(frozen=True, kw_only=True)
class Records(ABC):
    """The records of a source; `rows` counts all its rows, `skipped` those with NULL in a match property.

    If `has_differences` is false, the forms `new` and `found` agree in every record, and it need not be known which
    records exist.
    """

    rows: int
    skipped: int
    has_differences: bool
    match_names: tuple[str, ...]
    # The properties that an existing record must have to be overwritten.
    condition: Mapping[str, Value] = field(default_factory=dict)

    @property
    @abstractmethod
    def frame(self) -> DataFrame:
        """A row for each key: `id`, for edges `src` and `dst`, a struct for each form with fields, and `rows`."""

    @property
    @abstractmethod
    def types(self) -> Mapping[str, Mapping[str, pa.DataType]]:
        """The type of each property, by form."""

    @abstractmethod
    def read_tables(self, after: str) -> Iterator[pa.Table]:
        """Read the rows of `frame` with an id after a given one, in the order of ids, in tables of bounded size."""


@dataclass(frozen=True, kw_only=True)
class FrameRecords(Records):
    """Records that Spark has folded."""

    folded: DataFrame

    @property
    def frame(self) -> DataFrame:
        """The records as Spark has folded them."""
        return self.folded

    @cached_property
    def types(self) -> Mapping[str, Mapping[str, pa.DataType]]:
        """The type of each property, by form."""
        return {
            field.name: {inner.name: inner.type for inner in field.type}
            for field in to_arrow_schema(self.frame)
            if field.name in FORMS
        }

    def read_tables(self, after: str) -> Iterator[pa.Table]:
        """Sort the records by id, and read them."""
        # Each partition is about one table: Spark holds a complete partition until the driver takes it.
        remaining = self.frame.where(F.col("id") > after) if after else self.frame
        ranges = remaining.repartitionByRange(self.rows // collect.ROWS + 1, "id").sortWithinPartitions("id")
        yield from collect.stream_tables(ranges, collect.ROWS)


@dataclass(frozen=True, kw_only=True)
class FileRecords(Records):
    """Records in row files, in the order of their ids."""

    spark: SparkSession
    row_files: RowFiles
    # The column of each property, by form.
    columns: Mapping[str, Mapping[str, str]]

    @property
    def keys(self) -> list[str]:
        """The columns of the id and, for edges, of those of both nodes."""
        return [name for name in ("id", "src", "dst") if name in self.row_files.schema.names]

    @cached_property
    def types(self) -> Mapping[str, Mapping[str, pa.DataType]]:
        """The type of each property, by form."""
        schema = self.row_files.schema
        return {
            form: {name: schema.field(column).type for name, column in columns.items()}
            for form, columns in self.columns.items()
        }

    @cached_property
    def frame(self) -> DataFrame:
        """The records as a DataFrame."""
        schema = self.row_files.schema
        read = tag_errors(_read_files, self.row_files.without_files())
        tasks = make_task_frame(self.spark, [file.path for file in self.row_files.files])
        return nest_columns(tasks.mapInArrow(read, to_spark_schema(schema)), self.keys, self.columns)

    def read_tables(self, after: str) -> Iterator[pa.Table]:
        """Read the files one after another."""
        for file in self.row_files.files:
            table = pa.Table.from_batches(self.row_files.read_batches(file.path, self.row_files.schema.names))
            if after:
                table = table.filter(pc.greater(table.column("id"), after))
            for start in range(0, table.num_rows, collect.ROWS):
                yield self._nest(table.slice(start, collect.ROWS).combine_chunks())

    def select_columns(self, columns: Mapping[str, str], constants: Mapping[str, pa.Scalar]) -> SelectedRows:
        """Select the keys, some properties of the form `new` by the names of their columns, and constants."""
        stored = {column: self.columns["new"][name] for column, name in columns.items()}
        return SelectedRows(self.row_files, {**{name: name for name in self.keys}, **stored, **constants}, ("id",))

    def _nest(self, table: pa.Table) -> pa.Table:
        columns = {name: table.column(name).chunk(0) for name in [*self.keys, ROWS]}
        for form, stored in self.columns.items():
            if stored:
                arrays = [table.column(column).chunk(0) for column in stored.values()]
                columns[form] = pa.StructArray.from_arrays(arrays, list(stored))
        return pa.table(columns)


def nest_columns(flat: DataFrame, keys: Sequence[str], columns: Mapping[str, Mapping[str, str]]) -> DataFrame:
    """Make the struct of each form that has columns."""
    structs = [
        F.struct(*(to_column(column).alias(name) for name, column in stored.items())).alias(form)
        for form, stored in columns.items()
        if stored
    ]
    return flat.select(*keys, *structs, ROWS)


def _read_files(row_files: RowFiles, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, path in decode_inputs(batches):
        yield from row_files.read_batches(path, row_files.schema.names)


def fold_row_files(
    spark: SparkSession, tables: Sequence[tuple[RowFiles, RecordPlan]], folder: Location
) -> list[FileRecords | MerganserError]:
    """Fold staged rows into the records of each table, which are written to a folder, or find why they cannot be."""
    store, path = folder.store, folder.root
    groupings = [
        Grouping(rows.select(plan.fold.input_columns), plan.fold.keys["id"], partial(_fold, plan.fold, store, path))
        for rows, plan in tables
    ]
    done = run_groupings(spark, groupings, "fold records")
    return [_collect_records(spark, plan, store, found) for (_, plan), found in zip(tables, done, strict=True)]


def _fold(plan: FoldPlan, store: Store, folder: str, rows: pa.Table) -> tuple[pa.Schema, list[RowFile], FoldCounts]:
    records, counts = fold_rows(rows, plan)
    return records.schema, write_row_files(records.to_batches(), store, folder, records.schema), counts


def _collect_records(
    spark: SparkSession, plan: RecordPlan, store: Store, found: Sequence[tuple[pa.Schema, list[RowFile], FoldCounts]]
) -> FileRecords | MerganserError:
    counts = FoldCounts.add_up([one for _, _, one in found])
    error = find_fault(plan, counts)
    if error is not None:
        return error
    return FileRecords(
        rows=counts.rows,
        skipped=counts.skipped,
        has_differences=counts.differ,
        match_names=tuple(plan.table.roles["match"]),
        spark=spark,
        row_files=RowFiles(store, found[0][0], tuple(file for _, files, _ in found for file in files)),
        columns=plan.fold.output_columns,
    )


def find_fault(plan: RecordPlan, counts: FoldCounts) -> MerganserError | None:
    """Find the first reason why rows cannot become records: NULL in a key, or a value that no record can hold."""
    for (label, reason), count in counts.faults.items():
        rows = pluralize(count, "row")
        if reason:
            return PropertyValueError(f"{label} {reason} in {rows}. Make it NULL, or remove these rows.")
        if not plan.table.skip_null_keys:
            return KeyColumnError(
                f"{label} is NULL in {rows}, and a record cannot be found without it. Skip such rows with "
                "skip_null_keys=True, or clean the source."
            )
    return None
