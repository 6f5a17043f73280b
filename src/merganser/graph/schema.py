"""An optional schema of a graph: its types, the properties that they need, and what edges may connect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from merganser.errors import GraphSchemaError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.graph.values import Properties

RuleT = TypeVar("RuleT")


@dataclass(frozen=True, slots=True)
class NodeType:
    """The properties that every node of a type has."""

    required: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EdgeType:
    """The node types that edges of a type lead from and to, any if none is named, and the properties they have."""

    from_types: Sequence[str] = ()
    to_types: Sequence[str] = ()
    required: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GraphSchema:
    """All types that a graph may have.

    >>> schema = GraphSchema(
    ...     nodes={"Job": NodeType(required=["url"]), "Company": NodeType()},
    ...     edges={"POSTED_BY": EdgeType(from_types=["Job"], to_types=["Company"])},
    ... )
    >>> schema.check_node("Job", {"title": "Engineer"})
    Traceback (most recent call last):
    ...
    merganser.errors.GraphSchemaError: A 'Job' node needs the property 'url'. Give it, or change the schema.
    """

    nodes: Mapping[str, NodeType] = field(default_factory=dict)
    edges: Mapping[str, EdgeType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rules, kind in ((self.nodes, NodeType), (self.edges, EdgeType)):
            for name, rule in rules.items():
                if not isinstance(rule, kind):
                    message = f"The schema has {rule!r} for the type {name!r}; give a {kind.__name__}."
                    raise InvalidArgumentError(message)
        for name, edge in self.edges.items():
            for type_ in (*_to_sequence(edge.from_types), *_to_sequence(edge.to_types)):
                if type_ not in self.nodes:
                    message = f"The edge type {name!r} names {type_!r}, which is no node type of the schema; add it."
                    raise GraphSchemaError(message)

    def check_node(self, type_: str, properties: Properties) -> None:
        """Refuse a node that the schema does not allow."""
        _check_required("node", type_, _get_rule("node", type_, self.nodes).required, properties)

    def check_edge(self, type_: str, properties: Properties, from_type: str, to_type: str) -> None:
        """Refuse an edge that the schema does not allow."""
        rule = _get_rule("edge", type_, self.edges)
        _check_required("edge", type_, rule.required, properties)
        for end, allowed, given in (("from", rule.from_types, from_type), ("to", rule.to_types, to_type)):
            if allowed and given not in _to_sequence(allowed):
                message = (
                    f"A {type_!r} edge leads {end} {' or '.join(_to_sequence(allowed))}, not {end} {given}. "
                    "Check its direction and its nodes, or change the schema."
                )
                raise GraphSchemaError(message)


def _get_rule(kind: str, type_: str, rules: Mapping[str, RuleT]) -> RuleT:
    if type_ not in rules:
        known = ", ".join(sorted(rules)) or "none"
        message = f"The schema has no {kind} type {type_!r}; it has: {known}. Add it, or correct the name."
        raise GraphSchemaError(message)
    return rules[type_]


def _check_required(kind: str, type_: str, required: Sequence[str], properties: Properties) -> None:
    for name in _to_sequence(required):
        if properties.get(name) is None:
            message = f"A {type_!r} {kind} needs the property {name!r}. Give it, or change the schema."
            raise GraphSchemaError(message)


def _to_sequence(given: Sequence[str]) -> Sequence[str]:
    """Take one name for a list of one."""
    return (given,) if isinstance(given, str) else given
