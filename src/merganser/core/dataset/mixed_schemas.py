"""Datasets whose files have different schemas: the one schema that holds all of them, and what differs where (E5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from merganser.core.dataset.file_statistics import drop_columns
from merganser.core.model.schema import is_same_logical_type
from merganser.core.model.schema_checks import check_name_differs
from merganser.core.model.widening import find_common_type
from merganser.display import pluralize
from merganser.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.dataset.file_statistics import Summaries
    from merganser.core.dataset.target import Target

_SHOWN_COLUMNS = 5
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """A column in which files differ: the files of each of its types, `missing` being one of them."""

    column: str
    files: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        """Name the column, its types and a file of each."""
        return f"{self.column!r} is " + ", ".join(_format_files(one, files) for one, files in self.files.items())


def _format_files(data_type: str, files: Sequence[str]) -> str:
    preposition, example = "from" if data_type == MISSING else "in", "like " if len(files) > 1 else ""
    return f"{data_type} {preposition} {pluralize(len(files), 'file')} ({example}{files[0]})"


def unify_schemas(schemas: Sequence[pa.Schema], paths: Sequence[str], partition_columns: Sequence[str]) -> pa.Schema:
    """Join the schemas of files, given with the path of a file each: the columns of all, in the types that hold all."""
    own = [drop_columns(schema, partition_columns) for schema in schemas]
    fields = {field.name: field for field in own[0]}
    found_in = dict.fromkeys(fields, paths[0])
    for schema, path in zip(own[1:], paths[1:], strict=True):
        for field in schema:
            before = fields.get(field.name)
            if before is None:
                fields[field.name], found_in[field.name] = field.with_nullable(True), path  # noqa: FBT003  Arrow's own signature
            elif not is_same_logical_type(before.type, field.type):
                joined = find_common_type(before.type, field.type)
                if joined is None:
                    raise SchemaMismatchError(
                        f"The files of the dataset disagree about column {field.name!r}: {before.type} in "
                        f"{found_in[field.name]}, {field.type} in {path}, and no type holds both without loss. Rewrite "
                        "one of the files with the other type, or the dataset with write_dataset and mode='overwrite'."
                    )
                fields[field.name] = before.with_type(joined)
    return pa.schema(list(fields.values()), own[0].metadata)


def find_differences(target: Target) -> list[SchemaDifference]:
    """Find the columns in which the files of a dataset differ, in other than their order or layout."""
    if target.file_schema is None or not target.is_mixed:
        return []
    summaries = cast("Summaries", target.summaries)
    paths = [target.location.to_display(file.rel) for file in target.files]
    numbers = {
        int(number): np.flatnonzero(summaries.schema_numbers == number)
        for number in np.unique(summaries.schema_numbers)
    }
    found = []
    for field in target.file_schema:
        files: dict[str, list[str]] = {}
        for number, members in numbers.items():
            schema = summaries.schemas[number]
            kind = str(schema.field(field.name).type) if field.name in schema.names else MISSING
            files.setdefault(kind, []).extend(paths[at] for at in members.tolist())
        if _differ(field.name, [summaries.schemas[number] for number in numbers]):
            found.append(SchemaDifference(field.name, {kind: sorted(some) for kind, some in files.items()}))
    return found


def _differ(name: str, schemas: Sequence[pa.Schema]) -> bool:
    types = [schema.field(name).type for schema in schemas if name in schema.names]
    return 0 < len(types) < len(schemas) or any(not is_same_logical_type(types[0], one) for one in types[1:])


def find_reordered(target: Target) -> list[str]:
    """Find the files whose columns are in another order than those of the dataset."""
    if target.file_schema is None or target.summaries is None:
        return []
    partitions = target.partition_columns
    orders = [drop_columns(schema, partitions).names for schema in target.summaries.schemas]
    return [
        target.location.to_display(target.files[at].rel)
        for at, number in enumerate(target.summaries.schema_numbers.tolist())
        if orders[number] != target.file_schema.names
    ]


def check_names_differ(target: Target) -> None:
    """Refuse to give files one schema if a column of only some of them differs from another only in case."""
    for difference in find_differences(target):
        if MISSING in difference.files:
            check_name_differs(difference.column, cast("pa.Schema", target.schema).names)


def check_one_schema(target: Target, remedy: str = "") -> None:
    """Refuse a dataset whose files differ in their columns; the remedy follows the one that always helps."""
    differences = find_differences(target)
    if differences:
        listed = "; ".join(map(str, differences[:_SHOWN_COLUMNS]))
        more = f"; and {len(differences) - _SHOWN_COLUMNS} more" if len(differences) > _SHOWN_COLUMNS else ""
        raise SchemaMismatchError(
            f"The files of {target.location.display} have different columns: {listed}{more}. Give all of them one "
            f"schema with alter({target.location.display!r}, unify=True){remedy}."
        )
