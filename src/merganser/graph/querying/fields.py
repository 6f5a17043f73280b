"""The fields of records, beside their properties: ids, types and times, as queries compare and return them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError
from merganser.graph.sqlite.write import check_ids
from merganser.graph.values import encode

if TYPE_CHECKING:
    from merganser.graph.sqlite.sql import Parameter

TIME_FIELDS = ("created_at", "updated_at")
# The fields that conditions and orders of the library name; a property of such a name is reached otherwise.
COMPARED_FIELDS = ("id", *TIME_FIELDS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in SQL, with the values of its parameters."""

    sql: str
    parameters: tuple[Parameter, ...] = ()


def build_field_sql(name: str, table: str) -> str:
    """Build the SQL of a field as it is compared: a time in microseconds, so that no datetime is rounded."""
    return f"{table}{name} * 1000" if name in TIME_FIELDS else f"{table}{name}"


def to_stored(name: str, value: Any) -> Parameter:
    """Convert what a field is compared with: an id, or a datetime or its ISO string to microseconds.

    >>> to_stored("created_at", "1970-01-01T00:00:01+00:00")
    1000000
    """
    if name == "id":
        check_ids(value)
        return int(value)
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, datetime) or found.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name} cannot be compared with {value!r}; give a datetime with a time zone, or its ISO string such as "
            "'2026-01-02T03:04:05+00:00'."
        )
    return (found - _EPOCH) // timedelta(microseconds=1)


def build_type_condition(name: str, operator: str, value: Any, table: str) -> Condition:
    """Build the condition that a type is, or is not, a name or one of several."""
    names = list(value) if operator == "in" and isinstance(value, list | tuple | set | frozenset) else [value]
    if not all(isinstance(one, str) for one in names):
        message = f"{name} is compared with {value!r}; give the name of a type, such as 'Job', or a list of names."
        raise InvalidArgumentError(message)
    negation = "NOT " if operator == "!=" else ""
    return Condition(f"{negation}{table}type IN (SELECT value FROM json_each(?))", (encode(names),))
