"""Rows folded into records: one for each key, as merging its rows one by one would leave it.

The rows of a key make at most one record. If there is none yet, the first row creates it (match, base, on_create) and
each later one lays its on_match over; if there is one, every row does. All rows lay over the same properties, so only
the last one's values stay. A record therefore is `new`, what it has to be if it is created, and `found`, what is to be
laid over one that is there already. Which of the two it is, only the graph knows.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.core.model.options import check_names
from merganser.errors import InvalidArgumentError, KeyColumnError, PropertyValueError
from merganser.graph.merging.bulk import Endpoint
from merganser.graph.spark.ids import make_edge_id, make_node_id
from merganser.graph.spark.properties import (
    check_roles,
    find_column,
    is_not_finite,
    is_orderable,
    is_outside_years,
    read_properties,
    to_orderable,
    to_stored_type,
    unify_types,
)
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from merganser.graph.spark.properties import PropertySpec

    TypedColumns = Mapping[str, tuple[Column, DataType]]


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a source, kept by Spark while they are in use.

    `frame` has a row for each key: `id`, of edges `src`, `dst`, `from_match`, `to_match`, then `match_names`, `new`,
    `found` and `rows`, the number of source rows. A struct without fields is left out. `rows` are all source rows,
    `skipped` those with NULL in a match property, which are in no record. `has_differences` tells whether for any
    record a property of `found` is another in `new`; if not, it need not be known which records exist. `match_names`
    names the match properties.
    """

    frame: DataFrame
    rows: int
    skipped: int
    has_differences: bool
    match_names: tuple[str, ...]


class MergeArguments(TypedDict, total=False):
    """What merges of nodes and of edges take: properties by their role, and which rows count."""

    base: PropertySpec
    on_create: PropertySpec
    on_match: PropertySpec
    order_by: str | Sequence[str] | None
    skip_null_keys: bool


class NodeMerge(MergeArguments):
    """What a merge of nodes takes."""

    match: PropertySpec


class _EndpointArguments(TypedDict):
    from_node: Endpoint
    to_node: Endpoint


class EdgeMerge(MergeArguments, _EndpointArguments, total=False):
    """What a merge of edges takes."""

    match: PropertySpec


@contextmanager
def fold_nodes(frame: DataFrame, type_: str, **given: Unpack[NodeMerge]) -> Iterator[Records]:
    """Fold rows into nodes; what cannot be merged is refused here."""
    _check_given("merge_nodes", given, NodeMerge.__required_keys__, NodeMerge.__optional_keys__)
    check_type(type_)
    roles = _read_roles(frame, given)
    if not roles["match"]:
        message = f"match is empty; name the properties that identify a {type_}."
        raise InvalidArgumentError(message)
    cells = _ValueColumns(frame, roles, given.get("order_by"))
    keys = {"id": make_node_id(type_, cells.find_typed("match"))}
    with _persist_records(
        _fold(cells, keys, ()), type_, cells, skip_null_keys=given.get("skip_null_keys", False)
    ) as records:
        yield records


@contextmanager
def fold_edges(frame: DataFrame, type_: str, **given: Unpack[EdgeMerge]) -> Iterator[Records]:
    """Fold rows into edges between nodes that are known by their types and match properties."""
    _check_given("merge_edges", given, EdgeMerge.__required_keys__, EdgeMerge.__optional_keys__)
    check_type(type_)
    roles = _read_roles(frame, given)
    ends = {"from_node": given["from_node"], "to_node": given["to_node"]}
    for role, end in ends.items():
        if not isinstance(end, Endpoint):
            message = f"{role} is {end!r}; give an Endpoint(type, {{match property: expression}})."
            raise InvalidArgumentError(message)
        roles[role] = read_properties(frame, end.match, role)
        check_roles(roles[role])
    cells = _ValueColumns(frame, roles, given.get("order_by"))
    src, dst = (make_node_id(end.type, cells.find_typed(role)) for role, end in ends.items())
    keys = {"src": src, "dst": dst, "id": make_edge_id(type_, F.col("src"), F.col("dst"), cells.find_typed("match"))}
    with _persist_records(
        _fold(cells, keys, ends), type_, cells, skip_null_keys=given.get("skip_null_keys", False)
    ) as records:
        yield records


def _check_given(call: str, given: Mapping[str, Any], needed: frozenset[str], others: frozenset[str]) -> None:
    """Refuse what a call does not take, and what it cannot do without, as Python does."""
    check_names(call, given, needed | others)
    for name in sorted(needed - given.keys()):
        message = f"{call}() missing 1 required keyword-only argument: {name!r}"
        raise TypeError(message)


