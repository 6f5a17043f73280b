"""The parser of text queries such as `(Job {seen >= 2})-[POSTED_BY]->(Company)`.

Nodes are in round brackets, edges in square ones; both may have a type and, in braces, conditions. An edge points as
`-[…]->` or `<-[…]-` shows, `-[…]-` is either, and `[NEXT*1..3]` stands for one to three edges in a row. `#7` is the
node with that id, and `$name` a parameter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import OPERATORS, Direction
from merganser.graph.values import MAX_INT64

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d+")
_QUOTED = re.compile(r"`([^`]+)`")
# The longest first, so that `<=` is not read as `<`.
_OPERATOR = re.compile("|".join(map(re.escape, sorted((*OPERATORS, ":"), key=len, reverse=True))))
# The digits of a number that a message quotes.
_MAX_QUOTED_DIGITS = 30
_DECODE_JSON = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a property."""

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
        """Return the conditions as `{name: value}`; only `=` is allowed here."""
        for condition in self.conditions:
            if condition.operator != "=":
                raise InvalidArgumentError(
                    f"The query has {condition.name} {condition.operator}, but a node with an id or in a path can only "
                    "be found by values. Write {name: value}, or query the nodes by themselves."
                )
        return {condition.name: condition.value for condition in self.conditions}


