"""Check that the nodes which edges connect exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.display import pluralize
from merganser.engines.spark.jobs import watch_job
from merganser.errors import NodeNotFoundError
from merganser.graph.sqlite.chosen import MAX_LISTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from merganser.graph.merging.bulk_edges import MissingNodePolicy
    from merganser.graph.merging.bulk_options import Endpoint

# How many keys an error lists.
_MAX_KEYS_SHOWN = MAX_LISTED


@dataclass(frozen=True, slots=True)
class EndpointIds:
    """One endpoint of edges: its columns in the records, its type, and the existing ids of that type."""

    column: str
    match_column: str
    type: str
    known_ids: DataFrame | None


@dataclass(frozen=True, slots=True)
class EdgeRecords:
    """The nodes that edges connect; if `checks` is false, all of them are known to exist."""

    from_node: Endpoint
    to_node: Endpoint
    on_missing_node: MissingNodePolicy
    checks: bool


def select_missing(edges: DataFrame, endpoint: EndpointIds) -> DataFrame:
    """Select the edges whose node at this endpoint does not exist."""
    return _join_known_ids(edges, endpoint, "left_anti")


def refuse_missing(edges: DataFrame, endpoint: EndpointIds) -> None:
    """Refuse edges whose node at this endpoint does not exist."""
    column = endpoint.column
    missing = select_missing(edges, endpoint)
    with watch_job("find missing nodes"):
        count = missing.agg(F.count_distinct(column)).collect()[0][0]
    if count:
        examples = missing.dropDuplicates([column]).orderBy(column).limit(_MAX_KEYS_SHOWN)
        keys = [repr(row[0].asDict(recursive=True)) for row in examples.select(endpoint.match_column).collect()]
        raise NodeNotFoundError(
            f"These edges connect {endpoint.type} nodes that do not exist: {pluralize(count, 'key')}, for example "
            f"{', '.join(keys)}. Merge the nodes first, or set on_missing_node to 'skip' or 'create'."
        )


def drop_missing(edges: DataFrame, endpoint: EndpointIds) -> DataFrame:
    """Drop edges whose node at this endpoint does not exist."""
    return _join_known_ids(edges, endpoint, "left_semi")


def _join_known_ids(edges: DataFrame, endpoint: EndpointIds, how: str) -> DataFrame:
    if endpoint.known_ids is None:
        return edges if how == "left_anti" else edges.limit(0)
    # Spark underestimates the size of what a Python function returns, and would broadcast it.
    known = endpoint.known_ids.select(F.col("id").alias("known")).hint("merge")
    return edges.join(known, F.col(endpoint.column) == F.col("known"), how)
