"""Fold the rows of a DataFrame into records: one per key, equal to what merging its rows one by one would leave."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.columnar.take import empty_table
from merganser.core.rows.fold import FoldCounts, fold_rows
from merganser.engines.spark.grouping import group_frame
from merganser.engines.spark.types import to_arrow_schema, to_transport_schema
from merganser.errors import InvalidArgumentError
from merganser.graph.merging.bulk_options import Endpoint
from merganser.graph.spark.properties import check_roles, find_column, is_orderable, read_condition, read_properties
from merganser.graph.spark.reading import to_column
from merganser.graph.spark.record_plan import RecordTable, plan_records
from merganser.graph.spark.record_set import FrameRecords, find_fault, nest_columns
from merganser.graph.sqlite.indexes import read_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from merganser.graph.merging.missing import MissingPolicy
    from merganser.graph.spark.properties import PropertySpec
    from merganser.graph.spark.record_plan import RecordPlan
    from merganser.graph.spark.record_set import Records
    from merganser.graph.sqlite.chosen import DetachPolicy

    # The expression of each property, by role.
    Roles = dict[str, dict[str, Column]]


class MergeArguments(TypedDict, total=False):
    """Arguments that merges of nodes and of edges share: properties by role, and how rows are ordered and skipped."""

    base: PropertySpec
    on_create: PropertySpec
    on_match: PropertySpec
    condition: Mapping[str, Any] | None
    order_by: str | Sequence[str] | None
    skip_null_keys: bool
    missing: MissingPolicy
    scope: Mapping[str, Any] | None


class _DetachArguments(TypedDict, total=False):
    detach: DetachPolicy


class NodeMerge(MergeArguments, _DetachArguments):
    """Arguments of a merge of nodes."""

    match: PropertySpec


class _EndpointArguments(TypedDict):
    from_node: Endpoint
    to_node: Endpoint


class EdgeMerge(MergeArguments, _EndpointArguments, total=False):
    """Arguments of a merge of edges."""

    match: PropertySpec


def fold_nodes(frame: DataFrame, type_: str, **given: Unpack[NodeMerge]) -> AbstractContextManager[Records]:
    """Fold rows into nodes, after checking the arguments and all values."""
    return _fold(frame, type_, _read_roles(frame, given, ()), {}, given)


def fold_edges(frame: DataFrame, type_: str, **given: Unpack[EdgeMerge]) -> AbstractContextManager[Records]:
    """Fold rows into edges, whose nodes are identified by their types and match properties."""
    for name in sorted(EdgeMerge.__required_keys__ - given.keys()):
        raise TypeError(f"merge_edges() missing 1 required keyword-only argument: {name!r}")
    endpoints = {"from_node": given["from_node"], "to_node": given["to_node"]}
    for role, endpoint in endpoints.items():
        if not isinstance(endpoint, Endpoint):
            message = f"{role} is {endpoint!r}; give an Endpoint(type, {{match property: expression}})."
            raise InvalidArgumentError(message)
    keys = [column for endpoint in endpoints.values() for column in endpoint.match.values()]
    roles = _read_roles(frame, given, keys)
    for role, endpoint in endpoints.items():
        roles[role] = read_properties(frame, endpoint.match, role)
        check_roles(roles[role])
    return _fold(frame, type_, roles, {role: endpoint.type for role, endpoint in endpoints.items()}, given)


def _read_roles(frame: DataFrame, given: Mapping[str, Any], endpoint_columns: Sequence[str]) -> Roles:
    roles = {"match": read_properties(frame, given.get("match"), "match")}
    keys = {*roles["match"], *endpoint_columns}
    roles |= {role: read_properties(frame, given.get(role), role, keys) for role in ("base", "on_create", "on_match")}
    # New records have the properties of the scope.
    known = {name for properties in roles.values() for name in properties}
    roles["base"] |= {name: F.lit(value) for name, value in (given.get("scope") or {}).items() if name not in known}
    check_roles(**roles)
    return roles


@contextmanager
def _fold(
    frame: DataFrame, type_: str, roles: Roles, endpoint_types: Mapping[str, str], given: Mapping[str, Any]
) -> Iterator[Records]:
    """Fold rows, and keep the records while the block lasts."""
    rows, columns, order = _evaluate(frame, roles, given.get("order_by"))
    table = RecordTable(
        type=type_,
        roles=columns,
        order_by=order,
        endpoint_types=endpoint_types,
        skip_null_keys=given.get("skip_null_keys", False),
        condition=read_condition(given.get("condition")),
    )
    plan = plan_records(table, rows.schema)
    added = [column.alias(name) for name, column in plan.columns.items()]
    rows = rows.select(*(to_column(name) for name in rows.columns), *added)
    rows = rows.select(*map(to_column, plan.fold.input_columns))
    schema = to_transport_schema(to_arrow_schema(rows))
    folded = fold_rows(empty_table(schema), plan.fold)[0].schema
    with group_frame(rows, schema, plan.fold.keys["id"], partial(fold_rows, plan=plan.fold), folded) as (found, counts):
        yield _make_records(found, plan, FoldCounts.add_up(counts))


def _make_records(flat: DataFrame, plan: RecordPlan, counts: FoldCounts) -> Records:
    error = find_fault(plan, counts)
    if error is not None:
        raise error
    return FrameRecords(
        folded=nest_columns(flat, list(plan.fold.keys), plan.fold.output_columns),
        rows=counts.rows,
        skipped=counts.skipped,
        has_differences=counts.differ,
        match_names=tuple(plan.table.roles["match"]),
        condition=plan.table.condition,
    )


def _evaluate(
    frame: DataFrame, roles: Roles, order_by: str | Sequence[str] | None
) -> tuple[DataFrame, dict[str, dict[str, str]], list[str]]:
    """Evaluate all expressions; returns the rows, the column of each property by role, and those that order them."""
    given = [(role, name, column) for role, properties in roles.items() for name, column in properties.items()]
    order = _list_order(frame, order_by)
    columns = [column.alias(f"v{number}") for number, (_, _, column) in enumerate(given)]
    try:
        rows = frame.select(*columns, *(column.alias(f"o{number}") for number, column in enumerate(order)))
        _ = rows.schema
    except AnalysisException as error:
        _refuse_expression(frame, given)
        message = f"Spark cannot evaluate this merge: {_get_first_line(error)} Correct the columns that it names."
        raise InvalidArgumentError(message) from error
    named: dict[str, dict[str, str]] = {role: {} for role in roles}
    for number, (role, name, _) in enumerate(given):
        named[role][name] = f"v{number}"
    return rows, named, [f"o{number}" for number in range(len(order))]


def _refuse_expression(frame: DataFrame, given: Sequence[tuple[str, str, Column]]) -> None:
    for role, name, column in given:
        try:
            _ = frame.select(column).schema
        except AnalysisException as error:
            reason = f"Spark cannot evaluate: {_get_first_line(error)} Correct it."
            raise InvalidArgumentError(f"{role} property {name!r} has an expression that {reason}") from error


def _get_first_line(error: AnalysisException) -> str:
    # The other lines are Spark's plan.
    return str(error).strip().partition("\n")[0]


def _list_order(frame: DataFrame, order_by: str | Sequence[str] | None) -> list[Column]:
    """Order rows by some columns, then by all others, so that the order of different rows is never arbitrary."""
    data_types = {field.name: field.dataType for field in frame.schema.fields}
    first = () if order_by is None else read_names(order_by, "order_by")
    for name in first:
        if name in data_types and not is_orderable(data_types[name]):
            raise InvalidArgumentError(
                f"order_by names {name!r}, whose type {data_types[name].simpleString()} cannot be ordered. Use another "
                "column."
            )
    return [
        find_column(frame, name, "order_by") for name in [*first, *(one for one in frame.columns if one not in first)]
    ]
