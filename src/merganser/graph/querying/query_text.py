"""Queries as text, drawn as people draw them: `(Job {seen >= 2})-[POSTED_BY]->(Company)`.

A node is in round brackets and an edge in square ones; both may have a type and, in braces, conditions. An arrow says
which way an edge points, `-[…]-` that it does not matter, and `[NEXT*1..3]` that there may be several edges one after
the other. `#7` is the node with that id, and `$name` a parameter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import OPERATORS
from merganser.graph.values import MAX_INT64
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.graph.querying.conditions import Direction

_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"`([^`]+)`")
# The longest first, so that `<=` is not read as `<`.
_OPERATOR = re.compile("|".join(map(re.escape, sorted((*OPERATORS, ":"), key=len, reverse=True))))
# Of a number in a message.
_MAX_SHOWN_DIGITS = 30
_DECODE_JSON = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Condition:
    """What holds of a property."""

    name: str
    operator: Any
    value: Any


@dataclass(frozen=True, slots=True)
class ParsedNode:
    """A node of a query."""

    type: str | None
    id: int | None
    conditions: tuple[Condition, ...]

    def get_match_values(self) -> dict[str, Any]:
        """Give the conditions as values, where nothing else can be asked."""
        for condition in self.conditions:
            if condition.operator != "=":
                message = (
                    f"The query asks for {condition.name} {condition.operator}, but a node with an id, or one of "
                    "several in a row, is found by values alone. Say {name: value}, or ask for the nodes by themselves."
                )
                raise InvalidArgumentError(message)
        return {condition.name: condition.value for condition in self.conditions}


@dataclass(frozen=True, slots=True)
class ParsedEdge:
    """An edge of a query; `parse_depths` are how many edges in a row it stands for, if it may be several."""

    types: tuple[str, ...]
    conditions: tuple[Condition, ...]
    depths: tuple[int, int | None] | None
    direction: Direction = "out"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query: nodes and the edges between them, or one edge alone."""

    nodes: tuple[ParsedNode, ...]
    edges: tuple[ParsedEdge, ...]


def parse_query(text: str, parameters: Mapping[str, Any]) -> ParsedQuery:
    """Read a query.

    >>> found = parse_query('(Job {url: $url})-[POSTED_BY]->(Company)', {"url": "/1"})
    >>> found.nodes[0].get_match_values(), found.edges[0].types, found.nodes[1].parse_type
    ({'url': '/1'}, ('POSTED_BY',), 'Company')
    """
    reader = _Parser(text, parameters)
    if reader.starts_with("["):
        found = ParsedQuery((), (reader.parse_edge(),))
    else:
        nodes, edges = [reader.parse_node()], []
        while not reader.is_at_end():
            edges.append(reader.parse_hop())
            nodes.append(reader.parse_node())
        found = ParsedQuery(tuple(nodes), tuple(edges))
    reader.finish()
    return found


def parse_hop(text: str, parameters: Mapping[str, Any]) -> tuple[ParsedEdge, ParsedNode]:
    """Read an edge and the node at its end, such as `-[POSTED_BY]->(Company)`."""
    reader = _Parser(text, parameters)
    edge, node = reader.parse_hop(), reader.parse_node()
    reader.finish()
    return edge, node


