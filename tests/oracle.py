"""What a merge must do, in dicts and loops: slow, plain, and sharing nothing with the library.

A row is a dict of plain values, partition columns among them. A target is its files by name, each a list of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

Row = dict[str, Any]
Key = tuple[Any, ...]

#              what becomes of matched rows, inserts new rows, deletes missing rows
STRATEGIES = {
    "insert": ("keep", True, False),
    "update": ("update", False, False),
    "upsert": ("update", True, False),
    "full_merge": ("update", True, True),
    "deduplicate": ("update", True, False),
    "delete": ("delete", False, False),
}
OPERATIONS = {"insert": ["c", "r", "I", "insert"], "update": ["u", "U", "update"], "delete": ["d", "D", "delete"]}


class RefusedError(Exception):
    """The merge must be refused: `null key`, else `operation`, `duplicate key`, `scope`, `partition move`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Options:
    """The options of a merge, under the library's names; names and values are always lists.

    `columns` are those of the dataset, because a source may lack some of them.
    """

    columns: Sequence[str] = ()
    null_keys: str = "refuse"
    update_columns: Sequence[str] | None = None
    update_mode: str = "all"
    insert_columns: Sequence[str] | None = None
    sequence_column: str | None = None
    operation_column: str | None = None
    operation_values: Mapping[str, Sequence[Any]] = field(default_factory=lambda: OPERATIONS)
    skip_unchanged: bool = False
    scope: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    on_partition_move: str = "refuse"

    def get_operation(self, row: Row) -> str | None:
        """Return what a source row does: `insert` and `update` are the same."""
        if self.operation_column is None:
            return "update"
        value = row[self.operation_column]
        return next((name for name, values in self.operation_values.items() if value in values), None)

    def pick_given_values(self, row: Row) -> Row:
        """Return what a source row has for a matched row."""
        names = self.update_columns
        return {name: row[name] for name in row if name != self.operation_column and (names is None or name in names)}

    def pick_updated_values(self, row: Row) -> Row:
        """Return what a matched row takes from a source row."""
        given = self.pick_given_values(row)
        return {name: value for name, value in given.items() if value is not None or self.update_mode == "all"}

    def make_inserted_row(self, row: Row, keys: Sequence[str]) -> Row:
        """Return the new row that a source row makes."""
        names = self.insert_columns
        taken = [name for name in row if names is None or name in names or name in keys]
        return dict.fromkeys(self.columns) | {name: row[name] for name in taken if name != self.operation_column}

    def is_in_scope(self, row: Row) -> bool:
        """Return whether a row's partition is in the scope of the merge."""
        return all(row[name] in values for name, values in self.scope.items())

    def is_late(self, old: Row, new: Row) -> bool:
        """Return whether a source row is older than the target's."""
        order = [self.sequence_column] if self.sequence_column else []
        return rank(new, order) < rank(old, order)


@dataclass(frozen=True)
class Change:
    """A row changed: `insert`, `update` or `delete`; the row after (of a deleted one the key alone) and before."""

    action: str
    row: Row
    old: Row | None


@dataclass(frozen=True)
class Outcome:
    """The target afterwards: the rows of each old file that stays, the new rows, every row changed,
    how many matched rows were skipped, and the action for each file."""

    files: dict[str, list[Row]]
    new: list[Row]
    changes: list[Change]
    skipped: int
    rewritten: list[str]
    preserved: list[str]
    removed: list[str]

    def count(self, action: str) -> int:
        """Count the rows with an action: `insert`, `update` or `delete`."""
        return sum(change.action == action for change in self.changes)

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
    options: Options | None = None,
) -> Outcome:
    """Merge source rows into the files of a target."""
    options = options or Options()
    _, inserts, deletes = STRATEGIES[strategy]
    rows = check_source(source, strategy, keys, order_by, options)
    # No source key holds NaN, nor NULL unless it equals NULL, so a target key that does is not found here.
    by_key = {key_of(row, keys): row for row in rows}
    free = [name for name in partitions if name not in keys]
    seen: set[Key] = set()
    files: dict[str, list[Row]] = {}
    file_actions: dict[str, list[str]] = {"rewritten": [], "preserved": [], "removed": []}
    changes: list[Change] = []
    added: list[Row] = []
    skipped = 0
    for name in sorted(target):
        kept: list[Row] = []
        before = len(changes)
        for old in target[name]:
            new = by_key.get(key_of(old, keys))
            if new is None:
                action = "delete" if deletes and options.is_in_scope(old) else "keep"
            else:
                seen.add(key_of(new, keys))
                action = choose_action(old, new, strategy, free, options)
            skipped += action == "skip"
            if action == "delete":
                key = {column: old[column] for column in keys}
                changes.append(Change("delete", dict.fromkeys(old) | key, old))
            elif new is not None and action in {"update", "move"}:
                after = old | options.pick_updated_values(new)
                (kept if action == "update" else added).append(after)
                changes.append(Change("update", after, old))
            else:
                kept.append(old)
        if kept or not target[name]:
            files[name] = kept
        file_action = "preserved" if len(changes) == before else "rewritten" if kept else "removed"
        file_actions[file_action].append(name)
    for row in rows:
        if inserts and key_of(row, keys) not in seen and options.get_operation(row) != "delete":
            added.append(options.make_inserted_row(row, keys))
            changes.append(Change("insert", added[-1], None))
    _keep_schema(target, files, file_actions, added)
    return Outcome(files, added, changes, skipped, **file_actions)