def _read_roles(frame: DataFrame, given: Mapping[str, Any]) -> _Roles:
    roles = {role: read_properties(frame, given.get(role), role) for role in ("match", "base", "on_create", "on_match")}
    check_roles(**roles)
    return roles


_KEY_ROLES = ("match", "from_node", "to_node")
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


class _ValueColumns:
    """The values of all expressions, in columns whose names mean nothing, with what orders the rows in `order`."""

    def __init__(self, frame: DataFrame, roles: _Roles, order_by: str | Sequence[str] | None) -> None:
        given = [(role, name, column) for role, properties in roles.items() for name, column in properties.items()]
        columns = [column.alias(f"v{at}") for at, (_, _, column) in enumerate(given)]
        try:
            values = frame.select(_make_order(frame, order_by).alias("order"), *columns)
            kinds = [field.dataType for field in values.schema.fields[1:]]
        except AnalysisException as error:
            _refuse_expression(frame, given)
            message = f"Spark cannot evaluate this merge: {_get_first_line(error)} Correct the columns that it names."
            raise InvalidArgumentError(message) from error
        stored = [to_stored_type(kind, name, role) for (role, name, _), kind in zip(given, kinds, strict=True)]
        # An edge's ends have properties of their own.
        own = [(name if role not in _KEY_ROLES[1:] else (role, name)) for role, name, _ in given]
        one = {
            name: unify_types([kind for other, kind in zip(own, stored, strict=True) if other == name], str(name))
            for name in own
        }
        self.columns = [_ValueColumn(role, name, f"v{at}", one[own[at]]) for at, (role, name, _) in enumerate(given)]
        self.frame = values.select(
            "order", *(cell.column.cast(cell.data_type).alias(cell.column_name) for cell in self.columns)
        )

    def find_by_role(self, *roles: str) -> dict[str, _ValueColumn]:
        """Give the cells of some roles by property, later roles winning."""
        return {cell.name: cell for role in roles for cell in self.columns if cell.role == role}

    def find_typed(self, role: str) -> TypedColumns:
        """Give the columns of a role with their types, by property."""
        return {cell.name: (cell.column, cell.data_type) for cell in self.find_by_role(role).values()}


def _refuse_expression(frame: DataFrame, given: Sequence[tuple[str, str, Column]]) -> None:
    """Find the expression that Spark cannot evaluate."""
    for role, name, column in given:
        try:
            _ = frame.select(column).schema
        except AnalysisException as error:
            reason = f"Spark cannot evaluate: {_get_first_line(error)} Correct it."
            message = f"{role} property {name!r} has an expression that {reason}"
            raise InvalidArgumentError(message) from error


def _get_first_line(error: AnalysisException) -> str:
    # The rest is Spark's plan.
    return str(error).strip().partition("\n")[0]


