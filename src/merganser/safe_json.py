"""Reads untrusted JSON: nesting that would overflow the stack is refused and does not crash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from typing import BinaryIO

# Deeper than any Parquet schema that PyArrow reads, and less than crashes its JSON reader.
MAX_NESTING = 200
_OPENING, _QUOTE, _BACKSLASH, _NEWLINE = ord("["), ord('"'), ord("\\"), ord("\n")
_BRACKET_TABLE = bytes.maketrans(b"{}\r", b"[]\n")
_LINE_ENDS = np.frombuffer(b"\r\n", np.uint8)
_IGNORED_BYTES = bytes(set(range(256)) - set(b'[]{}"\r\n'))


def load_json(text: str | bytes) -> Any:
    """Read JSON as `json.loads` does, but raise ValueError where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class DepthLimitedJson:
    """A stream of JSON that raises ArrowInvalid where it is nested too deeply, which would crash PyArrow's reader.

    PyArrow parses each line by itself, so invalid JSON must not hide the depth of a later line: an unmatched closing
    bracket and a string that spans lines are refused as well.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # The state at the end of the last read.
        self._depth, self._in_string, self._in_escape = 0, False, False

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._stream.closed

    def read(self, size: int = -1) -> bytes:
        """Read and check some bytes."""
        data = self._stream.read(size)
        if data:
            self._check(data)
        return data

    def _check(self, data: bytes) -> None:
        signs = np.frombuffer(self._blank_escapes(data).translate(_BRACKET_TABLE, _IGNORED_BYTES), np.uint8)
        quotes, newlines = signs == _QUOTE, signs == _NEWLINE
        # Inside a string, after an odd number of quotes.
        inside = (np.cumsum(quotes, dtype=np.int32) + self._in_string) % 2 == 1
        if (newlines & inside).any():
            raise pa.ArrowInvalid("it is not valid JSON: a line ends inside a string")
        steps = np.where(signs == _OPENING, 1, -1)[~(quotes | newlines | inside)]
        depths = self._depth + np.cumsum(steps)
        if depths.min(initial=0) < 0:
            raise pa.ArrowInvalid("it is not valid JSON: a bracket closes nothing")
        if depths.max(initial=0) > MAX_NESTING:
            raise pa.ArrowInvalid(f"it is nested over {MAX_NESTING} levels deep, which no column can hold")
        self._in_string ^= bool(np.count_nonzero(quotes) % 2)
        self._depth = int(depths[-1]) if len(depths) else self._depth

    def _blank_escapes(self, data: bytes) -> bytes | bytearray:
        """Blank the character after each backslash, except line ends, so that quotes left delimit strings."""
        if not self._in_escape and b"\\" not in data:
            return data
        changed = bytearray(data)
        signs = np.frombuffer(changed, np.uint8)
        if self._in_escape:
            _blank(signs, np.array([0]))
        places = np.flatnonzero(signs == _BACKSLASH)
        # In a run of backslashes, every second one is itself escaped.
        first = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        runs = np.repeat(first, np.diff(first, append=len(places)))
        escaping = places[(np.arange(len(places)) - runs) % 2 == 0] + 1
        self._in_escape = bool(len(escaping)) and int(escaping[-1]) == len(data)
        _blank(signs, escaping[: len(escaping) - self._in_escape])
        return changed


def _blank(signs: np.ndarray, places: np.ndarray) -> None:
    signs[places[~np.isin(signs[places], _LINE_ENDS)]] = 0
