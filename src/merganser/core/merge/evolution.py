"""Evolution: the schema that a merge gives its target, from the columns of both sides (E3, E4).

In strict mode, only columns of type null take the source's type. With `schema_mode="evolve"`, columns that the target
lacks are added and types widen to those that hold the values of both; nothing is dropped or narrowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.model.projection import uses_column
from merganser.core.model.schema import is_same_logical_type, remove_nested_metadata, remove_views, to_stored_schema
from merganser.core.model.schema_checks import check_name_differs
from merganser.core.model.validation import check_storable, check_supported_types
from merganser.core.model.widening import fill_null_types, find_common_type

if TYPE_CHECKING:
    from merganser.core.dataset.target import Target
    from merganser.core.model.options import Request


def evolve_target(target: Target, source: pa.Schema, request: Request) -> Target:
    """Return the target with the schema that the merge gives it: the same, unless the source asks for another."""
    if target.file_schema is None or target.schema is None:
        return target
    used = [field for field in source if uses_column(request, field.name)]
    types = {field.name: field.type for field in used}
    evolves = request.options.schema_mode == "evolve"
    choose_type = _widen_type if evolves else fill_null_types
    fields = [
        _change_type(field, choose_type(field.type, types[field.name])) if field.name in types else field
        for field in target.file_schema
    ]
    if evolves:
        names = target.schema.names
        new = pa.schema([field for field in used if field.name not in names])
        for name in new.names:
            check_name_differs(name, [*names, *new.names])
        check_supported_types(new, "source")
        check_storable(new)
        # What the source requires of its own rows does not hold for those of the target.
        fields += [_change_type(pa.field(field.name, pa.null()), field.type) for field in new]
    schema = pa.schema(fields, target.file_schema.metadata)
    return target if schema.equals(target.file_schema) else target.evolve(schema)


def _change_type(field: pa.Field, data_type: pa.DataType) -> pa.Field:
    if data_type == field.type:
        return field
    if pa.types.is_null(field.type):
        # Like a column of a new dataset.
        data_type = remove_views(data_type)
    changed = field.with_type(remove_nested_metadata(data_type))
    return to_stored_schema(pa.schema([changed]), ()).field(0)


def _widen_type(have: pa.DataType, given: pa.DataType) -> pa.DataType:
    """Return the type that holds both; where there is none, the cast decides by the values whether they fit (S3)."""
    common = find_common_type(have, given)
    return have if common is None or is_same_logical_type(have, common) else common


def describe_changes(before: pa.Schema, after: pa.Schema) -> list[str]:
    """Describe a change of schema for people, a line for each column."""
    lines = []
    for field in after:
        if field.name not in before.names:
            lines.append(f"add column {field.name!r} ({field.type})")
        elif not is_same_logical_type(before.field(field.name).type, field.type):
            lines.append(f"change column {field.name!r} from {before.field(field.name).type} to {field.type}")
    return lines + [f"drop column {name!r}" for name in before.names if name not in after.names]
