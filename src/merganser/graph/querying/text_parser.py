"""The parser of text queries: patterns such as `(:Job {seen >= 2})-[:POSTED_BY]->(:Company)`, and a part of openCypher.

Nodes are in round brackets, edges in square ones; both may have a variable, a type and, in braces, conditions. An edge
points as `-[…]->` or `<-[…]-` shows, `-[…]-` is either, and `[:NEXT*1..3]` stands for one to three edges in a row.
`#7` is the node with that id, and `$name` a parameter. A name without a colon is a variable after MATCH and MERGE, as
in openCypher, and otherwise a type.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from merganser.errors import InvalidArgumentError
from merganser.graph.querying.conditions import NO_CONDITIONS, OPERATORS, PropertyConditions
from merganser.graph.querying.text_clauses import ClauseParser
from merganser.graph.querying.text_merge import plan_merge
from merganser.graph.querying.text_syntax import (
    MergeClause,
    ParsedEdge,
    ParsedNode,
    ParsedPath,
    ParsedQuery,
    Returning,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The longest first, so that `<=` is not read as `<`.
_OPERATOR = re.compile("|".join(map(re.escape, sorted((*OPERATORS, "<>", ":"), key=len, reverse=True))))
_EQUALITY_SIGNS = {":": "=", "<>": "!="}


def parse_query(text: str, parameters: Mapping[str, Any]) -> ParsedQuery:
    """Parse a query.

    >>> found = parse_query('(:Job {url: $url})-[:POSTED_BY]->(c:Company) RETURN c.name', {"url": "/1"})
    >>> found.paths[0].nodes[0].conditions, found.paths[0].edges[0].types, found.returning.items[0].name
    ((('url', '=', '/1'),), ('POSTED_BY',), 'c.name')
    """
    parser = _Parser(text, parameters)
    if parser.peek_word() == "MERGE":
        return parser.parse_merges()
    parser.has_variables = parser.skip_words("MATCH")
    parser.refuse_unsupported()
    if parser.starts_with("[") and not parser.has_variables:
        found = ParsedQuery(paths=(ParsedPath((), (parser.parse_edge(),)),))
        parser.finish("put () at both ends of the edge to use further clauses")
        return found
    paths = [parser.parse_path()]
    while parser.skip(","):
        paths.append(parser.parse_path())
    where = parser.parse_where()
    found = ParsedQuery(paths=tuple(paths), where=where, returning=parser.parse_returning())
    parser.finish("expected the end")
    parser.check_depths(found)
    return found


def parse_hop(text: str, parameters: Mapping[str, Any]) -> tuple[ParsedEdge, ParsedNode]:
    """Parse an edge and the node that it leads to, such as `-[:POSTED_BY]->(:Company)`."""
    parser = _Parser(text, parameters)
    edge, node = parser.parse_hop(), parser.parse_node()
    parser.finish("expected the end")
    return edge, node


def check_parameters_used(parameters: Mapping[str, Any], queries: Sequence[str]) -> None:
    """Refuse parameters that no query uses."""
    for name in parameters:
        if not any(re.search(rf"\${re.escape(name)}\b", text) for text in queries):
            message = f"No query uses the parameter ${name}. Leave it out, or correct the name."
            raise InvalidArgumentError(message)


class _Parser(ClauseParser):
    """The parser of patterns and of whole queries."""

    def parse_merges(self) -> ParsedQuery:
        self.has_variables = True
        merges = []
        while True:
            position = self.skip_spaces()
            if not self.skip_words("MERGE"):
                break
            path = self.parse_path()
            merges.append(MergeClause(path, *self.parse_assignments(), position))
        start = self.skip_spaces()
        items = self.parse_items() if self.skip_words("RETURN") else []
        if any(item.is_count for item in items):
            raise self.make_error("RETURN after MERGE takes variables, properties and fields, not counts", start)
        self.finish("expected ON CREATE SET, ON MATCH SET, another MERGE, RETURN or the end")
        plan = plan_merge(merges, self.make_error)
        return ParsedQuery(merge=plan, returning=Returning(items=tuple(items)))

    def parse_assignments(self) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        given: dict[str, dict[str, dict[str, Any]]] = {"CREATE": {}, "MATCH": {}}
        while self.peek_word() == "ON":
            position = self.position
            word = next((word for word in given if self.skip_words(f"ON {word} SET")), None)
            if word is None:
                raise self.make_error("expected ON CREATE SET or ON MATCH SET", position)
            while True:
                self.parse_assignment(given[word])
                if not self.skip(","):
                    break
        return given["CREATE"], given["MATCH"]

    def parse_assignment(self, given: dict[str, dict[str, Any]]) -> None:
        start = self.skip_spaces()
        name = self.read_variable()
        if self.skip("+="):
            value = self.read_value()
            if not isinstance(value, dict):
                raise self.make_error(f"{name} += takes a dict of properties", start)
            new = value
        else:
            self.expect(".")
            property_ = self.read_name("the name of a property")
            self.expect("=")
            if not self.is_at_value():
                raise self.make_error(
                    "a property can be set to a literal or a parameter, not to an expression; merge_node takes "
                    "functions of the old properties"
                )
            new = {property_: self.read_value()}
        self.refuse_arithmetic()
        given[name] = given.get(name, {}) | new

    def parse_path(self) -> ParsedPath:
        start = self.skip_spaces()
        if self.has_variables and self.peek_word():
            raise self.make_error(
                "a pattern begins with (; variables of paths and functions of paths are not supported", start
            )
        nodes, edges = [self.parse_node()], []
        while self.starts_with("-") or self.starts_with("<"):
            edges.append(self.parse_hop())
            nodes.append(self.parse_node())
        return ParsedPath(tuple(nodes), tuple(edges))

    def parse_node(self) -> ParsedNode:
        position = self.skip_spaces()
        self.expect("(")
        name, type_ = self.parse_label()
        if self.starts_with(":") or self.starts_with("|") or self.starts_with("&"):
            raise self.make_error("a node has one type")
        node_id = self.read_integer("the id of a node") if self.skip("#") else None
        conditions = self.parse_conditions()
        self.expect(")")
        self.add_variable(name, "node", position)
        return ParsedNode(type=type_, id=node_id, conditions=conditions, name=name, position=position)

    def parse_hop(self) -> ParsedEdge:
        position = self.skip_spaces()
        is_in = self.skip("<-")
        if not is_in:
            self.expect("-")
        edge = self.parse_edge() if self.starts_with("[") else ParsedEdge()
        is_out = self.skip("->")
        if not is_out:
            self.expect("-")
        if is_in and is_out:
            raise self.make_error("an edge has one direction; write -[…]- for either", position)
        direction: Literal["in", "out", "both"] = "in" if is_in else "out" if is_out else "both"
        return ParsedEdge(
            types=edge.types,
            conditions=edge.conditions,
            depths=edge.depths,
            direction=direction,
            name=edge.name,
            position=position,
        )

    def parse_edge(self) -> ParsedEdge:
        position = self.skip_spaces()
        self.expect("[")
        name, first = self.parse_label()
        types = [first] if first else []
        while types and self.skip("|"):
            self.skip(":")
            types.append(self.read_name("a type"))
        depths = self.parse_depths() if self.skip("*") else None
        conditions = self.parse_conditions()
        self.expect("]")
        self.add_variable(name, "edge", position)
        return ParsedEdge(types=tuple(types), conditions=conditions, depths=depths, name=name, position=position)

    def add_variable(self, name: str | None, kind: Literal["node", "edge"], position: int) -> None:
        """Add a variable; a node may be named again, an edge is named once."""
        if name is not None:
            if name in self.variables and "edge" in {kind, self.variables[name]}:
                raise self.make_error(f"the variable {name!r} is used twice; each edge has one of its own", position)
            self.variables[name] = kind

    def parse_label(self) -> tuple[str | None, str | None]:
        """Parse a variable and a type; either may be missing."""
        if self.skip(":"):
            return None, self.read_name("a type")
        if any(map(self.starts_with, ")]#{*")):
            return None, None
        name = self.read_name("a type")
        if self.skip(":"):
            return name, self.read_name("a type")
        return (name, None) if self.has_variables else (None, name)

    def parse_depths(self) -> tuple[int, int | None]:
        least = self.parse_number()
        most = self.parse_number() if self.skip("..") else least
        least = 1 if least is None else least
        if least < 1 or (most is not None and most < least):
            raise self.make_error("* takes the minimum number of edges, 1 or more, and the maximum, as in *1..3")
        return least, most

    def parse_number(self) -> int | None:
        return self.read_integer("the number of edges") if self.is_at_digits() else None

    def parse_conditions(self) -> PropertyConditions:
        if self.starts_with("$"):
            raise self.make_error("properties are given by name, as in {name: $name}")
        if not self.skip("{"):
            return NO_CONDITIONS
        found: list[tuple[str, Any, Any]] = []
        while not self.starts_with("}"):
            name = self.read_name("the name of a property")
            operator = self.match(_OPERATOR, "an operator such as : or >=")
            found.append((name, _EQUALITY_SIGNS.get(operator, operator), self.read_value()))
            if not self.skip(","):
                break
        self.expect("}")
        return PropertyConditions(found)

    def check_depths(self, query: ParsedQuery) -> None:
        """Refuse * beside what a traversal does not do."""
        for path in query.paths:
            for edge in path.edges:
                if edge.depths and query.has_clauses:
                    message = "an edge with * is supported only in a pattern alone, without WHERE, RETURN and the like"
                    raise self.make_error(message, edge.position)
                if edge.depths and len(path.edges) > 1:
                    raise self.make_error("an edge with * must be the only edge; use several queries", edge.position)
