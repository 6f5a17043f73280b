"""Validation of paths that become part of an SQL statement."""

from __future__ import annotations

import os
import unicodedata
from typing import Any

from merganser.errors import InvalidArgumentError

_FORBIDDEN = ("'", '"', ";", "--", "/*", "*/", "`", "\\")
_SUSPICIOUS_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class PathValidator:
    """Checks and quotes paths for SQL statements."""

    @staticmethod
    def validate_path_for_sql(path: str) -> None:
        """Refuse quotes, statement and comment marks, `..` segments, and invisible characters.

        Args:
            path: The path, absolute or relative.

        >>> PathValidator.validate_path_for_sql("/lake/day=2025-01-01/part 0.parquet")
        """
        if not isinstance(path, str) or not path:
            raise InvalidArgumentError(f"A path must be a non-empty string, not {path!r}.")
        mark = next((mark for mark in _FORBIDDEN if mark in path), None)
        if mark is not None:
            raise InvalidArgumentError(
                f"The path {path!r} contains {mark!r}, which could end or change an SQL statement. Rename the folder."
            )
        if ".." in path.split("/"):
            raise InvalidArgumentError(f"The path {path!r} contains a '..' segment. Write the path without it.")
        hidden = next((char for char in path if unicodedata.category(char) in _SUSPICIOUS_CATEGORIES), None)
        if hidden is not None:
            message = f"The path {path!r} contains the invisible character U+{ord(hidden):04X}. Rename the folder."
            raise InvalidArgumentError(message)

    @staticmethod
    def escape_for_sql(path: str) -> str:
        """Validate a path, and escape it for use between single quotes in SQL.

        Args:
            path: The path, absolute or relative.

        >>> PathValidator.escape_for_sql("/lake/orders")
        '/lake/orders'
        """
        PathValidator.validate_path_for_sql(path)
        return path.replace("'", "''")


def check_dataset_path(path: Any, filesystem: Any) -> None:
    """Refuse a dataset's path that is unsafe in an SQL statement (D5): ours are bound, but callers may build their own.

    >>> check_dataset_path("lake/orders", None)
    """
    if isinstance(path, str | os.PathLike) and (text := os.fspath(path)):
        if filesystem is None and "://" not in text:
            text = os.path.expanduser(text)
            text = text if os.path.isabs(text) else os.path.join(os.getcwd(), text)
        PathValidator.escape_for_sql(text)
