"""Records of a Parquet graph that no row of a merge matches: found by their ids, and added to the rows of the merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.model.clauses import Clause
from merganser.display import pluralize
from merganser.engines.spark.jobs import watch_job
from merganser.errors import GraphError, InvalidArgumentError
from merganser.graph.merging.missing import MissingOptions, read_missing_options
from merganser.graph.spark.columns import to_column_name
from merganser.graph.spark.reading import to_column
from merganser.graph.sqlite.chosen import MAX_LISTED
from merganser.graph.sqlite.indexes import read_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from merganser.graph.spark.record_set import Records
    from merganser.graph.spark.results import MergeRecord

# The column of the merged rows that marks the missing records.
_IS_MISSING = "merganser is missing"


def read_given_missing(given: Mapping[str, Any]) -> MissingOptions | None:
    """Check what a caller wants of missing records; None if they are kept."""
    match = given.get("match") or ()
    names = read_names(list(match) if isinstance(match, Mapping) else match, "match")
    return read_missing_options(given.get("missing", "keep"), given.get("scope"), given.get("detach", False), names)


def check_scope(records: Records, options: MissingOptions | None) -> None:
    """Refuse records outside the scope."""
    for name, value in () if options is None else options.scope.items():
        outside = records.frame.where(~F.col("new").getField(name).eqNullSafe(F.lit(value)))
        with watch_job("check the scope"):
            count = outside.count()
        if count:
            raise InvalidArgumentError(
                f"{pluralize(count, 'record')} of the source {'is' if count == 1 else 'are'} outside the scope: "
                f"{name!r} is not {value!r}. Filter them out, or widen the scope."
            )


@dataclass(frozen=True, kw_only=True)
class MissingFrame:
    """The missing records of a dataset: their ids and those of their edges, and what becomes of them."""

    ids: DataFrame
    # The columns that missing records get; None if they are deleted.
    updates: Mapping[str, Column] | None

    def add_to(self, rows: DataFrame, now: Column) -> DataFrame:
        """Add the missing records to the rows of a merge."""
        columns = {**(self.updates or {}), "updated_at": now}
        added = self.ids.select("id", *(column.alias(name) for name, column in columns.items()))
        marked = [
            frame.withColumn(_IS_MISSING, F.lit(is_missing)) for frame, is_missing in ((rows, False), (added, True))
        ]
        return marked[0].unionByName(marked[1], allowMissingColumns=True)

    @property
    def clause(self) -> Clause:
        """The clause for the missing records."""
        where = f's."{_IS_MISSING}"'
        if self.updates is None:
            return Clause(side="matched", action="delete", where=where)
        return Clause(side="matched", action="update", where=where, columns=(*self.updates, "updated_at"))


def find_missing(
    existing: DataFrame,
    records: Records,
    kind: str,
    options: MissingOptions,
    endpoints: Sequence[tuple[str, DataFrame]],
) -> MissingFrame:
    """Find the existing records in scope that no row matched; edges, between the known ids of their endpoints."""
    # Spark underestimates the size of what a Python function returns, and would broadcast it.
    missing = existing.join(records.frame.select("id").hint("merge"), "id", "left_anti")
    for name, value in options.scope.items():
        column = to_column_name(name, kind)
        is_known = column in existing.columns
        missing = missing.where(to_column(column).eqNullSafe(F.lit(value)) if is_known else F.lit(False))  # noqa: FBT003
    for column, known in endpoints:
        missing = missing.join(known.select(F.col("id").alias(column)).hint("merge"), column, "left_semi")
    if options.updates is None:
        return MissingFrame(ids=missing, updates=None)
    updates = {}
    for name, value in options.updates.items():
        column = to_column_name(name, kind)
        if isinstance(value, list | dict):
            raise InvalidArgumentError(f"missing sets {name!r} to {value!r}; give a string, a number or a boolean.")
        _check_case(name, column, existing.columns)
        if column in existing.columns:
            updates[column] = (
                F.lit(value).cast(existing.schema[column].dataType) if value is None else _make_literal(value)
            )
        elif value is not None:
            updates[column] = _make_literal(value)
    differs = [
        ~to_column(name).eqNullSafe(value) if name in existing.columns else F.lit(True)  # noqa: FBT003
        for name, value in updates.items()
    ]
    return MissingFrame(ids=missing.where(reduce(lambda a, b: a | b, differs, F.lit(False))), updates=updates)  # noqa: FBT003


def _make_literal(value: Any) -> Column:
    """Make a literal of the type in which a property is stored."""
    return F.lit(value).cast("bigint") if type(value) is int else F.lit(value)


def _check_case(name: str, column: str, existing: Sequence[str]) -> None:
    for before in existing:
        if before.lower() == column.lower() and before != column:
            message = f"missing sets the property {name!r}, and there is one {before!r}; use its name."
            raise InvalidArgumentError(message)


def keep_connected(
    missing: MissingFrame, connected: DataFrame, options: MissingOptions, names: Sequence[str]
) -> tuple[MissingFrame, int]:
    """Keep missing nodes that have edges, and count them, or refuse the merge."""
    known = connected.hint("merge")
    kept = missing.ids.join(known, "id", "left_semi")
    with watch_job("find nodes with edges"):
        count = kept.count()
    if count and options.detach != "keep":
        shown = [to_column(to_column_name(name, "nodes")).alias(name) for name in names]
        found = kept.orderBy("id").limit(MAX_LISTED).select(*shown).collect()
        listed = ", ".join(repr(row.asDict(recursive=True)) for row in found)
        raise GraphError(
            f"{pluralize(count, 'node')} to be deleted {'has' if count == 1 else 'have'} edges: {listed}. Pass "
            "detach=True to delete these edges too, or detach='keep' to keep such nodes."
        )
    remaining = missing.ids.join(known, "id", "left_anti") if count else missing.ids
    return MissingFrame(ids=remaining, updates=None), count


def list_missing(missing: MissingFrame, record: MergeRecord, limit: int) -> MissingFrame:
    """Count the missing records and list the first of them in the record of the merge."""
    with watch_job("count missing records"):
        record.missing = missing.ids.count()
        found = missing.ids.select("id").orderBy("id").limit(limit).collect()
    record.missing_ids = tuple(row.id for row in found)
    return missing
