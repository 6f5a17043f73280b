"""Records as rows of a dataset: a column for each property, from `new` or `found`, and the times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.model.schema_checks import check_types
from merganser.core.model.widening import find_common_type
from merganser.errors import InvalidArgumentError
from merganser.graph.spark.columns import KEY_COLUMNS, TIME_COLUMNS, to_column_name
from merganser.graph.spark.properties import build_condition
from merganser.graph.spark.reading import to_column
from merganser.graph.spark.record_set import FileRecords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from merganser.engines.spark import SparkDatasetIO
    from merganser.engines.spark.row_files import SelectedRows
    from merganser.graph.spark.folders import Folder
    from merganser.graph.spark.missing import MissingFrame
    from merganser.graph.spark.record_set import Records
    from merganser.graph.values import Value

# The column of existing records that tells whether they meet the condition.
MEETS_CONDITION = "meets condition"
_TIME = pa.timestamp("us", "UTC")


class RecordRows:
    """The records of a merge, as rows for a dataset; `schema` is None if it does not exist yet."""

    def __init__(self, records: Records, folder: Folder, schema: pa.Schema | None) -> None:
        self._records, self._folder = records, folder
        self._existing_columns = [] if schema is None else schema.names
        self._new = self._map_columns("new")
        self._found = self._map_columns("found")
        self._check_case()
        self._now = time.time_ns() // 1000
        if schema is not None:
            have = self._make_schema()
            both = [field for field in schema if field.name in have.names]
            # Columns whose types have a common one are widened to that.
            check_types(
                have, pa.schema([one for one in both if not find_common_type(one.type, have.field(one.name).type)])
            )

    @property
    def overwritten_columns(self) -> list[str]:
        """The columns to overwrite in records that exist."""
        return list(self._found)

    @property
    def columns(self) -> list[str]:
        """All columns of the rows."""
        return list(self._make_schema().names)

    def make_rows(self, known: DataFrame | None, missing: MissingFrame | None = None) -> DataFrame | SelectedRows:
        """Make a row for each record; `known` are those that exist, if it matters. Missing records are added.

        Records that do not meet the condition get no row.
        """
        if missing is not None:
            return missing.add_to(self._make_frame(known), F.timestamp_micros(F.lit(self._now)))
        if known is None and isinstance(self._records, FileRecords):
            now = pa.scalar(self._now, _TIME)
            names = {column: name for column, (name, _) in self._new.items()}
            return self._records.select_columns(names, dict.fromkeys(TIME_COLUMNS, now))
        return self._make_frame(known)

    def _make_frame(self, known: DataFrame | None) -> DataFrame:
        frame = self._records.frame
        if known is not None:
            frame = frame.join(known.withColumnRenamed("id", "known"), F.col("id") == F.col("known"), "left")
            frame = frame.where(F.col("known").isNull() | F.col(MEETS_CONDITION))
        now = F.timestamp_micros(F.lit(self._now))
        return frame.select(
            *KEY_COLUMNS[self._folder.kind],
            *(
                self._choose_value(column, name, is_known=known is not None).alias(column)
                for column, (name, _) in self._new.items()
            ),
            *(now.alias(name) for name in TIME_COLUMNS),
        )

    def _make_schema(self) -> pa.Schema:
        keys = dict.fromkeys(KEY_COLUMNS[self._folder.kind], pa.string())
        properties = {column: data_type for column, (_, data_type) in self._new.items()}
        return pa.schema({**keys, **properties, **dict.fromkeys(TIME_COLUMNS, _TIME)})

    def _choose_value(self, column: str, property_name: str, *, is_known: bool) -> Column:
        new = F.col("new").getField(property_name)
        if not is_known or column not in self._found:
            return new
        return F.when(F.col("known").isNull(), new).otherwise(F.col("found").getField(property_name))

    def _map_columns(self, form: str) -> dict[str, tuple[str, pa.DataType]]:
        """Map columns to properties and types; a property that is always NULL gets no new column."""
        types = self._records.types.get(form, {})
        columns = {to_column_name(name, self._folder.kind): (name, data_type) for name, data_type in types.items()}
        return {
            column: (name, data_type)
            for column, (name, data_type) in columns.items()
            if column in self._existing_columns or not pa.types.is_null(data_type)
        }

    def _check_case(self) -> None:
        existing = {name.lower(): name for name in self._existing_columns}
        for column, (name, _) in self._new.items():
            before = existing.get(column.lower(), column)
            if before != column:
                raise InvalidArgumentError(
                    f"The {self._folder.kind} of type {self._folder.type!r} have a property {before!r}, which differs "
                    f"from {name!r} only in case. Use its name."
                )


def read_known(io: SparkDatasetIO, folder: Folder, schema: pa.Schema, condition: Mapping[str, Value]) -> DataFrame:
    """Read the ids of the existing records, and whether they meet a condition."""
    columns = {name: to_column_name(name, folder.kind) for name in condition}
    columns = {name: column for name, column in columns.items() if column in schema.names}
    frame = io.read_columns(folder.path, ["id", *columns.values()])
    typed = {name: (to_column(column), frame.schema[column].dataType) for name, column in columns.items()}
    # Spark underestimates the size of what a Python function returns, and would broadcast it.
    return frame.select("id", build_condition(typed, condition).alias(MEETS_CONDITION)).hint("merge")
