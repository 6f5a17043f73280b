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
from merganser.graph.values import HIGHEST
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
_MOST_DIGITS = 30
_READ_JSON = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Condition:
    """What holds of a property."""

    name: str
    operator: Any
    value: Any


@dataclass(frozen=True, slots=True)
class NodeText:
    """A node of a query."""

    type: str | None
    id: int | None
    conditions: tuple[Condition, ...]

    def equalities(self) -> dict[str, Any]:
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
class EdgeText:
    """An edge of a query; `depths` are how many edges in a row it stands for, if it may be several."""

    types: tuple[str, ...]
    conditions: tuple[Condition, ...]
    depths: tuple[int, int | None] | None
    direction: Direction = "out"


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query: nodes and the edges between them, or one edge alone."""

    nodes: tuple[NodeText, ...]
    edges: tuple[EdgeText, ...]


def read_query(text: str, parameters: Mapping[str, Any]) -> QueryText:
    """Read a query.

    >>> found = read_query('(Job {url: $url})-[POSTED_BY]->(Company)', {"url": "/1"})
    >>> found.nodes[0].equalities(), found.edges[0].types, found.nodes[1].type
    ({'url': '/1'}, ('POSTED_BY',), 'Company')
    """
    reader = _Reader(text, parameters)
    if reader.sees("["):
        found = QueryText((), (reader.edge(),))
    else:
        nodes, edges = [reader.node()], []
        while not reader.at_end():
            edges.append(reader.hop())
            nodes.append(reader.node())
        found = QueryText(tuple(nodes), tuple(edges))
    reader.finish()
    return found


def read_hop(text: str, parameters: Mapping[str, Any]) -> tuple[EdgeText, NodeText]:
    """Read an edge and the node at its end, such as `-[POSTED_BY]->(Company)`."""
    reader = _Reader(text, parameters)
    edge, node = reader.hop(), reader.node()
    reader.finish()
    return edge, node


class _Reader:
    """A text, and how far it is read."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self.text = text
        self.place = 0
        self.parameters = parameters

    def node(self) -> NodeText:
        self.take("(")
        type_ = self.type()
        known = self.whole("the id of a node") if self.sees("#", take=True) else None
        conditions = self.conditions()
        self.take(")")
        return NodeText(type_, known, conditions)

    def hop(self) -> EdgeText:
        back = self.sees("<-", take=True)
        if not back:
            self.take("-")
        edge = self.edge() if self.sees("[") else EdgeText((), (), None)
        ahead = self.sees("->", take=True)
        if not ahead:
            self.take("-")
        if back and ahead:
            raise self.wrong("an edge points one way; write -[…]- if it does not matter which")
        direction: Literal["in", "out", "both"] = "in" if back else "out" if ahead else "both"
        return EdgeText(edge.types, edge.conditions, edge.depths, direction)

    def edge(self) -> EdgeText:
        self.take("[")
        types = [first] if (first := self.type()) else []
        while types and self.sees("|", take=True):
            types.append(self.name("a type"))
        depths = self.depths() if self.sees("*", take=True) else None
        conditions = self.conditions()
        self.take("]")
        return EdgeText(tuple(types), conditions, depths)

    def depths(self) -> tuple[int, int | None]:
        least = self.number()
        most = self.number() if self.sees("..", take=True) else least
        least = 1 if least is None else least
        if least < 1 or (most is not None and most < least):
            raise self.wrong("* is followed by the fewest edges, 1 or more, and the most, as in *1..3")
        return least, most

    def conditions(self) -> tuple[Condition, ...]:
        if not self.sees("{", take=True):
            return ()
        found = []
        while not self.sees("}"):
            name = self.name("the name of a property")
            operator = self.match(_OPERATOR, "an operator such as : or >=").replace(":", "=")
            found.append(Condition(name, operator, self.value()))
            if not self.sees(",", take=True):
                break
        self.take("}")
        return tuple(found)

    def value(self) -> Any:
        if self.sees("$", take=True):
            name = self.match(_NAME, "the name of a parameter")
            if name not in self.parameters:
                message = f"The query has ${name}, and nobody says what it is. Give --param {name}=VALUE."
                raise InvalidArgumentError(message)
            return self.parameters[name]
        try:
            found, self.place = _READ_JSON(self.text, self.skip())
        except RecursionError:
            raise self.wrong("the value is nested too deeply") from None
        except ValueError:
            raise self.wrong('expected a value as in JSON, such as 7, "text" or [1, 2], or a parameter $name') from None
        return found

    def type(self) -> str | None:
        # Cypher has a colon before a type.
        if self.sees(":", take=True):
            return self.name("a type")
        return None if any(map(self.sees, ")]#{*")) else self.name("a type")

    def name(self, what: str) -> str:
        self.skip()
        if quoted := _QUOTED.match(self.text, self.place):
            self.place = quoted.end()
            return quoted[1]
        if self.sees('"'):
            return str(self.value())
        return self.match(_NAME, f"{what}; one with other characters than letters, digits and _ stands between `…`")

    def number(self) -> int | None:
        self.skip()
        return self.whole("the number of edges") if _NUMBER.match(self.text, self.place) else None

    def whole(self, what: str) -> int:
        digits = self.match(_NUMBER, what)
        # Python refuses to read very many digits.
        if len(digits) > len(str(HIGHEST)) or int(digits) > HIGHEST:
            shown = digits if len(digits) <= _MOST_DIGITS else f"{digits[:_MOST_DIGITS]}…"
            message = f"{what[0].upper()}{what[1:]} in the query, {shown}, is too large; the highest is {HIGHEST}."
            raise InvalidArgumentError(message)
        return int(digits)

    def match(self, wanted: re.Pattern[str], what: str) -> str:
        found = wanted.match(self.text, self.skip())
        if found is None:
            raise self.wrong(f"expected {what}")
        self.place = found.end()
        return found[0]

    def sees(self, mark: str, *, take: bool = False) -> bool:
        seen = self.text.startswith(mark, self.skip())
        if seen and take:
            self.place += len(mark)
        return seen

    def take(self, mark: str) -> None:
        if not self.sees(mark, take=True):
            raise self.wrong(f"expected {mark}")

    def skip(self) -> int:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.place

    def at_end(self) -> bool:
        return self.skip() == len(self.text)

    def finish(self) -> None:
        if not self.at_end():
            raise self.wrong("expected the end")

    def wrong(self, what: str) -> InvalidArgumentError:
        rest = self.text[self.place :]
        where = f"before {rest[:20]!r}" if rest else "at the end"
        return InvalidArgumentError(
            f"The query cannot be read {where}: {what}. A query is drawn, as in (Job {{seen > 1}}), [POSTED_BY] or "
            "(Job)-[POSTED_BY]->(Company)."
        )


def json_value(text: str) -> Any:
    """Take a value for what it would be in JSON, else for a text."""
    try:
        return load_json(text)
    except ValueError:
        return text


def check_used(parameters: Mapping[str, Any], texts: Sequence[str]) -> None:
    """Refuse parameters that no text names."""
    for name in parameters:
        if not any(re.search(rf"\${re.escape(name)}\b", text) for text in texts):
            message = f"No query has ${name}. Leave --param {name} out, or correct the name."
            raise InvalidArgumentError(message)
