"""The columns that steps need of a source: each expression is evaluated once, when the source is staged."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - everyone calls it that

from merganser.errors import InvalidArgumentError, PropertyTypeError
from merganser.graph.spark.reading import to_column
from merganser.graph.spark.record_plan import RecordTable, plan_records
from merganser.graph.sqlite.sql import quote_spark_identifier
from merganser.pipeline.config.field_types import to_expressions
from merganser.pipeline.config.tables import Edge
from merganser.pipeline.runner.clean import INTERNAL_COLUMNS, is_clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from merganser.graph.spark.record_plan import RecordPlan
    from merganser.pipeline.config.tables import Dataset, Node, Pipeline, Source

_ROLES = ("match", "base", "on_create", "on_match")


class StagedColumns:
    """The columns to stage, over the checked rows of a source; those of rows that failed a rule are NULL.

    `datasets` has the columns of each dataset and `tables` those of each graph table, by its name; their values are the
    names of staged columns.
    """

    def __init__(self, rows: DataFrame, source: Source, pipeline: Pipeline) -> None:
        self._rows = rows
        self._own = [name for name in rows.columns if name not in INTERNAL_COLUMNS]
        self._names: dict[str, str] = {}
        self.datasets: Mapping[str, Mapping[str, str]] = {
            dataset.name: self._add(self._list_expressions(dataset))
            for dataset in pipeline.dataset
            if dataset.source == source.name
        }
        self.tables: Mapping[str, RecordTable] = {
            table.unique_name: self._make_table(table) for table in pipeline.graph_tables if table.source == source.name
        }

    def describe(self) -> list[list[str]]:
        """Describe each column by its name, its type and its expression; record plans name theirs by what they hold."""
        expressions = {name: text for text, name in self._names.items()}
        return [
            [field.name, field.dataType.simpleString(), expressions.get(field.name, "")] for field in self.frame.schema
        ]

    @cached_property
    def _evaluated(self) -> DataFrame:
        # Only clean rows need a value: another one might have none.
        columns = [F.when(is_clean(), F.expr(text)).alias(name) for text, name in self._names.items()]
        return self._rows.select(*columns, *INTERNAL_COLUMNS)

    @cached_property
    def plans(self) -> Mapping[str, RecordPlan]:
        """How the staged rows become the records of each graph table."""
        schema = self._evaluated.schema
        plans = {}
        for name, table in self.tables.items():
            try:
                plans[name] = plan_records(table, schema)
            except (InvalidArgumentError, PropertyTypeError) as error:
                raise type(error)(f"{name}: {error}") from error
        return plans

    @cached_property
    def frame(self) -> DataFrame:
        """The columns to stage."""
        added = {name: column for plan in self.plans.values() for name, column in plan.columns.items()}
        own = [to_column(name) for name in self._evaluated.columns if name not in INTERNAL_COLUMNS]
        columns = [column.alias(name) for name, column in added.items()]
        return self._evaluated.select(*own, *columns, *INTERNAL_COLUMNS)

    def _list_expressions(self, dataset: Dataset) -> Mapping[str, str]:
        if dataset.columns is None:
            return {name: quote_spark_identifier(name) for name in self._own}
        return to_expressions(dataset.columns)

    def _make_table(self, table: Node | Edge) -> RecordTable:
        roles = {role: self._add(to_expressions(getattr(table, role))) for role in _ROLES}
        order_by = self._add({name: quote_spark_identifier(name) for name in table.order_by})
        endpoints = {"from_node": table.from_node, "to_node": table.to_node} if isinstance(table, Edge) else {}
        roles |= {role: self._add(to_expressions(endpoint.match)) for role, endpoint in endpoints.items()}
        return RecordTable(
            type=table.type,
            roles=roles,
            order_by=list(order_by.values()),
            endpoint_types={role: endpoint.type for role, endpoint in endpoints.items()},
            skip_null_keys=table.skip_null_keys,
        )

    def _add(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Map each name to the staged column of its expression."""
        return {name: self._find_name(text) for name, text in expressions.items()}

    def _find_name(self, text: str) -> str:
        text = quote_spark_identifier(text) if text in self._own else text
        return self._names.setdefault(text, f"c{len(self._names)}")
