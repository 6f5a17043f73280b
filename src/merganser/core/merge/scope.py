"""A scope: the partitions that a source covers completely; rows outside it are not missing from the source (M6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.model.partitions import HIVE_NULL, UNKNOWN, list_tokens, parse, to_token
from merganser.errors import InvalidArgumentError, PartitionValueError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from merganser.core.dataset.target import Target
    from merganser.core.model.partitions import Unknown


@dataclass(frozen=True, slots=True)
class Scope:
    """The values in scope of some partition columns, by the index of the column."""

    values: Mapping[int, frozenset[Hashable]]

    def contains(self, partition: Sequence[Hashable | Unknown]) -> bool:
        """Whether a partition is in scope."""
        return all(partition[at] in values for at, values in self.values.items())


def make_scope(given: Mapping[str, Sequence[Any]], types: Mapping[str, pa.DataType]) -> Scope:
    """Parse a caller's scope; a string is read as the value of a folder name, unescaped."""
    columns = list(types)
    unknown = [name for name in given if name not in types]
    if unknown:
        raise InvalidArgumentError(
            f"scope names {unknown[0]!r}, which is not a partition column. Partition columns of the dataset: "
            f"{', '.join(columns) or 'none'}."
        )
    parsed = {name: frozenset(_parse_value(one, name, types[name]) for one in values) for name, values in given.items()}
    return Scope({columns.index(name): values for name, values in parsed.items()})


def _parse_value(value: Any, name: str, data_type: pa.DataType) -> Hashable:
    if isinstance(value, str):
        found = parse(None if value == HIVE_NULL else value, data_type)
    else:
        try:
            typed = pa.scalar(value, data_type)
            # Arrow truncates a number to what fits.
            found = to_token(typed) if typed.as_py() == value else UNKNOWN
        except (pa.ArrowException, TypeError, OverflowError):
            found = UNKNOWN
    if isinstance(found, type(UNKNOWN)):
        message = (
            f"scope has {value!r} for {name!r}, which is not of type {data_type}. Give a value of that type, or a "
            "string that can be parsed as one."
        )
        raise InvalidArgumentError(message)
    return found


def check_source(scope: Scope, partitions: pa.Table) -> None:
    """Refuse source rows outside the scope: rows are deleted and written in the same partitions."""
    for partition in list_tokens(partitions, partitions.column_names):
        if not scope.contains(partition):
            pairs = zip(partitions.column_names, partition, strict=True)
            values = ", ".join(f"{name}={value!r}" for name, value in pairs)
            message = f"The source has rows of {values}, outside the scope. Filter them out, or widen the scope."
            raise PartitionValueError(message)


def flag_files_in_scope(scope: Scope | None, target: Target) -> list[bool]:
    """Flag the files whose rows may be missing from the source; without a scope, all of them."""
    if scope is None:
        return [True] * len(target.files)
    for file, partition in enumerate(target.partitions):
        if target.file_rows[file] and any(partition[at] is UNKNOWN for at in scope.values):
            raise PartitionValueError(
                f"The path of {target.location.to_display(target.files[file].rel)} does not show whether it is in "
                "scope. Move it into its partition's folder."
            )
    return [scope.contains(partition) for partition in target.partitions]
