"""Changes of a schema that a caller asks for: add, drop, rename and widen columns.

A change that is made already changes nothing, so that a job can be run again: adding a column that exists with the same
type, dropping one that does not exist, renaming one that has its new name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from merganser.core.model.option_types import to_column_names
from merganser.core.model.schema import is_same_logical_type, is_text, to_stored_schema
from merganser.core.model.schema_checks import check_name_differs
from merganser.core.model.type_names import to_type
from merganser.core.model.validation import check_storable, check_supported_types
from merganser.core.model.widening import find_common_type
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredSchema:
    """The columns of files after a change, and for those that files had before, their old names."""

    schema: pa.Schema
    origins: Mapping[str, str]
    defaults: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanges:
    """The changes that a caller asks for; names are those before the change, except in `add`."""

    add: Mapping[str, pa.DataType]
    default: Mapping[str, Any]
    drop: Sequence[str]
    rename: Mapping[str, str]
    widen: Mapping[str, pa.DataType]
    unify: bool

    def to_plain(self) -> dict[str, Any]:
        """Describe the changes for the history."""
        given = {
            "add": {name: str(data_type) for name, data_type in self.add.items()},
            "default": {name: str(value) for name, value in self.default.items()},
            "drop": list(self.drop),
            "rename": dict(self.rename),
            "widen": {name: str(data_type) for name, data_type in self.widen.items()},
            "unify": self.unify,
        }
        return {name: value for name, value in given.items() if value}

    def leave_out_done(self, names: Sequence[str]) -> SchemaChanges:
        """Return the changes without what earlier renames made: the column is not dropped, and widens as it is now."""
        done = {old: new for old, new in self.rename.items() if old not in names and new in names}
        drop = [name for name in self.drop if name not in done.values()]
        return replace(self, drop=drop, widen={done.get(name, name): kind for name, kind in self.widen.items()})

    def apply(self, schema: pa.Schema, partition_columns: Sequence[str]) -> AlteredSchema:
        """Apply the changes to the schema of a dataset's files."""
        self._check_names(schema, partition_columns)
        origins = {self.rename.get(name, name): name for name in schema.names if name not in self.drop}
        kept = [self._widen(schema.field(name)).with_name(new) for new, name in origins.items()]
        added = self._list_new_fields([*kept, *(pa.field(name, pa.null()) for name in partition_columns)])
        if not kept and not added:
            raise InvalidArgumentError("No column would be left in the files. Keep at least one.")
        return AlteredSchema(
            schema=to_stored_schema(pa.schema([*kept, *added], schema.metadata), ()),
            origins=origins,
            defaults={one.name: self._make_default(one) for one in added if self.default.get(one.name) is not None},
        )

    def _check_names(self, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        for argument, names in (("drop", self.drop), ("rename", self.rename), ("widen", self.widen)):
            found = [name for name in names if name in partition_columns]
            if found:
                raise InvalidArgumentError(
                    f"{argument} names the partition column {found[0]!r}, whose values are in the names of folders. "
                    "Write a new dataset with write_dataset to change it."
                )
        known = {*schema.names, *partition_columns}
        missing = [name for name in self.widen if name not in known]
        missing += [old for old, new in self.rename.items() if old not in known and new not in known]
        if missing:
            listed = ", ".join([*schema.names, *partition_columns])
            raise SchemaMismatchError(f"The dataset has no column {missing[0]!r}. Its columns are: {listed}.")
        stay = known.difference(self.drop, self.rename)
        for old, new in self.rename.items():
            if old in known and new in stay:
                raise SchemaMismatchError(
                    f"{old!r} cannot be renamed to {new!r}, which exists. Drop or rename that one."
                )
            check_name_differs(new, {*stay, *self.rename.values()})

    def _widen(self, field: pa.Field) -> pa.Field:
        wanted = self.widen.get(field.name)
        if wanted is None or is_same_logical_type(field.type, wanted):
            return field
        common = find_common_type(wanted, field.type)
        if common is None or not is_same_logical_type(common, wanted):
            raise ColumnTypeError(
                f"Column {field.name!r} has type {field.type}, which cannot be widened to {wanted} without loss. "
                "Choose a type that holds every value of the old one, or add a column of the new type."
            )
        return field.with_type(wanted)

    def _list_new_fields(self, kept: Sequence[pa.Field]) -> list[pa.Field]:
        have = {field.name: field.type for field in kept}
        new = []
        for name, data_type in self.add.items():
            if name not in have:
                check_name_differs(name, {*have, *self.add})
                new.append(pa.field(name, data_type))
            elif not is_same_logical_type(have[name], data_type):
                raise SchemaMismatchError(
                    f"Column {name!r} exists, with another type than {data_type}. Choose another name, or widen it."
                )
        schema = pa.schema(new)
        check_supported_types(schema, "new schema")
        check_storable(schema)
        return new

    def _make_default(self, field: pa.Field) -> pa.Array:
        value = self.default[field.name]
        try:
            if isinstance(field.type, pa.BaseExtensionType):
                value = value.bytes if isinstance(value, UUID) else value
                return pa.ExtensionArray.from_storage(field.type, pa.array([value], field.type.storage_type))
            if isinstance(value, str) and not is_text(field.type):
                return pa.array([value]).cast(field.type)
            return pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = (
                f"The default {value!r} of column {field.name!r} is not {field.type}: {error}. Correct one of them."
            )
            raise ColumnValueError(message) from error


def make_changes(
    *,
    add: Mapping[str, str | pa.DataType] | None,
    default: Mapping[str, Any] | None,
    drop: Sequence[str] | str | None,
    rename: Mapping[str, str] | None,
    widen: Mapping[str, str | pa.DataType] | None,
    unify: bool,
) -> SchemaChanges:
    """Check the changes that can be checked without the dataset."""
    for name, given in (("add", add), ("default", default), ("rename", rename), ("widen", widen)):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgumentError(f"{name} must map columns to {_VALUES[name]}, not {given!r}.")
    changes = SchemaChanges(
        add={name: to_type(data_type, name) for name, data_type in (add or {}).items()},
        default=dict(default or {}),
        drop=to_column_names(drop, "drop"),
        rename=dict(rename or {}),
        widen={name: to_type(data_type, name) for name, data_type in (widen or {}).items()},
        unify=unify,
    )
    if not changes.to_plain():
        raise InvalidArgumentError("There is nothing to change. Pass add, drop, rename, widen or unify.")
    new = [*changes.rename.values(), *changes.add]
    invalid = next((name for name in new if not _is_column_name(name)), None)
    if invalid is not None:
        raise InvalidArgumentError(f"{invalid!r} is not a column name. Name each column with a string.")
    twice = next((name for name in new if new.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"Two columns would be named {twice!r}. Choose another name.")
    for name in changes.default:
        if name not in changes.add:
            raise InvalidArgumentError(f"default names {name!r}, which is not in add. Only new columns have a default.")
    for name in changes.drop:
        if name in changes.rename or name in changes.widen or name in changes.add:
            raise InvalidArgumentError(f"{name!r} is in drop and in another change. Drop it in a call of its own.")
    return changes


def _is_column_name(name: object) -> bool:
    """Whether a name can be stored: Parquet has no surrogates."""
    return isinstance(name, str) and bool(name) and not any("\ud800" <= character <= "\udfff" for character in name)


_VALUES = {"add": "types", "default": "values", "rename": "new names", "widen": "types"}
