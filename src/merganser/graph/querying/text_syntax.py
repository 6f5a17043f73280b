"""What the parser makes of a text query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from merganser.graph.querying.conditions import NO_CONDITIONS, PropertyConditions

if TYPE_CHECKING:
    from merganser.graph.querying.conditions import Direction
    from merganser.graph.querying.text_merge import MergePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedNode:
    """A node of a query; its name is that of the variable, if it has one."""

    type: str | None = None
    id: int | None = None
    conditions: PropertyConditions = NO_CONDITIONS
    name: str | None = None
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedEdge:
    """An edge of a query; with `depths`, it stands for that many edges in a row, at least and at most."""

    types: tuple[str, ...] = ()
    conditions: PropertyConditions = NO_CONDITIONS
    depths: tuple[int, int | None] | None = None
    direction: Direction = "out"
    name: str | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """Nodes and the edges between them, or one edge without nodes."""

    nodes: tuple[ParsedNode, ...]
    edges: tuple[ParsedEdge, ...] = ()


@dataclass(frozen=True, slots=True)
class Operand:
    """A variable, or a property or field of one."""

    variable: str
    kind: Literal["record", "property", "field"]
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An operand compared with a value."""

    operand: Operand
    operator: str
    value: Any
    position: int


@dataclass(frozen=True, slots=True)
class OperandComparison:
    """Two operands compared with each other."""

    left: Operand
    operator: str
    right: Operand


@dataclass(frozen=True, slots=True)
class Negation:
    """What does not hold."""

    inner: Expression


@dataclass(frozen=True, slots=True)
class Junction:
    """Expressions that must all hold, or of which one must."""

    word: Literal["AND", "OR"]
    parts: tuple[Expression, ...]


Expression: TypeAlias = Comparison | OperandComparison | Negation | Junction


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnItem:
    """A column of the result: an operand, or a count of rows or of operands."""

    name: str
    operand: Operand | None
    is_count: bool = False
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class OrderItem:
    """What rows are sorted by: a column of the result, by its name, or something else."""

    by: str | ReturnItem
    is_descending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """The clauses after WHERE; without items, the nodes, edges or paths themselves are the result."""

    items: tuple[ReturnItem, ...] = ()
    is_distinct: bool = False
    order: tuple[OrderItem, ...] = ()
    skip: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class MergeClause:
    """A path to merge, with the properties to set by variable."""

    path: ParsedPath
    on_create: dict[str, dict[str, Any]]
    on_match: dict[str, dict[str, Any]]
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """A query: paths to match, or parts to merge."""

    paths: tuple[ParsedPath, ...] = ()
    where: Expression | None = None
    returning: Returning = Returning()
    merge: MergePlan | None = None

    @property
    def has_clauses(self) -> bool:
        """Whether it has more than a pattern."""
        return self.where is not None or self.returning != Returning() or len(self.paths) > 1
