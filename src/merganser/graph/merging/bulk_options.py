"""What a caller wants of a bulk merge: which columns identify, create and overwrite, and under which condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.errors import InvalidArgumentError
from merganser.graph.sqlite import write
from merganser.graph.sqlite.indexes import read_names
from merganser.graph.values import normalize_name, normalize_properties

if TYPE_CHECKING:
    from merganser.graph.merging.missing import MissingPolicy
    from merganser.graph.sqlite.chosen import DetachPolicy
    from merganser.graph.values import Properties

# The columns of the properties of the same name, or the column for each property.
PropertyColumns: TypeAlias = "str | Sequence[str] | Mapping[str, str]"
# As `on_match`, all columns that are properties.
ALL_COLUMNS = "*"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How rows identify the node at one end of an edge.

    Args:
        type: The type of the node.
        match: For each match property of the node, the column that holds its value.

    >>> Endpoint("Job", {"url": "job_url"}).type
    'Job'
    """

    type: str
    match: Mapping[str, str]

    def __post_init__(self) -> None:
        write.check_type(self.type)
        if not isinstance(self.match, Mapping) or not self.match:
            message = f"The match of the endpoint {self.type} is {self.match!r}; give {{property: column}}."
            raise InvalidArgumentError(message)
        read_names(list(self.match), "the match of an endpoint")
        # Two properties may have the value of one column.
        read_names(sorted(set(self.match.values()), key=str), "the match of an endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """The options of a bulk merge, as the caller gave them."""

    match_on: str | Sequence[str]
    on_create: PropertyColumns
    on_match: PropertyColumns
    condition: Mapping[str, Any] | None
    touch: bool
    warn_on_missing_index: bool
    missing: MissingPolicy
    scope: Mapping[str, Any] | None
    detach: DetachPolicy = False

    def read_changes(self, names: tuple[str, ...]) -> RowChanges:
        """Check what rows write."""
        overwrites_all = isinstance(self.on_match, str) and self.on_match == ALL_COLUMNS
        return RowChanges(
            on_create=read_property_columns(self.on_create, names, "on_create"),
            on_match=read_property_columns(() if overwrites_all else self.on_match, names, "on_match"),
            overwrites_all=overwrites_all,
            condition=normalize_properties(self.condition, "condition"),
            touch=self.touch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What rows write: the column of each property, and the condition on records that they match."""

    on_create: Mapping[str, str] = field(default_factory=dict)
    on_match: Mapping[str, str] = field(default_factory=dict)
    overwrites_all: bool = False
    condition: Properties = field(default_factory=dict)
    touch: bool


def read_property_columns(given: PropertyColumns, names: tuple[str, ...], role: str) -> dict[str, str]:
    """Check which column sets which property; match properties are left out, because a record has them already.

    >>> read_property_columns({"seen": "today", "url": "url"}, ("url",), "on_match")
    {'seen': 'today'}
    """
    if isinstance(given, Mapping):
        columns = {normalize_name(name, role): normalize_name(one, role) for name, one in given.items()}
    else:
        columns = {name: name for name in read_names(given, role)}
    for name in names:
        if columns.pop(name, name) != name:
            raise InvalidArgumentError(f"{role} gives the match property {name!r} another column; leave it out.")
    return columns
