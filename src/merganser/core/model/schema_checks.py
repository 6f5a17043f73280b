"""Checks of a source's columns against the target's; each error has the call that would make them fit (S2, S3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.model.schema import format_names, is_castable, is_same_logical_type
from merganser.core.model.widening import find_common_type
from merganser.errors import ColumnTypeError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from merganser.core.model.clauses import Clause


def check_columns(
    source: pa.Schema, target: pa.Schema, needed: Collection[str] | None = None, path: str | None = None
) -> None:
    """Refuse a source with columns that the target lacks, or without those `needed`, by default all (S2)."""
    have, want = set(source.names), set(target.names)
    missing = [name for name in target.names if name not in have and (needed is None or name in needed)]
    unknown = [field for field in source if field.name not in want]
    if missing or unknown:
        raise SchemaMismatchError(
            f"Source and target columns differ: missing from the source: {format_names(missing)}; unknown to the "
            f"target: {format_names(field.name for field in unknown)}. {_find_remedy(unknown, path)}"
        )


def check_exact_columns(clauses: Sequence[Clause], source: pa.Schema, target: pa.Schema) -> None:
    """Refuse columns of which the dialects of SQL disagree: some take all columns by position, some by name."""
    for clause in clauses:
        if not clause.is_exact:
            continue
        action = clause.action.upper()
        unknown = [name for name in source.names if name not in target.names]
        if clause.by_name and unknown:
            raise SchemaMismatchError(
                f"{action} BY NAME takes every column of the source, also {unknown[0]!r}, which the target lacks. "
                "Leave it out of the source."
            )
        if not clause.by_name and source.names != target.names:
            raise SchemaMismatchError(
                f"{action} of all columns is by position in some dialects of SQL, and by name in others. The columns "
                f"of the source are {format_names(source.names)}, those of the target {format_names(target.names)}. "
                f"Write {action} BY NAME, or list the columns."
            )


def _find_remedy(unknown: Collection[pa.Field], path: str | None) -> str:
    if path is None:
        return "Select, rename or add columns in the source."
    if unknown:
        return f"Change the source, call alter({path!r}, add={_format_types(unknown)}), or pass schema_mode='evolve'."
    return "Change the source, or pass schema_mode='evolve', which keeps the old values of missing columns."


def _format_types(fields: Collection[pa.Field]) -> str:
    return "{" + ", ".join(f"{field.name!r}: {str(field.type)!r}" for field in fields) + "}"


def check_types(source: pa.Schema, target: pa.Schema, path: str | None = None, *, evolves: bool = False) -> None:
    """Refuse source types that cannot be cast to the target's without loss (S3, K6).

    A schema that `evolves` has types that hold those of the source already, for example structs with more fields.
    """
    for field in target:
        have = source.field(field.name).type
        common = find_common_type(field.type, have)
        holds = common is not None and is_same_logical_type(common, field.type)
        if is_castable(have, field.type) or (evolves and holds):
            continue
        are_times = pa.types.is_timestamp(have) and pa.types.is_timestamp(field.type)
        hint = " A timestamp with a time zone and one without cannot be compared." if are_times else ""
        remedy = "Cast the column in the source."
        if common is not None and path is not None:
            widen = pa.field(field.name, common)
            call = "" if holds else f" widen it with alter({path!r}, widen={_format_types([widen])}),"
            remedy = f"Cast the column in the source,{call} or pass schema_mode='evolve'."
        raise ColumnTypeError(
            f"Column {field.name!r} has type {have} in the source and {field.type} in the target, which cannot be cast "
            f"without loss.{hint} {remedy}"
        )


def check_name_differs(name: str, names: Collection[str]) -> None:
    """Refuse a new column whose name differs from another only in case, which Spark and DuckDB cannot tell apart."""
    other = next((one for one in names if one != name and one.lower() == name.lower()), None)
    if other is not None:
        raise SchemaMismatchError(
            f"A column {name!r} beside {other!r} would differ only in case, which Spark and DuckDB ignore. Rename the "
            "column."
        )