class _Parser:
    """A text, and how far it is read."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self.text = text
        self.position = 0
        self.parameters = parameters

    def parse_node(self) -> ParsedNode:
        self.expect("(")
        type_ = self.parse_type()
        known = self.parse_integer("the id of a node") if self.starts_with("#", take=True) else None
        conditions = self.parse_conditions()
        self.expect(")")
        return ParsedNode(type_, known, conditions)

    def parse_hop(self) -> ParsedEdge:
        back = self.starts_with("<-", take=True)
        if not back:
            self.expect("-")
        edge = self.parse_edge() if self.starts_with("[") else ParsedEdge((), (), None)
        ahead = self.starts_with("->", take=True)
        if not ahead:
            self.expect("-")
        if back and ahead:
            raise self.make_error("an edge points one way; write -[…]- if it does not matter which")
        direction: Literal["in", "out", "both"] = "in" if back else "out" if ahead else "both"
        return ParsedEdge(edge.types, edge.conditions, edge.depths, direction)

    def parse_edge(self) -> ParsedEdge:
        self.expect("[")
        types = [first] if (first := self.parse_type()) else []
        while types and self.starts_with("|", take=True):
            types.append(self.parse_name("a type"))
        depths = self.parse_depths() if self.starts_with("*", take=True) else None
        conditions = self.parse_conditions()
        self.expect("]")
        return ParsedEdge(tuple(types), conditions, depths)

    def parse_depths(self) -> tuple[int, int | None]:
        least = self.parse_number()
        most = self.parse_number() if self.starts_with("..", take=True) else least
        least = 1 if least is None else least
        if least < 1 or (most is not None and most < least):
            raise self.make_error("* is followed by the fewest edges, 1 or more, and the most, as in *1..3")
        return least, most

    def parse_conditions(self) -> tuple[Condition, ...]:
        if not self.starts_with("{", take=True):
            return ()
        found = []
        while not self.starts_with("}"):
            name = self.parse_name("the name of a property")
            operator = self.match(_OPERATOR, "an operator such as : or >=").replace(":", "=")
            found.append(Condition(name, operator, self.parse_value()))
            if not self.starts_with(",", take=True):
                break
        self.expect("}")
        return tuple(found)

    def parse_value(self) -> Any:
        if self.starts_with("$", take=True):
            name = self.match(_NAME, "the name of a parameter")
            if name not in self.parameters:
                message = f"The query has ${name}, and nobody says what it is. Give --param {name}=VALUE."
                raise InvalidArgumentError(message)
            return self.parameters[name]
        try:
            found, self.position = _DECODE_JSON(self.text, self.skip_spaces())
        except RecursionError:
            raise self.make_error("the value is nested too deeply") from None
        except ValueError:
            raise self.make_error(
                'expected a value as in JSON, such as 7, "text" or [1, 2], or a parameter $name'
            ) from None
        return found

    def parse_type(self) -> str | None:
        # Cypher has a colon before a type.
        if self.starts_with(":", take=True):
            return self.parse_name("a type")
        return None if any(map(self.starts_with, ")]#{*")) else self.parse_name("a type")

    def parse_name(self, what: str) -> str:
        self.skip_spaces()
        if quoted := _QUOTED.match(self.text, self.position):
            self.position = quoted.end()
            return quoted[1]
        if self.starts_with('"'):
            return str(self.parse_value())
        return self.match(_NAME, f"{what}; one with other characters than letters, digits and _ stands between `…`")

    def parse_number(self) -> int | None:
        self.skip_spaces()
        return self.parse_integer("the number of edges") if _NUMBER.match(self.text, self.position) else None

    def parse_integer(self, what: str) -> int:
        digits = self.match(_NUMBER, what)
        # Python refuses to read very many digits.
        if len(digits) > len(str(MAX_INT64)) or int(digits) > MAX_INT64:
            shown = digits if len(digits) <= _MAX_SHOWN_DIGITS else f"{digits[:_MAX_SHOWN_DIGITS]}…"
            message = f"{what[0].upper()}{what[1:]} in the query, {shown}, is too large; the highest is {MAX_INT64}."
            raise InvalidArgumentError(message)
        return int(digits)

    def match(self, wanted: re.Pattern[str], what: str) -> str:
        found = wanted.match(self.text, self.skip_spaces())
        if found is None:
            raise self.make_error(f"expected {what}")
        self.position = found.end()
        return found[0]

    def starts_with(self, mark: str, *, take: bool = False) -> bool:
        seen = self.text.startswith(mark, self.skip_spaces())
        if seen and take:
            self.position += len(mark)
        return seen

    def expect(self, mark: str) -> None:
        if not self.starts_with(mark, take=True):
            raise self.make_error(f"expected {mark}")

    def skip_spaces(self) -> int:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1
        return self.position

    def is_at_end(self) -> bool:
        return self.skip_spaces() == len(self.text)

    def finish(self) -> None:
        if not self.is_at_end():
            raise self.make_error("expected the end")

    def make_error(self, what: str) -> InvalidArgumentError:
        rest = self.text[self.position :]
        where = f"before {rest[:20]!r}" if rest else "at the end"
        return InvalidArgumentError(
            f"The query cannot be read {where}: {what}. A query is drawn, as in (Job {{seen > 1}}), [POSTED_BY] or "
            "(Job)-[POSTED_BY]->(Company)."
        )


def parse_json_value(text: str) -> Any:
    """Take a value for what it would be in JSON, else for a text."""
    try:
        return load_json(text)
    except ValueError:
        return text


def check_parameters_used(parameters: Mapping[str, Any], queries: Sequence[str]) -> None:
    """Refuse parameters that no text names."""
    for name in parameters:
        if not any(re.search(rf"\${re.escape(name)}\b", text) for text in queries):
            message = f"No query has ${name}. Leave --param {name} out, or correct the name."
            raise InvalidArgumentError(message)