@dataclass(frozen=True, slots=True)
class ParsedEdge:
    """An edge of a query; with `depths`, it stands for that many edges in a row, at least and at most."""

    types: tuple[str, ...]
    conditions: tuple[Condition, ...]
    depths: tuple[int, int | None] | None
    direction: Direction = "out"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query: nodes and the edges between them, or one edge without nodes."""

    nodes: tuple[ParsedNode, ...]
    edges: tuple[ParsedEdge, ...]


def parse_query(text: str, parameters: Mapping[str, Any]) -> ParsedQuery:
    """Parse a query.

    >>> found = parse_query('(Job {url: $url})-[POSTED_BY]->(Company)', {"url": "/1"})
    >>> found.nodes[0].get_match_values(), found.edges[0].types, found.nodes[1].type
    ({'url': '/1'}, ('POSTED_BY',), 'Company')
    """
    parser = _Parser(text, parameters)
    if parser.starts_with("["):
        found = ParsedQuery((), (parser.parse_edge(),))
    else:
        nodes, edges = [parser.parse_node()], []
        while not parser.is_at_end():
            edges.append(parser.parse_hop())
            nodes.append(parser.parse_node())
        found = ParsedQuery(tuple(nodes), tuple(edges))
    parser.finish()
    return found


def parse_hop(text: str, parameters: Mapping[str, Any]) -> tuple[ParsedEdge, ParsedNode]:
    """Parse an edge and the node that it leads to, such as `-[POSTED_BY]->(Company)`."""
    parser = _Parser(text, parameters)
    edge, node = parser.parse_hop(), parser.parse_node()
    parser.finish()
    return edge, node


class _Parser:
    """A text, and the position up to which it is parsed."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self.text = text
        self.position = 0
        self.parameters = parameters

    def parse_node(self) -> ParsedNode:
        self.expect("(")
        type_ = self.parse_type()
        node_id = self.parse_integer("the id of a node") if self.starts_with("#", skip=True) else None
        conditions = self.parse_conditions()
        self.expect(")")
        return ParsedNode(type_, node_id, conditions)

    def parse_hop(self) -> ParsedEdge:
        is_in = self.starts_with("<-", skip=True)
        if not is_in:
            self.expect("-")
        edge = self.parse_edge() if self.starts_with("[") else ParsedEdge((), (), None)
        is_out = self.starts_with("->", skip=True)
        if not is_out:
            self.expect("-")
        if is_in and is_out:
            raise self.make_error("an edge has one direction; write -[…]- for either")
        direction: Literal["in", "out", "both"] = "in" if is_in else "out" if is_out else "both"
        return ParsedEdge(edge.types, edge.conditions, edge.depths, direction)

    def parse_edge(self) -> ParsedEdge:
        self.expect("[")
        types = [first] if (first := self.parse_type()) else []
        while types and self.starts_with("|", skip=True):
            types.append(self.parse_name("a type"))
        depths = self.parse_depths() if self.starts_with("*", skip=True) else None
        conditions = self.parse_conditions()
        self.expect("]")
        return ParsedEdge(tuple(types), conditions, depths)

    def parse_depths(self) -> tuple[int, int | None]:
        least = self.parse_number()
        most = self.parse_number() if self.starts_with("..", skip=True) else least
        least = 1 if least is None else least
        if least < 1 or (most is not None and most < least):
            raise self.make_error("* takes the minimum number of edges, 1 or more, and the maximum, as in *1..3")
        return least, most

    def parse_conditions(self) -> tuple[Condition, ...]:
        if not self.starts_with("{", skip=True):
            return ()
        found = []
        while not self.starts_with("}"):
            name = self.parse_name("the name of a property")
            operator = self.match(_OPERATOR, "an operator such as : or >=").replace(":", "=")
            found.append(Condition(name, operator, self.parse_value()))
            if not self.starts_with(",", skip=True):
                break
        self.expect("}")
        return tuple(found)

    def parse_value(self) -> Any:
        if self.starts_with("$", skip=True):
            name = self.match(_NAME, "the name of a parameter")
            if name not in self.parameters:
                raise InvalidArgumentError(
                    f"The query uses ${name}, but no value is given for it. Add the parameter {name!r}."
                )
            return self.parameters[name]
        try:
            found, self.position = _DECODE_JSON(self.text, self.skip_spaces())
        except RecursionError:
            raise self.make_error("the value is nested too deeply") from None
        except ValueError:
            expected = 'expected a value as in JSON, such as 7, "text" or [1, 2], or a parameter $name'
            raise self.make_error(expected) from None
        return found

    def parse_type(self) -> str | None:
        # Cypher has a colon before a type.
        if self.starts_with(":", skip=True):
            return self.parse_name("a type")
        return None if any(map(self.starts_with, ")]#{*")) else self.parse_name("a type")

    def parse_name(self, what: str) -> str:
        self.skip_spaces()
        if quoted := _QUOTED.match(self.text, self.position):
            self.position = quoted.end()
            return quoted[1]
        if self.starts_with('"'):
            return str(self.parse_value())
        return self.match(_NAME, f"{what}; put `…` around a name with characters other than letters, digits and _")

    def parse_number(self) -> int | None:
        self.skip_spaces()
        return self.parse_integer("the number of edges") if _NUMBER.match(self.text, self.position) else None

    def parse_integer(self, what: str) -> int:
        digits = self.match(_NUMBER, what)
        # Python refuses to read very many digits.
        if len(digits) > len(str(MAX_INT64)) or int(digits) > MAX_INT64:
            given = digits if len(digits) <= _MAX_QUOTED_DIGITS else f"{digits[:_MAX_QUOTED_DIGITS]}…"
            message = f"{what[0].upper()}{what[1:]} in the query, {given}, is too large; the highest is {MAX_INT64}."
            raise InvalidArgumentError(message)
        return int(digits)

    def match(self, wanted: re.Pattern[str], what: str) -> str:
        found = wanted.match(self.text, self.skip_spaces())
        if found is None:
            raise self.make_error(f"expected {what}")
        self.position = found.end()
        return found[0]

    def starts_with(self, mark: str, *, skip: bool = False) -> bool:
        is_next = self.text.startswith(mark, self.skip_spaces())
        if is_next and skip:
            self.position += len(mark)
        return is_next

    def expect(self, mark: str) -> None:
        if not self.starts_with(mark, skip=True):
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
            f"The query cannot be parsed {where}: {what}. A query is written as in (Job {{seen > 1}}), [POSTED_BY] or "
            "(Job)-[POSTED_BY]->(Company)."
        )


def check_parameters_used(parameters: Mapping[str, Any], queries: Sequence[str]) -> None:
    """Refuse parameters that no query uses."""
    for name in parameters:
        if not any(re.search(rf"\${re.escape(name)}\b", text) for text in queries):
            message = f"No query uses the parameter ${name}. Leave it out, or correct the name."
            raise InvalidArgumentError(message)
