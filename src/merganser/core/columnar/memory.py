"""Translates errors that mean a lack of memory."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from merganser.errors import MerganserError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def translate_memory_errors(action: str) -> Iterator[None]:
    """Raise `OutOfMemoryError` where memory runs out; `action` is for example "reading x"."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, MerganserError) or not (isinstance(error, MemoryError) or error.errno == errno.ENOMEM):
            raise
        raise OutOfMemoryError(
            f"Out of memory during {action}: {str(error) or 'no more could be allocated'}. Free or add memory, or work "
            "on fewer rows at a time."
        ) from error
