"""Optional schemas of graphs: types, their required properties, and the node types that edges connect."""

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
    """The rule for the nodes of a type.

    Args:
        required: The properties that every node has.
    """

    required: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EdgeType:
    """The rule for the edges of a type.

    Args:
        from_types: The types of the nodes that they lead from; none is any.
        to_types: The types of the nodes that they lead to; none is any.
        required: The properties that every edge has.
    """

    from_types: Sequence[str] = ()
    to_types: Sequence[str] = ()
    required: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GraphSchema:
    """The types that a graph may have.

    Args:
        nodes: The rule for each type of nodes.
        edges: The rule for each type of edges.

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
        for rules, rule_class in ((self.nodes, NodeType), (self.edges, EdgeType)):
            for name, rule in rules.items():
                if not isinstance(rule, rule_class):
                    message = f"The schema has {rule!r} for the type {name!r}; give a {rule_class.__name__}."
                    raise InvalidArgumentError(message)
        for name, edge in self.edges.items():
            for type_ in (*_to_sequence(edge.from_types), *_to_sequence(edge.to_types)):
                if type_ not in self.nodes:
                    message = f"The edge type {name!r} names {type_!r}, which is not a node type of the schema; add it."
                    raise GraphSchemaError(message)

    def check_node(self, type_: str, properties: Properties) -> None:
        """Refuse a node that the schema does not allow.

        Args:
            type_: The type of the node.
            properties: Its properties.
        """
        _check_required("node", type_, _get_rule("node", type_, self.nodes).required, properties)

    def check_edge(self, type_: str, properties: Properties, from_type: str, to_type: str) -> None:
        """Refuse an edge that the schema does not allow.

        Args:
            type_: The type of the edge.
            properties: Its properties.
            from_type: The type of the node that it leads from.
            to_type: The type of the node that it leads to.
        """
        rule = _get_rule("edge", type_, self.edges)
        _check_required("edge", type_, rule.required, properties)
        for side, allowed, given in (("from", rule.from_types, from_type), ("to", rule.to_types, to_type)):
            if allowed and given not in _to_sequence(allowed):
                raise GraphSchemaError(
                    f"A {type_!r} edge leads {side} {' or '.join(_to_sequence(allowed))}, not {side} {given}. "
                    "Check its direction and its nodes, or change the schema."
                )


def _get_rule(record: str, type_: str, rules: Mapping[str, RuleT]) -> RuleT:
    if type_ not in rules:
        known = ", ".join(sorted(rules)) or "none"
        message = f"The schema has no {record} type {type_!r}; it has: {known}. Add it, or correct the name."
        raise GraphSchemaError(message)
    return rules[type_]


def _check_required(record: str, type_: str, required: Sequence[str], properties: Properties) -> None:
    for name in _to_sequence(required):
        if properties.get(name) is None:
            raise GraphSchemaError(f"A {type_!r} {record} needs the property {name!r}. Give it, or change the schema.")


def _to_sequence(given: Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given
