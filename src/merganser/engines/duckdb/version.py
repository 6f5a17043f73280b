"""Which DuckDB this is, and whether its MERGE is used."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import duckdb

from merganser.errors import DatasetMergeError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

Version = tuple[int, int, int]

UNKNOWN_VERSION: Version = (0, 0, 0)
FIRST_WITH_MERGE: Version = (1, 4, 0)
_FORMAT = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?!\d|\.\d)")
_known: MutableMapping[duckdb.DuckDBPyConnection, Version] = WeakKeyDictionary()
_log = logging.getLogger(__name__)


def parse_version(text: str) -> Version:
    """Read a version as three numbers; suffixes of development builds are left out.

    >>> parse_version("v1.5.0"), parse_version("1.6.0-dev123")
    ((1, 5, 0), (1, 6, 0))
    """
    found = _FORMAT.match(text)
    if found is None:
        message = f"{text!r} is not a version like 1.4.0."
        raise InvalidArgumentError(message)
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch)


def detect_version(connection: duckdb.DuckDBPyConnection) -> Version:
    """Ask a connection for its version, once; what cannot be found out counts as too old (D1).

    >>> detect_version(duckdb.connect()) > (1, 3, 0)
    True
    """
    if connection not in _known:
        try:
            # A cursor, because a query on the caller's connection would end a result that is being read.
            with connection.cursor() as cursor:
                row = cursor.execute("SELECT library_version FROM pragma_version()").fetchone()
            _known[connection] = parse_version(str(row and row[0]))
        except (duckdb.Error, InvalidArgumentError) as error:
            _log.warning("Could not determine DuckDB version: %s", error)
            return UNKNOWN_VERSION
    return _known[connection]


def check_use_merge(use_merge: object) -> None:
    """Refuse what says neither yes, no nor find out (D1)."""
    if use_merge is not None and not isinstance(use_merge, bool):
        message = f"Invalid use_merge value: {use_merge!r}. Must be True, False, or None for auto-detect"
        raise InvalidArgumentError(message)


def should_use_merge(connection: duckdb.DuckDBPyConnection, use_merge: bool | None) -> bool:  # noqa: FBT001
    """Decide between MERGE and the fallback (D1), without a word about it."""
    if use_merge is False:
        return False
    version = detect_version(connection)
    if use_merge and version < FIRST_WITH_MERGE:
        shown = "unknown" if version == UNKNOWN_VERSION else ".".join(map(str, version))
        message = (
            "DuckDB MERGE requested but not available. Required version: >= 1.4.0, "
            f"Current: {shown}. Upgrade DuckDB, or pass use_merge=False."
        )
        raise DatasetMergeError(message)
    return version >= FIRST_WITH_MERGE


def announce(use_merge: bool | None, merges: bool) -> None:  # noqa: FBT001
    """Log which way a merge takes, and who chose it (D2)."""
    if use_merge is None and merges:
        _log.info("Using DuckDB MERGE for merge operation (auto-detected)")
    elif use_merge is None:
        _log.info("Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)")
    elif merges:
        _log.info("Using DuckDB MERGE (explicitly requested)")
    else:
        _log.info("Using UNION ALL (explicitly requested)")
