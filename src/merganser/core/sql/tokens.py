"""The tokens of a statement and their positions, and errors that name these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from merganser.errors import InvalidArgumentError, MissingExtraError, SqlError
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

# What may stand between two tokens. The tokenizer also takes templates and nested comments for comments.
_GAP = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*(?:(?!/\*|\*/).)*\*/)*", re.DOTALL)
_QUOTED = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|(\$\w*\$).*?\1|[^'\"$/-]+|[$/-](?!\*)", re.DOTALL
)
_NAME = re.compile(r"[^\W\d]\w*")
_MAX_NEAR = 40
_OPENING, _CLOSING = "([{", ")]}"
Kind = Literal["word", "name", "string", "symbol"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token: a word in capitals, the value of a quoted name or string, or the symbol as it is written."""

    kind: Kind
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these words, and not quoted."""
        return self.kind == "word" and self.text in words

    def is_symbol(self, *symbols: str) -> bool:
        """Whether it is one of these symbols."""
        return self.kind == "symbol" and self.text in symbols


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a statement, with its offset there."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SqlText:
    """The text of a statement."""

    text: str

    def make_error(self, reason: str, at: int) -> SqlError:
        """Make an error that names the line and column of an offset."""
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        # Credentials are masked before a URL is cut, where they could not be found.
        near = mask_credentials(self.text[at:].partition("\n")[0].rstrip())
        shortened = f"{near[:_MAX_NEAR]}…" if len(near) > _MAX_NEAR else near
        place = f"near {shortened!r}" if near else "at the end of the line"
        return SqlError(f"SQL, line {line}, column {column}, {place}: {reason}")

    def cut(self, tokens: Sequence[Token]) -> Span:
        """Cut the text from the first to the last of some tokens, with comments between them."""
        return Span(self.text[tokens[0].start : tokens[-1].end], tokens[0].start)

    def tokenize(self) -> list[Token]:
        """Split the statement into tokens."""
        try:
            # The tokenizer alone: an expression that sqlglot has parsed and written again may have another meaning.
            from sqlglot.dialects.duckdb import DuckDB  # noqa: PLC0415  an extra
            from sqlglot.errors import TokenError  # noqa: PLC0415  as above
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"SQL needs the package {error.name!r}. Install it with: pip install 'merganser[sql]'."
            ) from error
        try:
            found = DuckDB().tokenize(self.text)
        except TokenError as error:
            raise self.make_error("this is not closed. Close it.", self._find_unclosed()) from error
        tokens = [self._make_token(one.start, one.end + 1) for one in found]
        if tokens and tokens[0].is_word("MERGE"):
            # The tokenizer does not split some other statements.
            ends, starts = [0, *(one.end for one in tokens)], [*(one.start for one in tokens), len(self.text)]
            for end, start in zip(ends, starts, strict=True):
                self._check_gap(end, start)
        return tokens

    def _make_token(self, start: int, end: int) -> Token:
        raw = self.text[start:end]
        if raw[0] == '"':
            return Token("name", raw[1:-1].replace('""', '"'), start, end)
        if raw[0] == "'":
            return Token("string", raw[1:-1].replace("''", "'"), start, end)
        if raw[0].isalpha() or raw[0] == "_":
            return Token("word", raw.upper(), start, end)
        return Token("symbol", raw, start, end)

    def _check_gap(self, start: int, end: int) -> None:
        match = _GAP.match(self.text, start, end)
        stop = start if match is None else match.end()
        if stop < end:
            raise self.make_error("this is neither SQL nor a comment. Remove it.", stop)

    def _find_unclosed(self) -> int:
        at = 0
        while at < len(self.text) and (match := _QUOTED.match(self.text, at)):
            at = match.end()
        return at


def read_text(text: object) -> SqlText:
    """Check that a statement is a string."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"A statement must be a string of SQL, not {type(text).__name__}.")
    return SqlText(text)


class TokenReader:
    """Reads the tokens of a statement from left to right."""

    def __init__(self, source: SqlText) -> None:
        self.source = source
        self.tokens = source.tokenize()
        self.at = 0
        end = len(source.text.rstrip())
        self._end = Token("symbol", "", end, end)

    @property
    def next(self) -> Token:
        """The next token; an empty symbol at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else self._end

    @property
    def is_at_end(self) -> bool:
        """Whether all tokens are read."""
        return self.at == len(self.tokens)

    def fail(self, reason: str, token: Token | None = None) -> SqlError:
        """Make an error about a token, or the next one."""
        return self.source.make_error(reason, (token or self.next).start)

    def take(self) -> Token:
        """Read a token."""
        token = self.next
        self.at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Read these words if they come next."""
        following = self.tokens[self.at : self.at + len(words)]
        if len(following) < len(words) or not all(map(Token.is_word, following, words)):
            return False
        self.at += len(words)
        return True

    def accept_symbol(self, symbol: str) -> bool:
        """Read a symbol if it comes next."""
        found = self.next.is_symbol(symbol)
        self.at += found
        return found

    def expect(self, words: str, purpose: str) -> None:
        """Read words that must come next."""
        if not self.accept(*words.split()):
            raise self.fail(f"{purpose}: {words} is missing here. Add it.")

    def take_until(self, *words: str, symbols: str = "") -> list[Token]:
        """Read up to one of these words or symbols outside of brackets and of CASE … END, or to the end."""
        start, depth, cases = self.at, 0, 0
        while not self.is_at_end:
            token = self.next
            is_field = self.at > start and self.tokens[self.at - 1].is_symbol(".")
            if depth == 0 and not is_field:
                if cases == 0 and (token.is_word(*words) or token.is_symbol(";", *symbols)):
                    break
                cases += token.is_word("CASE") - (token.is_word("END") and cases > 0)
            if token.is_symbol(*_OPENING):
                depth += 1
            elif token.is_symbol(*_CLOSING):
                if depth == 0:
                    break
                depth -= 1
            self.at += 1
        return self.tokens[start : self.at]

    def take_brackets(self) -> list[Token]:
        """Read from an opening bracket, which comes next, to the closing one; the tokens between them."""
        opening = self.take()
        inside = self.take_until()
        if not self.accept_symbol(")"):
            raise self.fail("this bracket is not closed. Add ')'.", opening)
        return inside


def read_name(reader: TokenReader, token: Token, purpose: str) -> str:
    """Return a name as it is written, without its quotes."""
    raw = reader.source.text[token.start : token.end]
    if token.kind == "name" and token.text:
        return token.text
    if token.kind != "word" or not _NAME.fullmatch(raw):
        raise reader.fail(f"{purpose} must be a name. Write one, in double quotes if it is a word of SQL.", token)
    return raw


def read_names(reader: TokenReader, purpose: str) -> list[tuple[str, Token]]:
    """Read names in brackets, separated by commas, each once."""
    reader.take()
    found: list[tuple[str, Token]] = []
    while not found or reader.accept_symbol(","):
        token = reader.take()
        name = read_name(reader, token, f"one of {purpose}")
        if any(name.lower() == one.lower() for one, _ in found):
            raise reader.fail(f"{name!r} is twice in {purpose}. Leave one out.", token)
        found.append((name, token))
    if not reader.accept_symbol(")"):
        raise reader.fail(f"{purpose} end here. Add ')' or a comma.")
    return found
