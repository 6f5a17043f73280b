"""Plan how staged rows become records: which columns are staged for them, and how they are folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from merganser.core.rows.fold import FoldPlan
from merganser.errors import InvalidArgumentError
from merganser.graph.spark.ids import make_edge_id, make_node_id
from merganser.graph.spark.properties import (
    build_condition,
    check_roles,
    is_orderable,
    to_orderable,
    to_stored_type,
    unify_types,
)
from merganser.graph.spark.reading import to_column
from merganser.graph.sqlite.write import check_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from merganser.graph.values import Value

    # The column of each property, by role.
    Roles = Mapping[str, Mapping[str, str]]

# The role of an endpoint, and the form of a record that holds its match properties.
ENDPOINT_FORMS = {"from_node": "from_match", "to_node": "to_match"}
# Columns that are staged if there is a condition.
_NEW_MEETS, _FOUND_MEETS = "new record meets the condition", "overwritten record meets the condition"
_KEY_ROLES = ("match", *ENDPOINT_FORMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTable:
    """A table of nodes or edges, in columns of the rows: those of each role, and those that order the rows.

    The roles are match, base, on_create and on_match and, for edges, from_node and to_node, whose types are
    `endpoint_types`.
    """

    type: str
    roles: Roles
    order_by: Sequence[str] = ()
    endpoint_types: Mapping[str, str]
    skip_null_keys: bool = False
    # The properties that an existing record must have to be overwritten.
    condition: Mapping[str, Value] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The columns that the table reads; rows that are equal in all of them are interchangeable."""
        used = (name for columns in self.roles.values() for name in columns.values())
        return list(dict.fromkeys([*self.order_by, *used]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """The columns to stage beside those of the rows, and how to fold the staged rows of a table."""

    table: RecordTable
    columns: Mapping[str, Column]
    fold: FoldPlan


def plan_records(table: RecordTable, schema: StructType) -> RecordPlan:
    """Plan the records of a table; `schema` is that of the rows."""
    check_type(table.type)
    own = {role: columns for role, columns in table.roles.items() if role not in ENDPOINT_FORMS}
    check_roles(**own)
    if not own["match"] and not table.endpoint_types:
        raise InvalidArgumentError(f"match is empty; name the properties that identify a {table.type}.")
    types = _choose_types(table, schema)
    staged: dict[str, Column] = {}
    columns: dict[str, dict[str, str]] = {role: {} for role in table.roles}
    for (role, name), data_type in types.items():
        column = table.roles[role][name]
        is_same = schema[column].dataType == data_type
        columns[role][name] = column if is_same else f"{column} as {data_type.simpleString()}"
        if not is_same:
            staged[columns[role][name]] = to_column(column).cast(data_type)

    def find_typed(role: str) -> dict[str, tuple[Column, DataType]]:
        return {
            name: (to_column(column).cast(types[role, name]), types[role, name])
            for name, column in table.roles[role].items()
        }

    keys, ids = {}, {}
    for role, key in (("from_node", "src"), ("to_node", "dst")) if table.endpoint_types else (("match", "id"),):
        type_ = table.endpoint_types.get(role, table.type)
        keys[key] = f"id of {type_!r} by {sorted(columns[role].items())}"
        ids[key] = staged[keys[key]] = make_node_id(type_, find_typed(role))
    if table.endpoint_types:
        keys["id"] = f"id of {table.type!r} from {keys['src']} to {keys['dst']} by {sorted(columns['match'].items())}"
        staged[keys["id"]] = make_edge_id(table.type, ids["src"], ids["dst"], find_typed("match"))
    order = []
    for column in table.columns:
        data_type = schema[column].dataType
        order.append(column if is_orderable(data_type) else f"{column} as JSON")
        if order[-1] != column:
            staged[order[-1]] = to_orderable(to_column(column), data_type)
    if table.condition:
        created = {**find_typed("match"), **find_typed("base"), **find_typed("on_create")}
        matched = find_typed("on_match")
        overwritten = {name: value for name, value in table.condition.items() if name in matched}
        staged[_NEW_MEETS] = build_condition(created, table.condition)
        staged[_FOUND_MEETS] = build_condition(matched, overwritten)
    labels = {(role, name): f"{role} property {name!r} of {table.type}" for role, name in types}
    fold = FoldPlan(
        keys=keys,
        endpoints={form: columns[role] for role, form in ENDPOINT_FORMS.items() if role in table.endpoint_types},
        created={**columns["match"], **columns["base"], **columns["on_create"]},
        matched=columns["on_match"],
        order=order,
        required={label: columns[role][name] for (role, name), label in labels.items() if role in _KEY_ROLES},
        checked={label: columns[role][name] for (role, name), label in labels.items()},
        meets_condition=(_NEW_MEETS, _FOUND_MEETS) if table.condition else None,
    )
    return RecordPlan(table=table, columns=staged, fold=fold)


def _choose_types(table: RecordTable, schema: StructType) -> dict[tuple[str, str], DataType]:
    """Choose the type in which each property is stored; an endpoint's properties belong to its node."""
    stored = {
        (role, name): to_stored_type(schema[column].dataType, name, role)
        for role, columns in table.roles.items()
        for name, column in columns.items()
    }
    types: dict[tuple[str | None, str], list[DataType]] = {}
    for (role, name), data_type in stored.items():
        types.setdefault((ENDPOINT_FORMS.get(role), name), []).append(data_type)
    return {(role, name): unify_types(types[ENDPOINT_FORMS.get(role), name], name) for role, name in stored}
