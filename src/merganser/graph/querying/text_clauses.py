"""The parser of the clauses after a pattern: WHERE, RETURN, ORDER BY, SKIP and LIMIT."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from merganser.graph.querying.conditions import check_integer
from merganser.graph.querying.fields import COMPARED_FIELDS
from merganser.graph.querying.text_scanner import Scanner
from merganser.graph.querying.text_syntax import (
    Comparison,
    Junction,
    Negation,
    Operand,
    OperandComparison,
    OrderItem,
    Returning,
    ReturnItem,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from merganser.graph.querying.text_syntax import Expression

_FIELDS = (*COMPARED_FIELDS, "type")
_SIGN = re.compile(r"<=|>=|<>|!=|=|<|>")
# Operators in words, and what the library calls them.
_WORD_OPERATORS = {"IN": "in", "CONTAINS": "contains", "STARTS WITH": "starts_with", "ENDS WITH": "ends_with"}
_ARITHMETIC = "+-*/%^"
# SQLite nests expressions up to a depth of 1,000, of which the longest pattern takes about 600.
_MAX_COMPARISONS = 200
_MAX_DEPTH = 50
# Clauses of openCypher that are not in the part that is supported, and what to do instead.
_UNSUPPORTED = {
    "OPTIONAL": "use two queries",
    "MATCH": "write one MATCH with a comma between its patterns; before or after MERGE, use two queries",
    "MERGE": "a query either matches or merges",
    "WITH": "use two queries",
    "UNWIND": "use bulk_merge_nodes, or a list with IN",
    "CREATE": "use MERGE, or create_node",
    "SET": "use MERGE … ON MATCH SET, or update_node",
    "DELETE": "use delete_node",
    "DETACH": "use delete_node",
    "REMOVE": "use update_node with None",
    "CALL": "use the methods of the library",
    "UNION": "use two queries",
    "FOREACH": "use bulk_merge_nodes",
    "LOAD": "use bulk_merge_nodes",
    "XOR": "write it with AND, OR and NOT",
}


class ClauseParser(Scanner):
    """The parser of clauses; patterns are parsed by its subclass."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(text, parameters)
        # Whether a name without a colon is a variable.
        self.has_variables = False
        self.depth = 0
        self.comparisons = 0
        # The variables of the patterns, and whether each is a node or an edge.
        self.variables: dict[str, Literal["node", "edge"]] = {}

    def finish(self, reason: str) -> None:
        """Refuse whatever follows."""
        self.skip(";")
        if not self.is_at_end():
            self.refuse_unsupported()
            raise self.make_error(reason)

    def refuse_unsupported(self) -> None:
        """Refuse a clause of openCypher that is not supported."""
        word = self.peek_word()
        if word in _UNSUPPORTED:
            raise self.make_error(f"{word} is not supported here; {_UNSUPPORTED[word]}")

    def parse_where(self) -> Expression | None:
        """Parse WHERE and its expression, if there is one."""
        return self.parse_junction("OR") if self.skip_words("WHERE") else None

    def parse_junction(self, word: Literal["AND", "OR"]) -> Expression:
        """Parse expressions joined by OR, of expressions joined by AND."""
        read: Callable[[], Expression] = self.parse_negation if word == "AND" else lambda: self.parse_junction("AND")
        parts = [read()]
        while self.skip_words(word):
            parts.append(read())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def parse_negation(self) -> Expression:
        """Parse a comparison, or an expression in brackets, with NOT or without."""
        negations = 0
        while self.skip_words("NOT"):
            negations += 1
        if self.skip("("):
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise self.make_error(f"WHERE has over {_MAX_DEPTH} brackets in each other; use fewer")
            found = self.parse_junction("OR")
            self.expect(")")
            self.depth -= 1
        else:
            self.comparisons += 1
            if self.comparisons > _MAX_COMPARISONS:
                raise self.make_error(f"WHERE has over {_MAX_COMPARISONS} comparisons; use IN, or several queries")
            found = self.parse_comparison()
        return Negation(found) if negations % 2 else found

    def parse_comparison(self) -> Expression:
        """Parse a comparison of an operand with a value or another operand."""
        if self.is_at_value():
            raise self.make_error("a comparison begins with a property, as in n.seen > 1")
        operand, position = self.parse_operand(), self.skip_spaces()
        if operand.kind == "record" and any(map(self.starts_with, "):|{")):
            message = "a pattern or type in WHERE is not supported; write it in MATCH, or use not_connected_to"
            raise self.make_error(message, operand.position)
        self.refuse_arithmetic()
        if self.skip_words("IS"):
            is_negated = self.skip_words("NOT")
            if not self.skip_words("NULL"):
                raise self.make_error("expected NULL or NOT NULL")
            if operand.kind != "property":
                raise self.make_error("only a property may be NULL", position)
            return Comparison(operand, "!=" if is_negated else "=", None, position)
        operator = self.parse_operator()
        self.skip_spaces()
        if not self.is_at_value():
            right = self.parse_operand()
            self.refuse_arithmetic()
            self.check_operands(operand, operator, right, position)
            return OperandComparison(operand, operator, right)
        if operand.kind == "record":
            message = f"a node or edge is compared with another; write {operand.variable}.name, or id(…)"
            raise self.make_error(message, operand.position)
        value = self.read_value()
        self.refuse_arithmetic()
        if value is None:
            raise self.make_error("nothing compares with NULL; write IS NULL or IS NOT NULL", position)
        if operand.name == "type" and operand.kind == "field" and operator not in {"=", "!=", "in"}:
            raise self.make_error("a type is compared by =, <> or IN", position)
        return Comparison(operand, operator, value, position)

    def parse_operator(self) -> str:
        """Parse a sign or the words of an operator."""
        for words, operator in _WORD_OPERATORS.items():
            if self.skip_words(words):
                return operator
        start = self.skip_spaces()
        if self.starts_with("=~"):
            raise self.make_error(
                "regular expressions are not supported; use CONTAINS, STARTS WITH or ENDS WITH", start
            )
        sign = self.match(_SIGN, "an operator: = <> < <= > >= IN CONTAINS STARTS WITH, ENDS WITH or IS NULL")
        return {"<>": "!="}.get(sign, sign)

    def check_operands(self, left: Operand, operator: str, right: Operand, position: int) -> None:
        """Refuse two operands that cannot be compared with each other."""
        if left.kind == right.kind == "record" and self.variables[left.variable] != self.variables[right.variable]:
            raise self.make_error("a node is compared with a node, and an edge with an edge", position)
        alike = left.kind == right.kind and (left.kind != "field" or (left.name == "id") == (right.name == "id"))
        if not alike or (left.kind == "field" and "type" in {left.name, right.name} and left.name != right.name):
            message = "a property is compared with a property, an id with an id, and a time with a time"
            raise self.make_error(message, position)
        orderless = left.kind == "record" or left.name == right.name == "type"
        known = {"=", "!="} if orderless and left.kind != "property" else {"=", "!=", "<", "<=", ">", ">="}
        if operator not in known:
            raise self.make_error(f"two of these are compared by {' '.join(sorted(known))}", position)

    def parse_operand(self) -> Operand:
        """Parse a variable, a property such as `n.seen`, or a field such as `id(n)`."""
        position = self.skip_spaces()
        name = self.read_name("a variable")
        if self.skip("("):
            if name not in _FIELDS:
                known = ", ".join(f"{field}(…)" for field in _FIELDS)
                raise self.make_error(f"the function {name} is not supported; known are {known}", position)
            variable = self.read_variable()
            self.expect(")")
            return Operand(variable, "field", name, position)
        self.check_variable(name, position)
        if self.skip("."):
            return Operand(name, "property", self.read_name("the name of a property"), position)
        return Operand(name, "record", "", position)

    def read_variable(self) -> str:
        """Read the name of a variable, which a pattern must have."""
        position = self.skip_spaces()
        name = self.read_name("a variable")
        self.check_variable(name, position)
        return name

    def check_variable(self, name: str, position: int) -> None:
        """Refuse a variable that no pattern has."""
        if name not in self.variables:
            known = ", ".join(self.variables) or "none"
            message = f"{name!r} is not a variable of a pattern (those are: {known})"
            if not self.has_variables:
                message += "; write it before a colon, as in (j:Job), or begin with MATCH"
            raise self.make_error(message, position)

    def refuse_arithmetic(self) -> None:
        """Refuse an expression that goes on after a value."""
        if any(map(self.starts_with, _ARITHMETIC)):
            raise self.make_error("arithmetic is not supported; compute the value, and pass it as a parameter")

    def parse_returning(self) -> Returning:
        """Parse RETURN, ORDER BY, SKIP and LIMIT, each of which may be missing."""
        items: list[ReturnItem] = []
        is_distinct = False
        if self.skip_words("RETURN"):
            is_distinct = self.skip_words("DISTINCT")
            items = self.parse_items()
        names = [item.name for item in items]
        order = self.parse_list(lambda: self.parse_order(names)) if self.skip_words("ORDER BY") else []
        skip = self.parse_count("SKIP") or 0
        limit = self.parse_count("LIMIT")
        return Returning(items=tuple(items), is_distinct=is_distinct, order=tuple(order), skip=skip, limit=limit)

    def parse_list(self, read: Callable[[], Any]) -> list[Any]:
        """Parse one or more, with commas between them."""
        found = [read()]
        while self.skip(","):
            found.append(read())
        return found

    def parse_items(self) -> list[ReturnItem]:
        """Parse the columns of the result."""
        items: list[ReturnItem] = self.parse_list(self.parse_item)
        names = [item.name for item in items]
        for name in names:
            if names.count(name) > 1:
                raise self.make_error(f"two columns are called {name!r}; rename one with AS")
        return items

    def parse_item(self) -> ReturnItem:
        """Parse a column of the result."""
        position = self.skip_spaces()
        if self.starts_with("*") or self.is_at_value():
            raise self.make_error("RETURN takes variables, their properties and fields, and count(…)")
        is_count, is_distinct, operand = False, False, None
        if self.peek_word() == "COUNT" and re.match(r"(?i)count\s*\(", self.text[position:]):
            is_count = self.skip_words("COUNT")
            self.expect("(")
            is_distinct = self.skip_words("DISTINCT")
            operand = None if not is_distinct and self.skip("*") else self.parse_operand()
            self.expect(")")
        else:
            operand = self.parse_operand()
        name = self.text[position : self.position].strip()
        self.refuse_arithmetic()
        if self.skip_words("AS"):
            name = self.read_name("the name of a column")
        return ReturnItem(name=name, operand=operand, is_count=is_count, is_distinct=is_distinct)

    def parse_order(self, names: list[str]) -> OrderItem:
        """Parse what rows are sorted by: the name of a column of the result, or what a column may be."""
        position = self.skip_spaces()
        by: str | ReturnItem = ""
        if self.starts_with("`") or self.starts_with('"') or self.peek_word():
            by = self.read_name("a column")
        if by not in names or self.starts_with(".") or self.starts_with("("):
            self.position = position
            by = self.parse_item()
        is_descending = self.skip_words("DESC") or self.skip_words("DESCENDING")
        if not is_descending:
            _ = self.skip_words("ASC") or self.skip_words("ASCENDING")
        return OrderItem(by, is_descending)

    def parse_count(self, word: str) -> int | None:
        """Parse a number of rows."""
        if not self.skip_words(word):
            return None
        value = self.read_value()
        check_integer(word, value, 0)
        return int(value)
