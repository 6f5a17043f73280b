"""Records as rows of a dataset: a column for each property, from `new` or `found`, and the times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import DataType, NullType, StructType

from merganser.core.model.casts import conform
from merganser.core.model.schema import check_types, is_same_logical_type
from merganser.engines.spark.jobs import tag_errors, translate_errors
from merganser.engines.spark.types import to_arrow_schema
from merganser.errors import InvalidArgumentError
from merganser.graph.spark.columns import KEY_COLUMNS, TIME_COLUMNS, to_column_name
from merganser.graph.spark.reading import to_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from merganser.graph.spark.folders import Folder


class RecordRows:
    """The records of a merge, as rows for a dataset; `schema` is None if it does not exist yet."""

    def __init__(self, records: DataFrame, folder: Folder, schema: pa.Schema | None) -> None:
        self._records, self._folder = records, folder
        self._existing_columns = [] if schema is None else schema.names
        self._new = self._map_columns("new")
        self._found = self._map_columns("found")
        self._check_case()
        # The columns whose values may not fit, each with the type that it has in the dataset.
        self._cast_schema = pa.schema([])
        if schema is not None:
            have = to_arrow_schema(self.make_rows(None))
            both = [field for field in schema if field.name in have.names]
            check_types(pa.schema([have.field(field.name) for field in both]), pa.schema(both))
            different = [field for field in both if not _is_same_type(have.field(field.name).type, field.type)]
            self._cast_schema = pa.schema(different)

    @property
    def overwritten_columns(self) -> list[str]:
        """The columns to overwrite in records that exist."""
        return list(self._found)

    @property
    def missing_columns(self) -> dict[str, DataType]:
        """The columns that the dataset lacks."""
        return {
            column: data_type
            for column, (_, data_type) in self._new.items()
            if self._existing_columns and column not in self._existing_columns
        }

    def make_rows(self, known: DataFrame | None) -> DataFrame:
        """Make a row for each record; `known` are the ids that exist, if it matters."""
        frame = self._records
        if known is not None:
            frame = frame.join(known.select(F.col("id").alias("known")), F.col("id") == F.col("known"), "left")
        now = F.timestamp_micros(F.lit(time.time_ns() // 1000))
        return frame.select(
            *KEY_COLUMNS[self._folder.kind],
            *(
                self._choose_value(column, name, is_known=known is not None).alias(column)
                for column, (name, _) in self._new.items()
            ),
            *(now.alias(name) for name in TIME_COLUMNS),
        )

    def check_values(self, known: DataFrame | None) -> None:
        """Refuse values that a column of the dataset cannot hold; the merge checks them after columns are added."""
        if self._cast_schema:
            values = self.make_rows(known).select(*(to_column(name) for name in self._cast_schema.names))
            with translate_errors():
                values.mapInArrow(tag_errors(_check_castable, self._cast_schema), "nothing int").collect()

    def _choose_value(self, column: str, property_name: str, *, is_known: bool) -> Column:
        new = F.col("new").getField(property_name)
        if not is_known or column not in self._found:
            return new
        return F.when(F.col("known").isNull(), new).otherwise(F.col("found").getField(property_name))

    def _map_columns(self, struct: str) -> dict[str, tuple[str, DataType]]:
        """Map columns to properties and types; a property that is always NULL gets no new column."""
        if struct not in self._records.columns:
            return {}
        data_type = self._records.schema[struct].dataType
        fields = data_type.fields if isinstance(data_type, StructType) else []
        columns = {to_column_name(field.name, self._folder.kind): (field.name, field.dataType) for field in fields}
        return {
            column: (name, data_type)
            for column, (name, data_type) in columns.items()
            if column in self._existing_columns or not isinstance(data_type, NullType)
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


def _is_same_type(have: pa.DataType, want: pa.DataType) -> bool:
    return bool(pa.types.is_null(have)) or is_same_logical_type(have, want)


def _check_castable(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cast rows to a schema, only to refuse values that cannot be cast."""
    for batch in batches:
        conform(pa.Table.from_batches([batch]), schema)
    yield from ()
