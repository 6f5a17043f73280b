"""The nodes that edges are between: whether they are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.errors import InvalidArgumentError, NodeNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MissingPolicy = Literal["refuse", "skip"]
# Keys that an error shows.
_MAX_KEYS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class EndpointIds:
    """One end of edges: the columns of its id and its match properties, its type, and the ids that are there."""

    column: str
    match_column: str
    type: str
    known_ids: DataFrame | None


def check_missing(missing: str) -> None:
    """Refuse what is no way to treat edges without their nodes."""
    if missing not in get_args(MissingPolicy):
        message = f"missing must be 'refuse' or 'skip', not {missing!r}."
        raise InvalidArgumentError(message)


def refuse_missing(edges: DataFrame, end: EndpointIds) -> None:
    """Refuse edges one of whose nodes is not there."""
    lacking = _join_known_ids(edges, end, "left_anti")
    count = lacking.agg(F.count_distinct(end.column)).collect()[0][0]
    if count:
        some = (
            lacking.dropDuplicates([end.column])
            .orderBy(end.column)
            .limit(_MAX_KEYS_SHOWN)
            .select(end.match_column)
            .collect()
        )
        keys = ", ".join(repr(row[0].asDict(recursive=True)) for row in some)
        message = (
            f"There is no {end.type} node for {count} of the nodes that these edges are between: {keys}"
            f"{', …' if count > _MAX_KEYS_SHOWN else ''}. Merge the nodes first, or leave such edges out with "
            "missing='skip'."
        )
        raise NodeNotFoundError(message)


def drop_missing(edges: DataFrame, end: EndpointIds) -> DataFrame:
    """Leave out edges one of whose nodes is not there."""
    return _join_known_ids(edges, end, "left_semi")


def _join_known_ids(edges: DataFrame, end: EndpointIds, how: str) -> DataFrame:
    if end.known_ids is None:
        return edges if how == "left_anti" else edges.limit(0)
    # Spark takes what a Python function gives for as small as what it gets, and would broadcast anything.
    known = end.known_ids.select(F.col("id").alias("known")).hint("merge")
    return edges.join(known, F.col(end.column) == F.col("known"), how)
