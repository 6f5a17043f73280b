"""The names of a statement: expressions over its aliases become expressions over `s` and `t`, with the same meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from merganser.core.columnar.expressions import (
    PREFIX,
    map_columns,
    parse_expression,
    parse_tree,
    serialize,
    write_tree,
)
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.core.sql.tokens import Span, SqlText
    from merganser.errors import SqlError

_BOTH = {"s": None, "t": None}
# Older versions of DuckDB name the schemas of their own functions.
_SCHEMAS = ("", "main", "pg_catalog")
_NOT_MEANT = ("query_location", "query_location_length", "is_operator")


@dataclass(frozen=True, slots=True)
class Names:
    """The aliases that a statement gives its tables."""

    text: SqlText
    source: str
    target: str

    @property
    def aliases(self) -> Mapping[str, str]:
        """Our aliases by those of the statement."""
        return {self.source.lower(): "s", self.target.lower(): "t"}

    def rename(self, span: Span, visible: str) -> str:
        """Write an expression with our aliases; only tables that are `visible` have a row there."""
        before = self.parse(span)
        after = map_columns(before, lambda node: self._rename_column(node, span, visible))
        text = span.text if after == before else self.write(after, span)
        self.check(text, visible[0], span.start)
        return text

    def check(self, text: str, default: str, start: int) -> None:
        """Refuse what no row can evaluate, here where its position is known."""
        try:
            parse_expression(text, _BOTH, default)
        except InvalidArgumentError as error:
            raise self.text.make_error(str(error), start) from error

    def parse(self, span: Span) -> dict[str, Any]:
        """Parse an expression into the tree of DuckDB."""
        tree = serialize(f"{PREFIX}{span.text}\n)")
        if tree.get("error"):
            place = find_error(tree, f"{PREFIX}{span.text}")
            start = span.start + min(max(0, place - len(PREFIX)), len(span.text))
            raise self.text.make_error(f"{tree['error_message']}. Correct the expression.", start)
        try:
            found = parse_tree(span.text, span.text)
        except InvalidArgumentError as error:
            raise self.text.make_error(str(error), span.start) from error
        for node in walk(found):
            # The parser takes the column of t.name.upper() for the schema of a function.
            if node.get("class") == "FUNCTION" and node.get("schema") not in _SCHEMAS:
                name = node["function_name"]
                raise self.fail(f"a function is not called with a dot here. Write {name}(…).", span, node)
        return found

    def write(self, tree: Mapping[str, Any], span: Span) -> str:
        """Write a tree as SQL, and check that it is read as the same tree."""
        text = write_tree(tree)
        if _normalize(parse_tree(text, text)) != _normalize(tree):
            raise self.text.make_error(
                "this cannot be written with other aliases without a change of its meaning. Call the target t and the "
                "source s.",
                span.start,
            )
        return text

    def locate(self, span: Span, place: int) -> int:
        """Find the offset in the statement for a position in a tree, which counts bytes."""
        inside = span.text.encode()[: max(0, place - len(PREFIX))].decode(errors="ignore")
        return span.start + min(len(inside), len(span.text))

    def fail(self, reason: str, span: Span, node: Mapping[str, Any]) -> SqlError:
        """Make an error about a node of the tree of an expression."""
        return self.text.make_error(reason, self.find_start(node, span))

    def find_start(self, node: Mapping[str, Any], span: Span) -> int:
        """Find the offset in the statement where a node of the tree of an expression starts."""
        return self.locate(span, min(_list_places(node), default=0))

    def find_table(self, node: Mapping[str, Any]) -> str | None:
        """Find the table that a reference names, by our alias; None if it names none."""
        parts: Sequence[str] = node["column_names"]
        return self.aliases.get(parts[0].lower()) if len(parts) > 1 else None

    def _rename_column(self, node: dict[str, Any], span: Span, visible: str) -> dict[str, Any]:
        parts = node["column_names"]
        alias = self.find_table(node)
        if alias is None:
            if len(parts) > 1 and parts[0].lower() in _BOTH:
                raise self.fail(
                    f"{'.'.join(parts)!r} names neither the target, {self.target}, nor the source, {self.source}. "
                    "Begin with one of these.",
                    span,
                    node,
                )
            return node
        if alias not in visible:
            have, lacks = ("source", "target") if alias == "t" else ("target", "source")
            raise self.fail(
                f"{'.'.join(parts)!r} is a column of the {lacks}, but the clause is about rows that only the {have} "
                "has. Use columns of that.",
                span,
                node,
            )
        return {**node, "column_names": [alias, *parts[1:]]}


def is_same(one: str, other: str) -> bool:
    """Whether two expressions over `s` and `t` are the same."""
    return parse_expression(one, _BOTH, "s").sql == parse_expression(other, _BOTH, "s").sql


def find_error(tree: Mapping[str, Any], query: str) -> int:
    """Find the offset in a query of the error that DuckDB reports."""
    place = int(tree.get("position") or 0)
    return len(query.encode()[:place].decode(errors="ignore")) if _counts_bytes() else place


@cache
def _counts_bytes() -> bool:
    """Whether this version of DuckDB counts bytes in the positions of errors, and not characters."""
    query = "SELECT 'é', > 1"
    return int(serialize(query)["position"]) == len(query.encode().partition(b">")[0])


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """List the nodes of a tree, from the top."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def _list_places(node: Mapping[str, Any]) -> Iterator[int]:
    """List the positions of a node and of those below: that of an operator is in the middle."""
    for one in walk(node):
        if "query_location" in one and one.get("query_location_length", 1):
            yield int(one["query_location"])


def _normalize(node: Any) -> Any:
    """Drop what is not of the meaning of a tree: positions, the spelling of operators, and names that stand twice."""
    if isinstance(node, list):
        return [_normalize(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _normalize(value) for key, value in node.items() if key not in _NOT_MEANT}
    if kept.keys() == {"name", "expression"}:
        kept["expression"] = {key: value for key, value in kept["expression"].items() if key != "alias"}
    return kept