def _make_order(frame: DataFrame, order_by: str | Sequence[str] | None) -> Column:
    """Order rows by some columns, then by all, so that no two different rows are in one place."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    first = () if order_by is None else read_names(order_by, "order_by")
    for name in first:
        if name in kinds and not is_orderable(kinds[name]):
            message = f"order_by names {name!r}, whose type {kinds[name].simpleString()} has no order. Name another."
            raise InvalidArgumentError(message)
    names = [*first, *(name for name in frame.columns if name not in first)]
    columns = [(find_column(frame, name, "order_by"), name) for name in names]
    return F.struct(*(to_orderable(column, kinds[name]).alias(f"o{at}") for at, (column, name) in enumerate(columns)))


def _fold(cells: _ValueColumns, keys: Mapping[str, Column], ends: Iterable[str]) -> DataFrame:
    """Make one row of the rows of each key, those with NULL in the key together under the id NULL."""
    rows = cells.frame
    for name, column in keys.items():
        rows = rows.withColumn(name, column)
    told = [name for name in keys if name != "id"]
    first = [*told, *(cell.column_name for cell in cells.columns if cell.role != "on_match")]
    last = [cell.column_name for cell in cells.columns if cell.role == "on_match"]
    folded = rows.groupBy("id").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min_by(F.struct(*first), "order").alias("first"),
        *([F.max_by(F.struct(*last), "order").alias("last")] if last else []),
        *(F.count_if(condition).alias(f"f{at}") for at, (_, _, condition) in enumerate(_list_faults(cells))),
    )
    firsts = cells.find_by_role("match", "base", "on_create")
    lasts = cells.find_by_role("on_match")
    structs: dict[str, dict[str, Column]] = {}
    for role in ends:
        structs[role.replace("_node", "_match")] = {
            name: _get_first(cell) for name, cell in cells.find_by_role(role).items()
        }
    structs["match"] = {name: _get_first(cell) for name, cell in cells.find_by_role("match").items()}
    structs["new"] = {name: _get_first(cell) for name, cell in firsts.items()}
    for name, cell in lasts.items():
        before = _get_first(firsts[name]) if name in firsts else F.lit(None).cast(cell.data_type)
        structs["new"][name] = F.when(F.col("rows") > 1, _get_last(cell)).otherwise(before)
    structs["found"] = {name: _get_last(cell) for name, cell in lasts.items()}
    made = [
        F.struct(*(column.alias(name) for name, column in fields.items())).alias(struct)
        for struct, fields in structs.items()
        if fields
    ]
    differ = [
        ~to_orderable(structs["new"][name], cell.data_type).eqNullSafe(
            to_orderable(structs["found"][name], cell.data_type)
        )
        for name, cell in lasts.items()
    ]
    return folded.select(
        "id",
        *(F.col(f"first.{name}") for name in told),
        *made,
        "rows",
        F.array_contains(F.array(*differ), True).alias("differ") if differ else F.lit(False).alias("differ"),  # noqa: FBT003
        *(f"f{at}" for at in range(len(_list_faults(cells)))),
    )


def _get_first(cell: _ValueColumn) -> Column:
    return F.col(f"first.{cell.column_name}")


def _get_last(cell: _ValueColumn) -> Column:
    return F.col(f"last.{cell.column_name}")


def _list_faults(cells: _ValueColumns) -> list[tuple[_ValueColumn, str, Column]]:
    """Give what must not be in a cell: NULL in a key, and numbers and days that no property can hold."""
    found = [(cell, "NULL", cell.column.isNull()) for cell in cells.columns if cell.role in _KEY_ROLES]
    for cell in cells.columns:
        for what, fault in (("number", is_not_finite), ("day", is_outside_years)):
            condition = fault(cell.column, cell.data_type)
            if condition is not None:
                found.append((cell, what, condition))
    return found


@contextmanager
def _persist_records(folded: DataFrame, type_: str, cells: _ValueColumns, *, skip_null_keys: bool) -> Iterator[Records]:
    """Keep the records as they are now, look at them once, and let them go."""
    with _coalesce_cached_partitions(folded.sparkSession):
        # On disk alone: what Spark reads back it would put into memory again, as long as there is any.
        kept = folded.persist(StorageLevel.DISK_ONLY)
    try:
        faults = _list_faults(cells)
        known = F.col("id").isNotNull()
        totals = kept.agg(
            F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
            F.coalesce(F.sum(F.when(~known, F.col("rows"))), F.lit(0)).alias("skipped"),
            F.coalesce(F.max(F.when(known, F.col("differ"))), F.lit(False)).alias("differ"),  # noqa: FBT003
            # Rows that are left out may hold anything.
            *(F.sum(F.when(known == (what != "NULL"), F.col(f"f{at}"))) for at, (_, what, _) in enumerate(faults)),
        ).collect()[0]
        for (cell, what, _), count in zip(faults, totals[3:], strict=True):
            if count:
                _refuse(cell, what, count, type_, skip_null_keys=skip_null_keys)
        hidden = ["differ", *(f"f{at}" for at in range(len(faults)))]
        yield Records(
            kept.where(known).drop(*hidden),
            totals["rows"],
            totals["skipped"],
            totals["differ"],
            tuple(cells.find_by_role("match")),
        )
    finally:
        kept.unpersist()


# Whether Spark may join the small partitions of what it keeps, as it does with what it does not keep.
_COALESCE_CACHED = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@contextmanager
def _coalesce_cached_partitions(spark: SparkSession) -> Iterator[None]:
    """Let what is kept have as few partitions as its size asks for: each costs a task of every later step."""
    before = spark.conf.get(_COALESCE_CACHED, None)
    spark.conf.set(_COALESCE_CACHED, "true")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_COALESCE_CACHED)
        else:
            spark.conf.set(_COALESCE_CACHED, before)


def _refuse(cell: _ValueColumn, what: str, count: int, type_: str, *, skip_null_keys: bool) -> None:
    if what != "NULL":
        fault = "is no finite number" if what == "number" else "is or holds a day outside the years 1 to 9999"
        message = (
            f"{cell.role} property {cell.name!r} of {type_} {fault} in {count} rows. Make it NULL, or "
            "leave these rows out."
        )
        raise PropertyValueError(message)
    if not skip_null_keys:
        message = (
            f"{cell.role} property {cell.name!r} of {type_} is NULL in {count} rows, and no record can be found by it. "
            "Leave them out with skip_null_keys=True, or clean the source."
        )
        raise KeyColumnError(message)
