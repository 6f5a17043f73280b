"""Records as rows of a dataset: one column for each property, the times, and which of `new` and `found` it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import NullType, StructType

from merganser.core.model.schema import check_types, conform, same_meaning
from merganser.engines.spark.jobs import explained, marked
from merganser.engines.spark.types import frame_schema
from merganser.errors import InvalidArgumentError
from merganser.graph.spark.columns import KEYS, TIMES, column_of
from merganser.graph.spark.reading import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from merganser.graph.spark.folders import Folder


class RecordRows:
    """The records of a merge, for a dataset that may be there already (`schema`)."""

    def __init__(self, records: DataFrame, folder: Folder, schema: pa.Schema | None) -> None:
        self._records, self._folder = records, folder
        self._there = [] if schema is None else schema.names
        self._new = self._columns("new")
        self._found = self._columns("found")
        self._check_case()
        # The columns whose values may not fit, each with the type that it has in the dataset.
        self._cast = pa.schema([])
        if schema is not None:
            have = frame_schema(self.rows(None))
            both = [field for field in schema if field.name in have.names]
            check_types(pa.schema([have.field(field.name) for field in both]), pa.schema(both))
            self._cast = pa.schema([field for field in both if not _same(have.field(field.name).type, field.type)])

    @property
    def laid_over(self) -> list[str]:
        """The columns that a record which is there gets anew."""
        return list(self._found)

    @property
    def lacking(self) -> dict[str, DataType]:
        """The columns that the dataset does not have yet."""
        return {column: kind for column, (_, kind) in self._new.items() if self._there and column not in self._there}

    def rows(self, known: DataFrame | None) -> DataFrame:
        """Give a row for each record; `known` are the ids that are there, if it matters."""
        frame = self._records
        if known is not None:
            there = known.select(F.col("id").alias("known"))
            frame = frame.join(there, F.col("id") == F.col("known"), "left")
        now = F.timestamp_micros(F.lit(time.time_ns() // 1000))
        return frame.select(
            *KEYS[self._folder.kind],
            *(self._value(column, of, known is not None).alias(column) for column, (of, _) in self._new.items()),
            *(now.alias(name) for name in TIMES),
        )

    def check_values(self, known: DataFrame | None) -> None:
        """Refuse values that a column of the dataset cannot hold; a merge does so itself, but what precedes it not."""
        if self._cast:
            values = self.rows(known).select(*(quoted(name) for name in self._cast.names))
            with explained():
                values.mapInArrow(marked(_conform, self._cast), "nothing int").collect()

    def _value(self, column: str, property_name: str, chosen: bool) -> Column:  # noqa: FBT001
        new = F.col("new").getField(property_name)
        if not chosen or column not in self._found:
            return new
        return F.when(F.col("known").isNull(), new).otherwise(F.col("found").getField(property_name))

    def _columns(self, struct: str) -> dict[str, tuple[str, DataType]]:
        """Give the column, property and type of each field; what is always NULL and not there yet needs no column."""
        if struct not in self._records.columns:
            return {}
        kind = self._records.schema[struct].dataType
        fields = kind.fields if isinstance(kind, StructType) else []
        columns = {column_of(field.name, self._folder.kind): (field.name, field.dataType) for field in fields}
        return {
            column: of for column, of in columns.items() if column in self._there or not isinstance(of[1], NullType)
        }

    def _check_case(self) -> None:
        there = {name.lower(): name for name in self._there}
        for column, (name, _) in self._new.items():
            before = there.get(column.lower(), column)
            if before != column:
                message = (
                    f"The {self._folder.kind} of type {self._folder.type!r} have a property {before!r}, which differs "
                    f"from {name!r} only in case. Use its name."
                )
                raise InvalidArgumentError(message)


def _same(have: pa.DataType, want: pa.DataType) -> bool:
    return bool(pa.types.is_null(have)) or same_meaning(have, want)


def _conform(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cast rows to a schema, for the sake of what cannot be cast alone."""
    for batch in batches:
        conform(pa.Table.from_batches([batch]), schema)
    yield from ()
