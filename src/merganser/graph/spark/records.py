"""Fold source rows into records: one per key, equal to what merging its rows one by one would leave.

If the record of a key does not exist, its first row creates it (match, base, on_create) and each later row overwrites
its on_match properties; if it exists, every row does. All rows overwrite the same properties, so only the values of
the last row remain. A record therefore has two forms: `new`, its properties if it is created, and `found`, the
properties to overwrite if it exists. Only the graph knows which form applies.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.model.options import check_names
from merganser.errors import InvalidArgumentError
from merganser.graph.merging.bulk import Endpoint
from merganser.graph.spark.ids import make_edge_id, make_node_id
from merganser.graph.spark.properties import (
    check_roles,
    find_column,
    has_fault,
    is_not_finite,
    is_orderable,
    is_outside_years,
    read_properties,
    to_orderable,
    to_stored_type,
    unify_types,
)
from merganser.graph.spark.record_plan import ENDPOINT_FORMS as _ENDPOINT_STRUCTS
from merganser.graph.spark.record_set import FrameRecords, make_fault_error
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from merganser.graph.spark.properties import PropertySpec
    from merganser.graph.spark.record_set import Records

    TypedColumns = Mapping[str, tuple[Column, DataType]]


class MergeArguments(TypedDict, total=False):
    """Arguments that merges of nodes and of edges share: properties by role, and how rows are ordered and skipped."""

    base: PropertySpec
    on_create: PropertySpec
    on_match: PropertySpec
    order_by: str | Sequence[str] | None
    skip_null_keys: bool


class NodeMerge(MergeArguments):
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
    _check_given("merge_nodes", given, NodeMerge.__required_keys__, NodeMerge.__optional_keys__)
    check_type(type_)
    roles = _read_roles(frame, given)
    if not roles["match"]:
        raise InvalidArgumentError(f"match is empty; name the properties that identify a {type_}.")
    values = _ValueColumns(frame, roles, given.get("order_by"))
    folding = _Folding(values, {"id": make_node_id(type_, values.find_typed("match"))})
    return _persist_records(folding, type_, skip_null_keys=given.get("skip_null_keys", False))


def fold_edges(frame: DataFrame, type_: str, **given: Unpack[EdgeMerge]) -> AbstractContextManager[Records]:
    """Fold rows into edges, whose nodes are identified by their types and match properties."""
    _check_given("merge_edges", given, EdgeMerge.__required_keys__, EdgeMerge.__optional_keys__)
    check_type(type_)
    roles = _read_roles(frame, given)
    endpoints = {"from_node": given["from_node"], "to_node": given["to_node"]}
    for role, endpoint in endpoints.items():
        if not isinstance(endpoint, Endpoint):
            message = f"{role} is {endpoint!r}; give an Endpoint(type, {{match property: expression}})."
            raise InvalidArgumentError(message)
        roles[role] = read_properties(frame, endpoint.match, role)
        check_roles(roles[role])
    values = _ValueColumns(frame, roles, given.get("order_by"))
    src, dst = (make_node_id(endpoint.type, values.find_typed(role)) for role, endpoint in endpoints.items())
    edge_id = make_edge_id(type_, F.col("src"), F.col("dst"), values.find_typed("match"))
    folding = _Folding(values, {"src": src, "dst": dst, "id": edge_id})
    return _persist_records(folding, type_, skip_null_keys=given.get("skip_null_keys", False))


def _check_given(call: str, given: Mapping[str, Any], required: frozenset[str], optional: frozenset[str]) -> None:
    """Refuse unknown and missing arguments, as Python does."""
    check_names(call, given, required | optional)
    for name in sorted(required - given.keys()):
        raise TypeError(f"{call}() missing 1 required keyword-only argument: {name!r}")


def _read_roles(frame: DataFrame, given: Mapping[str, Any]) -> _Roles:
    roles = {role: read_properties(frame, given.get(role), role) for role in ("match", "base", "on_create", "on_match")}
    check_roles(**roles)
    return roles


_KEY_ROLES = ("match", *_ENDPOINT_STRUCTS)
_Roles = dict[str, dict[str, "Column"]]


@dataclass(frozen=True, slots=True)
class _ValueColumn:
    """One expression of the merge, and the column that holds its values."""

    role: str
    name: str
    column_name: str
    data_type: DataType

    @property
    def column(self) -> Column:
        return F.col(self.column_name)

    @property
    def first(self) -> Column:
        """Its value in the first row of a key, after folding."""
        return F.col(f"first.{self.column_name}")

    @property
    def last(self) -> Column:
        """Its value in the last row of a key, after folding."""
        return F.col(f"last.{self.column_name}")


class _ValueColumns:
    """The values of all expressions, in columns v0, v1, … of `frame`; its column `order` orders the rows."""

    def __init__(self, frame: DataFrame, roles: _Roles, order_by: str | Sequence[str] | None) -> None:
        given = [(role, name, column) for role, properties in roles.items() for name, column in properties.items()]
        columns = [column.alias(f"v{number}") for number, (_, _, column) in enumerate(given)]
        try:
            evaluated = frame.select(_make_order(frame, order_by).alias("order"), *columns)
            fields = evaluated.schema.fields[1:]
        except AnalysisException as error:
            _refuse_expression(frame, given)
            message = f"Spark cannot evaluate this merge: {_get_first_line(error)} Correct the columns that it names."
            raise InvalidArgumentError(message) from error
        stored = [
            _ValueColumn(role, name, field.name, to_stored_type(field.dataType, name, role))
            for (role, name, _), field in zip(given, fields, strict=True)
        ]
        # An endpoint's properties belong to its node, all others to the record.
        types: dict[tuple[str | None, str], list[DataType]] = {}
        for value in stored:
            types.setdefault((_ENDPOINT_STRUCTS.get(value.role), value.name), []).append(value.data_type)
        self.columns = [
            replace(value, data_type=unify_types(types[_ENDPOINT_STRUCTS.get(value.role), value.name], value.name))
            for value in stored
        ]
        self.frame = evaluated.select(
            "order", *(value.column.cast(value.data_type).alias(value.column_name) for value in self.columns)
        )

    def find_by_role(self, *roles: str) -> dict[str, _ValueColumn]:
        """Map properties to the columns of some roles; later roles override earlier ones."""
        return {value.name: value for role in roles for value in self.columns if value.role == role}

    def find_typed(self, role: str) -> TypedColumns:
        return {value.name: (value.column, value.data_type) for value in self.find_by_role(role).values()}


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


def _make_order(frame: DataFrame, order_by: str | Sequence[str] | None) -> Column:
    """Order rows by some columns, then by all others, so that the order of different rows is never arbitrary."""
    data_types = {field.name: field.dataType for field in frame.schema.fields}
    first = () if order_by is None else read_names(order_by, "order_by")
    for name in first:
        if name in data_types and not is_orderable(data_types[name]):
            raise InvalidArgumentError(
                f"order_by names {name!r}, whose type {data_types[name].simpleString()} cannot be ordered. Use another "
                "column."
            )
    names = [*first, *(name for name in frame.columns if name not in first)]
    columns = [to_orderable(find_column(frame, name, "order_by"), data_types[name]) for name in names]
    return F.struct(*(column.alias(f"o{number}") for number, column in enumerate(columns)))


@dataclass(frozen=True, slots=True)
class _Fault:
    """A value that a record cannot hold: NULL in its key if `reason` is empty, or a value that cannot be stored."""

    value: _ValueColumn
    reason: str
    condition: Column


class _Folding:
    """How the rows of each id become one row; rows with NULL in the key share the id NULL."""

    def __init__(self, values: _ValueColumns, keys: Mapping[str, Column]) -> None:
        self.values, self.keys = values, keys
        self.faults = {f"f{number}": fault for number, fault in enumerate(_list_faults(values))}

    def fold(self) -> DataFrame:
        """Give `Records.frame` with two more: `differ`, and for each fault the number of rows that have it."""
        structs = self._make_structs()
        new, found = structs["new"], structs["found"]
        differences = [
            ~to_orderable(new[name], value.data_type).eqNullSafe(to_orderable(found[name], value.data_type))
            for name, value in self.values.find_by_role("on_match").items()
        ]
        return self._aggregate_rows().select(
            "id",
            *(F.col(f"first.{name}") for name in self.keys if name != "id"),
            *(
                F.struct(*(column.alias(name) for name, column in properties.items())).alias(struct)
                for struct, properties in structs.items()
                if properties
            ),
            "rows",
            (F.array_contains(F.array(*differences), True) if differences else F.lit(False)).alias("differ"),  # noqa: FBT003
            *self.faults,
        )

    def _aggregate_rows(self) -> DataFrame:
        """Group the rows by id: their number, the values of the first and of the last one, and their faults."""
        rows = self.values.frame
        for name, column in self.keys.items():
            rows = rows.withColumn(name, column)
        last = [value.column_name for value in self.values.columns if value.role == "on_match"]
        first = [
            *(name for name in self.keys if name != "id"),
            *(value.column_name for value in self.values.columns if value.role != "on_match"),
        ]
        return rows.groupBy("id").agg(
            F.count(F.lit(1)).alias("rows"),
            F.min_by(F.struct(*first), "order").alias("first"),
            *([F.max_by(F.struct(*last), "order").alias("last")] if last else []),
            *(F.count_if(fault.condition).alias(name) for name, fault in self.faults.items()),
        )

    def _make_structs(self) -> dict[str, dict[str, Column]]:
        """Give the properties of each struct of a record, over the aggregated rows."""
        structs = {
            struct: {name: value.first for name, value in self.values.find_by_role(role).items()}
            for role, struct in _ENDPOINT_STRUCTS.items()
        }
        created = self.values.find_by_role("match", "base", "on_create")
        matched = self.values.find_by_role("on_match")
        new = {name: value.first for name, value in created.items()}
        for name, value in matched.items():
            before = new.get(name, F.lit(None).cast(value.data_type))
            # Rows after the first one match the record that it created.
            new[name] = F.when(F.col("rows") > 1, value.last).otherwise(before)
        return {**structs, "new": new, "found": {name: value.last for name, value in matched.items()}}


def _list_faults(values: _ValueColumns) -> list[_Fault]:
    faults = [_Fault(value, "", value.column.isNull()) for value in values.columns if value.role in _KEY_ROLES]
    for value in values.columns:
        for reason, is_fault in (
            ("is not a finite number", is_not_finite),
            ("is or holds a day outside the years 1 to 9999", is_outside_years),
        ):
            condition = has_fault(value.column, value.data_type, is_fault)
            if condition is not None:
                faults.append(_Fault(value, reason, condition))
    return faults


@contextmanager
def _persist_records(folding: _Folding, type_: str, *, skip_null_keys: bool) -> Iterator[Records]:
    """Persist the records while the block lasts, and check their values in one pass."""
    folded = folding.fold()
    with _coalesce_cached_partitions(folded.sparkSession):
        # On disk only: Spark would keep in memory what it reads back, as long as there is room.
        persisted = folded.persist(StorageLevel.DISK_ONLY)
    try:
        has_key = F.col("id").isNotNull()
        totals = persisted.agg(
            F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
            F.coalesce(F.sum(F.when(~has_key, F.col("rows"))), F.lit(0)).alias("skipped"),
            F.coalesce(F.max(F.when(has_key, F.col("differ"))), F.lit(False)).alias("differ"),  # noqa: FBT003
            # Skipped rows may hold anything.
            *(
                F.sum(F.when(has_key == bool(fault.reason), F.col(name))).alias(name)
                for name, fault in folding.faults.items()
            ),
        ).collect()[0]
        for name, fault in folding.faults.items():
            if totals[name] and (fault.reason or not skip_null_keys):
                label = f"{fault.value.role} property {fault.value.name!r} of {type_}"
                raise make_fault_error(label, fault.reason, totals[name])
        yield FrameRecords(
            folded=persisted.where(has_key).drop("differ", *folding.faults),
            rows=totals["rows"],
            skipped=totals["skipped"],
            has_differences=totals["differ"],
            match_names=tuple(folding.values.find_by_role("match")),
        )
    finally:
        persisted.unpersist()


# Whether Spark may coalesce the small partitions of what it persists, as it does with what it does not persist.
_COALESCE_CACHED = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@contextmanager
def _coalesce_cached_partitions(spark: SparkSession) -> Iterator[None]:
    """Persist what is persisted in the block in few partitions: each costs a task in every later step."""
    before = spark.conf.get(_COALESCE_CACHED, None)
    spark.conf.set(_COALESCE_CACHED, "true")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_COALESCE_CACHED)
        else:
            spark.conf.set(_COALESCE_CACHED, before)
