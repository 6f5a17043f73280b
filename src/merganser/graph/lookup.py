"""Many rows at once: read in batches, and looked up by one join of their keys with the graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads

from merganser.core.errors import InvalidArgumentError
from merganser.core.source import stream_source
from merganser.graph.sql import Parameter, conditions, match_terms

if TYPE_CHECKING:
    from merganser.graph.sql import Table
    from merganser.graph.store import Store
    from merganser.graph.values import Properties

BATCH = 10_000

# The keys of a row's match properties, as SQLite compares them.
Key: TypeAlias = tuple[Parameter, ...]


def batches(given: Any) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Read rows from Arrow data, a path, or any iterable of mappings, some thousands at a time.

    >>> [len(batch) for batch in batches({"id": number} for number in range(BATCH + 1))]
    [10000, 1]
    """
    if isinstance(given, str | os.PathLike | pa.Table | pa.RecordBatchReader | pads.Dataset | pads.Scanner) or any(
        hasattr(given, name) for name in ("__arrow_c_stream__", "__arrow_c_array__")
    ):
        rows = stream_source(given)
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            for start in range(0, batch.num_rows, BATCH):
                yield batch.slice(start, BATCH).to_pylist()
        return
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        message = f"rows is a {type(given).__name__}; give an iterable of dicts, an Arrow table or a data frame."
        raise InvalidArgumentError(message)
    rows = iter(given)
    while batch := list(islice(rows, BATCH)):
        yield batch


def keys_of(matches: Iterable[Properties]) -> list[Key] | None:
    """Give the keys of each match; None if some cannot be joined on: lists, and numbers that SQLite has to read."""
    keys = []
    for match in matches:
        terms, parameters = match_terms(match)
        for _, other in terms:
            if other != "?":
                return None
        keys.append(tuple(parameters))
    return keys


def find(
    store: Store, table: Table, columns: str, type_: str, names: Sequence[str], keys: Sequence[Key], ends: str = ""
) -> list[tuple[Any, ...]]:
    """Find the records of each key: the key's place, then the columns.

    A key has the match properties, after what `ends`, a condition of its own, has of it as `k.c0` and so on.
    """
    if not keys:
        return []
    width = len(keys[0])
    staged = f"temp.merganser_keys_{width}"
    connection = store.connection
    fields = ", ".join(f"c{place}" for place in range(width))
    connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS merganser_keys_{width} (slot INTEGER PRIMARY KEY, {fields})")
    connection.execute(f"DELETE FROM {staged}")
    marks = ", ".join("?" * (width + 1))
    connection.executemany(f"INSERT INTO {staged} VALUES ({marks})", ((slot, *key) for slot, key in enumerate(keys)))
    first = width - len(names)
    matched = conditions(type_, [(name, f"k.c{place}") for place, name in enumerate(names, first)], "r.")
    # CROSS JOIN: the keys lead, and the graph is looked up by its indexes.
    return connection.execute(
        f"SELECT k.slot, {columns} FROM {staged} k CROSS JOIN {table} r WHERE {ends}{matched}"
    ).fetchall()
