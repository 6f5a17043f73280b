"""What a merge must do, in dicts and loops: slow, plain, and sharing nothing with the library.

A row is a dict of plain values, partition columns among them. A target is its files by name, each a list of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

Row = dict[str, Any]
Key = tuple[Any, ...]

#                 replaces matched rows, inserts new rows, deletes missing rows
STRATEGIES = {
    "insert": (False, True, False),
    "update": (True, False, False),
    "upsert": (True, True, False),
    "full_merge": (True, True, True),
    "deduplicate": (True, True, False),
}


class RefusedError(Exception):
    """The merge must be refused: `null key`, else `duplicate key`, else `partition move`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Outcome:
    """The target afterwards: the rows of each old file that stays, the new rows, the key and
    action of every row changed, and each file's fate."""

    files: dict[str, list[Row]]
    new: list[Row]
    changes: list[tuple[Key, str]]
    rewritten: list[str]
    preserved: list[str]
    removed: list[str]

    def count(self, action: str) -> int:
        """Say how many rows saw an action: `insert`, `update` or `delete`."""
        return sum(done == action for _, done in self.changes)

    @property
    def rows(self) -> list[Row]:
        """Every row of the target afterwards."""
        return [row for rows in self.files.values() for row in rows] + self.new


def merge(
    target: Mapping[str, Sequence[Row]],
    source: Sequence[Row],
    strategy: str,
    keys: Sequence[str],
    partitions: Sequence[str] = (),
    order_by: Sequence[str] = (),
) -> Outcome:
    """Merge source rows into the files of a target."""
    replaces, inserts, deletes = STRATEGIES[strategy]
    rows = accepted(source, strategy, keys, order_by)
    # No source key holds NULL or NaN, so a target key that does is not found here.
    by_key = {key_of(row, keys): row for row in rows}
    seen: set[Key] = set()
    files: dict[str, list[Row]] = {}
    fates: dict[str, list[str]] = {"rewritten": [], "preserved": [], "removed": []}
    changes: list[tuple[Key, str]] = []
    for name in sorted(target):
        matched = {key_of(old, keys) for old in target[name]} & by_key.keys()
        seen |= matched
        if deletes and target[name] and not matched:
            fates["removed"].append(name)
        else:
            fates["rewritten" if replaces and matched else "preserved"].append(name)
            files[name] = []
        for old in target[name]:
            new = by_key.get(key_of(old, keys))
            if new is not None and replaces:
                if any(freeze(old[column]) != freeze(new[column]) for column in partitions):
                    raise RefusedError("partition move")
                files[name].append(new)
                changes.append((key_of(new, keys), "update"))
            elif new is None and deletes:
                changes.append((key_of(old, keys), "delete"))
            else:
                files[name].append(old)
    added = [row for row in rows if inserts and key_of(row, keys) not in seen]
    changes += [(key_of(row, keys), "insert") for row in added]
    if fates["removed"] and not files and not added:
        # A dataset left without rows keeps one file, of no rows.
        kept = fates["removed"].pop(0)
        fates["rewritten"].append(kept)
        files[kept] = []
    return Outcome(files, added, changes, **fates)


def accepted(source: Sequence[Row], strategy: str, keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Give the source rows that count, or refuse them."""
    if any(is_null(row[name]) for row in source for name in keys):
        raise RefusedError("null key")
    rows = latest(source, keys, order_by) if strategy == "deduplicate" else list(source)
    if len({key_of(row, keys) for row in rows}) < len(rows):
        raise RefusedError("duplicate key")
    return rows


def latest(source: Sequence[Row], keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Keep one row of each key: the highest in `order_by`, and of equals the last."""
    best: dict[Key, Row] = {}
    for row in source:
        key = key_of(row, keys)
        if key not in best or rank(row, order_by) >= rank(best[key], order_by):
            best[key] = row
    return list(best.values())


def rank(row: Row, order_by: Sequence[str]) -> list[tuple[int, Any]]:
    """Order rows by columns: NULL is lowest, NaN is highest."""
    values = [row[name] for name in order_by]
    return [(0, 0) if value is None else (2, 0) if is_null(value) else (1, value) for value in values]


def key_of(row: Row, keys: Sequence[str]) -> Key:
    """Give the key of a row; to Python too -0.0 equals 0.0 and 1.50 equals 1.5."""
    return tuple(row[name] for name in keys)


def is_null(value: Any) -> bool:
    """Say whether a key value is NULL or NaN, which is all that does not equal itself."""
    return value is None or value != value  # noqa: PLR0124


def freeze(value: Any) -> Hashable:
    """Give a form in which equal means the same value to the bit: -0.0 is not 0.0, and NaN is NaN."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return tuple((name, freeze(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(inner) for inner in value)
    return type(value).__name__, value


def bag(rows: Iterable[Any]) -> Counter[Hashable]:
    """Give rows as a multiset; the order of rows and of columns does not count."""
    return Counter(freeze(dict(sorted(row.items())) if isinstance(row, dict) else row) for row in rows)
