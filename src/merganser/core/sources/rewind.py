"""Streams that are read from the start more than once."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoppableStream:
    """A stream that is at its end once it is stopped."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = Lock()
        self._is_stopped = False

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        with self._lock:
            return b"" if self._is_stopped else self._stream.read(size)

    def stop(self) -> None:
        """Wait for a read that has begun; later ones get nothing."""
        with self._lock:
            self._is_stopped = True


@contextmanager
def rewind(stream: Any) -> Iterator[Any]:
    """Give a stream from its start; Arrow's readers read ahead in threads, which outlive an error."""
    stream.seek(0)
    stoppable = StoppableStream(stream)
    try:
        yield stoppable
    finally:
        stoppable.stop()
