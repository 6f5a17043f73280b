"""The scanner of text queries: names, values, keywords and marks, and errors that name their position."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from merganser.errors import InvalidArgumentError
from merganser.graph.values import MAX_INT64

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[^\W\d]\w*")
_DIGITS = re.compile(r"[0-9]+")
_QUOTED = re.compile(r"`([^`]+)`")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
# What has another meaning in one kind of quotes than in the other, and an escape of anything else.
_QUOTE_OR_ESCAPE = re.compile(r"\\.|\"", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
# The digits of a number that a message quotes.
_MAX_QUOTED_DIGITS = 30
# Deeper than values that can be stored.
_MAX_DEPTH = 150


class Scanner:
    """A text, and the position up to which it is read."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"The query is a {type(text).__name__}; give a string such as '(:Job)'.")
        self.text = text
        self.position = 0
        self.parameters = parameters

    def read_name(self, what: str) -> str:
        """Read a name, which may be quoted."""
        self.skip_spaces()
        if quoted := _QUOTED.match(self.text, self.position):
            self.position = quoted.end()
            return quoted[1]
        if self.starts_with('"'):
            return str(self.read_value())
        return self.match(_NAME, f"{what}; put `…` around a name with characters other than letters, digits and _")

    def read_value(self, depth: int = 0) -> Any:
        """Read a literal, a list or dict of literals, or the value of a parameter."""
        if depth > _MAX_DEPTH:
            raise self.make_error("the value is nested too deeply")
        start = self.skip_spaces()
        if self.skip("$"):
            return self._read_parameter(start)
        if self.skip("["):
            return self._read_items("]", lambda: self.read_value(depth + 1))
        if self.skip("{"):
            return dict(self._read_items("}", lambda: self._read_member(depth)))
        if found := _STRING.match(self.text, start):
            self.position = found.end()
            return self._decode_string(found[0], start)
        if found := _NUMBER.match(self.text, start):
            self.position = found.end()
            return self._decode_number(found[0], start)
        word = _NAME.match(self.text, start)
        if word is None or word[0].lower() not in _WORDS:
            raise self.make_error('expected a value such as 7, "text" or [1, 2], or a parameter $name')
        self.position = word.end()
        return _WORDS[word[0].lower()]

    def is_at_value(self) -> bool:
        """Check whether a literal or a parameter follows, not a name."""
        start = self.skip_spaces()
        word = _NAME.match(self.text, start)
        return word[0].lower() in _WORDS if word else self.text[start : start + 1] in set("$[{\"'-0123456789") - {""}

    def read_integer(self, what: str) -> int:
        """Read digits."""
        digits = self.match(_DIGITS, what)
        # Python refuses to read very many digits.
        if len(digits) > len(str(MAX_INT64)) or int(digits) > MAX_INT64:
            given = digits if len(digits) <= _MAX_QUOTED_DIGITS else f"{digits[:_MAX_QUOTED_DIGITS]}…"
            message = f"{what[0].upper()}{what[1:]} in the query, {given}, is too large; the highest is {MAX_INT64}."
            raise InvalidArgumentError(message)
        return int(digits)

    def is_at_digits(self) -> bool:
        """Check whether digits follow."""
        return _DIGITS.match(self.text, self.skip_spaces()) is not None

    def match(self, wanted: re.Pattern[str], what: str) -> str:
        """Read what a pattern matches."""
        found = wanted.match(self.text, self.skip_spaces())
        if found is None:
            raise self.make_error(f"expected {what}")
        self.position = found.end()
        return found[0]

    def peek_word(self) -> str:
        """Return the word that follows, in capitals, or an empty string."""
        found = _NAME.match(self.text, self.skip_spaces())
        return found[0].upper() if found else ""

    def skip_words(self, words: str) -> bool:
        """Skip keywords if all of them follow, in small or capital letters."""
        start = self.position
        for word in words.split():
            if self.peek_word() != word:
                self.position = start
                return False
            self.position += len(word)
        return True

    def starts_with(self, mark: str) -> bool:
        """Check whether a mark follows."""
        return self.text.startswith(mark, self.skip_spaces())

    def skip(self, mark: str) -> bool:
        """Skip a mark if it follows."""
        is_next = self.starts_with(mark)
        if is_next:
            self.position += len(mark)
        return is_next

    def expect(self, mark: str) -> None:
        """Skip a mark, which must follow."""
        if not self.skip(mark):
            raise self.make_error(f"expected {mark}")

    def skip_spaces(self) -> int:
        """Skip spaces and line breaks."""
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1
        return self.position

    def is_at_end(self) -> bool:
        """Check whether nothing follows."""
        return self.skip_spaces() == len(self.text)

    def make_error(self, reason: str, at: int | None = None) -> InvalidArgumentError:
        """Make an error that names the line and column."""
        start = self.skip_spaces() if at is None else at
        line, column = self.text.count("\n", 0, start) + 1, start - self.text.rfind("\n", 0, start)
        rest = self.text[start:]
        near = f"before {rest[:20]!r}" if rest else "at the end"
        return InvalidArgumentError(
            f"The query cannot be parsed at line {line}, column {column}, {near}: {reason}. A query is written as in "
            "(:Job {seen > 1}), (:Job)-[:POSTED_BY]->(:Company) or MATCH (j:Job) WHERE j.seen > 1 RETURN j.title."
        )

    def _read_parameter(self, start: int) -> Any:
        name = self.match(_NAME, "the name of a parameter")
        if name not in self.parameters:
            self.position = start
            raise InvalidArgumentError(
                f"The query uses ${name}, but no value is given for it. Add the parameter {name!r}."
            )
        return self.parameters[name]

    def _read_items(self, end: str, read: Any) -> list[Any]:
        items: list[Any] = []
        while not self.starts_with(end):
            items.append(read())
            if not self.skip(","):
                break
        self.expect(end)
        return items

    def _read_member(self, depth: int) -> tuple[str, Any]:
        name = self.read_name("the name of a value")
        self.expect(":")
        return name, self.read_value(depth + 1)

    def _decode_string(self, quoted: str, start: int) -> str:
        body = quoted[1:-1]
        if quoted[0] == "'":
            body = _QUOTE_OR_ESCAPE.sub(lambda found: {"\\'": "'", '"': '\\"'}.get(found[0], found[0]), body)
        try:
            return str(json.loads(f'"{body}"', strict=False))
        except ValueError:
            raise self.make_error("the string has an unknown escape; the known ones are those of JSON", start) from None

    def _decode_number(self, text: str, start: int) -> int | float:
        try:
            return json.loads(text)  # type: ignore[no-any-return]
        except ValueError:
            raise self.make_error("the number has too many digits", start) from None