def _keep_schema(
    target: Mapping[str, Sequence[Row]],
    files: dict[str, list[Row]],
    file_actions: dict[str, list[str]],
    added: Sequence[Row],
) -> None:
    """A dataset left without rows keeps one file, of no rows; the first rows after that take its place."""
    if added and not any(target.values()):
        files.clear()
        file_actions["removed"], file_actions["preserved"] = file_actions["preserved"], []
    elif file_actions["removed"] and not files and not added:
        kept_file = file_actions["removed"].pop(0)
        file_actions["rewritten"].append(kept_file)
        files[kept_file] = []


def choose_action(old: Row, new: Row, strategy: str, partitions: Sequence[str], options: Options) -> str:
    """Return the action for a matched row: `keep`, `skip`, `delete`, `update` or `move`; the first rule decides."""
    matched, _, _ = STRATEGIES[strategy]
    if matched == "keep":
        return "keep"
    if options.is_late(old, new):
        return "skip"
    if matched == "delete" or options.get_operation(new) == "delete":
        return "delete"
    given, taken = options.pick_given_values(new), options.pick_updated_values(new)
    if (
        partitions
        and all(name in given for name in partitions)
        and any(given[name] != old[name] for name in partitions)
    ):
        if options.on_partition_move == "refuse":
            raise RefusedError("partition move")
        return "move"
    if options.skip_unchanged and all(are_equal(old[name], value) for name, value in taken.items()):
        return "skip"
    return "update"


def check_source(
    source: Sequence[Row], strategy: str, keys: Sequence[str], order_by: Sequence[str], options: Options
) -> list[Row]:
    """Return the source rows that count, or refuse them."""
    if any(is_refused_key(row[name], options) for row in source for name in keys):
        raise RefusedError("null key")
    if any(options.get_operation(row) is None for row in source):
        raise RefusedError("operation")
    rows = list(source)
    if options.sequence_column is not None:
        rows = latest(source, keys, [options.sequence_column])
    elif strategy in ("deduplicate", "delete"):
        rows = latest(source, keys, order_by)
    if len({key_of(row, keys) for row in rows}) < len(rows):
        raise RefusedError("duplicate key")
    if not all(options.is_in_scope(row) for row in rows):
        raise RefusedError("scope")
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
    """Return the key of a row; to Python too -0.0 equals 0.0 and 1.50 equals 1.5."""
    return tuple(row[name] for name in keys)


def is_refused_key(value: Any, options: Options) -> bool:
    """Return whether a value in a source key is refused: NaN always, NULL unless it equals NULL."""
    return is_null(value) and not (value is None and options.null_keys == "match")


def is_null(value: Any) -> bool:
    """Return whether a key value is NULL or NaN, which do not equal themselves."""
    return value is None or value != value  # noqa: PLR0124


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values of one type are equal: NULL is NULL, NaN is NaN, -0.0 is 0.0, nested by content."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other) or (one is not None and other is not None and is_null(one) and is_null(other))


def freeze(value: Any) -> Hashable:
    """Return a form in which equal means the same value to the bit: -0.0 is not 0.0, and NaN is NaN."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return tuple((name, freeze(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(inner) for inner in value)
    return type(value).__name__, value


def to_multiset(rows: Iterable[Any]) -> Counter[Hashable]:
    """Return rows as a multiset; the order of rows and of columns does not count."""
    return Counter(freeze(dict(sorted(row.items())) if isinstance(row, dict) else row) for row in rows)
