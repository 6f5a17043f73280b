"""What a caller asks for, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from merganser.core.model.keys import normalize_keys
from merganser.core.model.option_checks import check_combination
from merganser.core.model.strategy import find_rule
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from merganser.core.model.strategy import MergeStrategy, Rule
    from merganser.progress import ProgressCallback

PartitionMove = Literal["refuse", "move"]

CODECS = ("snappy", "zstd", "gzip", "brotli", "lz4", "none")


class WriteOptions(TypedDict, total=False):
    """What the doors take beside source, path and mode of a write."""

    partition_columns: Sequence[str] | str | None
    partition_by: Sequence[str] | str | None
    filesystem: Any
    compression: str
    max_rows_per_file: int
    row_group_size: int
    retain: int
    lock_timeout: float
    progress: ProgressCallback | None
    ignore_table_format: bool


class ChangeOptions(TypedDict, total=False):
    """What a plan and a merge take to say which rows change, and how."""

    partition_by: Sequence[str] | str | None
    dedup_order_by: Sequence[str] | str | None
    update_columns: Sequence[str] | str | None
    insert_columns: Sequence[str] | str | None
    sequence_column: str | None
    operation_column: str | None
    operation_values: Mapping[str, Any] | None
    skip_unchanged: bool | Sequence[str] | str
    scope: Mapping[str, Any] | None
    check_partition_moves: bool
    on_partition_move: PartitionMove
    ignore_table_format: bool


class CommitOptions(ChangeOptions, total=False):
    """What a merge takes beyond a plan."""

    audit: bool | str | os.PathLike[str]
    batch_id: str | None
    retain: int
    lock_timeout: float
    progress: ProgressCallback | None


class MergeOptions(WriteOptions, CommitOptions, total=False):
    """What the doors take beside source, path, strategy and keys of a merge; `use_merge` is DuckDB's own."""

    use_merge: bool | None


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of a merge or write beyond its source and target; checked before anything is read."""

    partition_columns: Sequence[str] | None = None
    compression: str = "snappy"
    max_rows_per_file: int = 5_000_000
    row_group_size: int = 500_000
    dedup_order_by: Sequence[str] = ()
    update_columns: Sequence[str] | None = None
    insert_columns: Sequence[str] | None = None
    sequence_column: str | None = None
    operation_column: str | None = None
    operation_values: Mapping[str, Sequence[Any]] | None = None
    skip_unchanged: bool | Sequence[str] = False
    scope: Mapping[str, Sequence[Any]] | None = None
    check_partition_moves: bool = True
    on_partition_move: PartitionMove = "refuse"
    audit: bool | str | os.PathLike[str] = False
    batch_id: str | None = None
    rewrite_all: bool = False
    retain: int = 0
    lock_timeout: float = LOCK_TIMEOUT
    progress: ProgressCallback | None = None
    ignore_table_format: bool = False

    def __post_init__(self) -> None:
        for name in ("max_rows_per_file", "row_group_size"):
            value = getattr(self, name)
            _check(_is_integer(value) and value > 0, f"{name} must be a positive whole number, not {value!r}.")
        for name in ("check_partition_moves", "ignore_table_format"):
            value = getattr(self, name)
            _check(isinstance(value, bool), f"{name} must be True or False, not {value!r}.")
        for name in ("sequence_column", "operation_column"):
            value = getattr(self, name)
            _check(
                value is None or _is_nonempty_string(value), f"{name} must be the name of one column, not {value!r}."
            )
        known = isinstance(self.compression, str) and self.compression.lower() in CODECS
        _check(known, f"Unknown compression {self.compression!r}. Choose one of: {', '.join(CODECS)}.")
        audit = self.audit
        kind = isinstance(audit, bool | os.PathLike) or _is_nonempty_string(audit)
        _check(kind, f"audit must be True, 'rows' or the path of a folder, not {audit!r}.")
        move = self.on_partition_move
        _check(move in get_args(PartitionMove), f"on_partition_move must be 'refuse' or 'move', not {move!r}.")
        check_batch_id(self.batch_id)
        check_retain(self.retain)
        timeout = self.lock_timeout
        seconds = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0
        _check(seconds, f"lock_timeout must be a number of seconds, not {timeout!r}.")
        listens = self.progress is None or callable(self.progress)
        _check(listens, f"progress must be something to call with each step, not {self.progress!r}.")


def check_batch_id(batch_id: object) -> None:
    """Refuse what names no batch; None is a merge that is no batch."""
    named = batch_id is None or _is_nonempty_string(batch_id)
    _check(named, f"batch_id must be a text that names this batch and no other, not {batch_id!r}.")


def _check(holds: bool, message: str) -> None:  # noqa: FBT001
    if not holds:
        raise InvalidArgumentError(message)


def _is_nonempty_string(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_retain(retain: int) -> None:
    """Refuse what is no number of commits."""
    whole = _is_integer(retain) and retain >= 0
    _check(whole, f"retain must be a whole number of commits, 0 or more, not {retain!r}.")


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an option that a call does not have, as Python refuses an argument, and name the one that may be meant."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]}?" if near else f" Its options are: {', '.join(names)}."
            message = f"{call}() got an unexpected keyword argument {name!r}.{hint}"
            raise TypeError(message)


def pick_source(source: Any, data: Any) -> Any:
    """Take the source under either of its names."""
    _check(source is None or data is None, "source and data mean the same. Pass one of them.")
    given = data if source is None else source
    _check(given is not None, "There is no source: source and data are both None. Pass one of them.")
    return given


def make_options(
    partition_columns: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    dedup_order_by: Sequence[str] | str | None = None,
    update_columns: Sequence[str] | str | None = None,
    insert_columns: Sequence[str] | str | None = None,
    skip_unchanged: bool | Sequence[str] | str = False,  # noqa: FBT001, FBT002 - passed by name, as all of these
    operation_values: Mapping[str, Any] | None = None,
    scope: Mapping[str, Any] | None = None,
    **others: Any,
) -> Options:
    """Build options from what the public doors take: one name or value or several, `partition_by` as an alias."""
    if partition_columns is not None and partition_by is not None:
        message = "partition_columns and partition_by mean the same. Pass one of them."
        raise InvalidArgumentError(message)
    columns = partition_columns if partition_columns is not None else partition_by
    return Options(
        _to_names_or_none(columns, "partition_columns"),
        dedup_order_by=to_column_names(dedup_order_by or (), "dedup_order_by"),
        update_columns=_to_nonempty_names(update_columns, "update_columns"),
        insert_columns=_to_nonempty_names(insert_columns, "insert_columns"),
        skip_unchanged=_to_names_or_bool(skip_unchanged, "skip_unchanged"),
        operation_values=_to_value_lists(operation_values, "operation_values"),
        scope=_to_value_lists(scope, "scope"),
        **others,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with which keys."""

    strategy: MergeStrategy
    keys: list[str]
    options: Options

    @property
    def rule(self) -> Rule:
        """What the strategy does with a row."""
        return find_rule(self.strategy)

    @property
    def deduplicates(self) -> bool:
        """Whether of several source rows with one key one counts, rather than being refused."""
        return self.rule.deduplicates or self.options.sequence_column is not None

    @property
    def order_by(self) -> Sequence[str]:
        """What orders the source rows of one key."""
        sequence = self.options.sequence_column
        return self.options.dedup_order_by if sequence is None else [sequence]


def make_request(strategy: MergeStrategy, key_columns: Sequence[str] | str, options: Options) -> Request:
    """Check what can be checked before anything is read."""
    request = Request(strategy, normalize_keys(key_columns), options)
    check_combination(request)
    return request


def check_order(request: Request, *, is_ordered: bool) -> None:
    """Refuse to keep the last row of each key of a source without an order."""
    if request.deduplicates and not request.order_by and not is_ordered:
        message = (
            "A DataFrame has no order, so there is no last row of a key to keep. Name the columns that order rows with "
            "dedup_order_by, or sequence_column."
        )
        raise InvalidArgumentError(message)


def _to_names_or_none(columns: Sequence[str] | str | None, argument: str) -> list[str] | None:
    return None if columns is None else to_column_names(columns, argument)


def _to_nonempty_names(columns: Sequence[str] | str | None, argument: str) -> list[str] | None:
    names = _to_names_or_none(columns, argument)
    _check(names != [], f"{argument} is empty. Name at least one column, or leave it out.")
    return names


def _to_names_or_bool(columns: bool | Sequence[str] | str, argument: str) -> bool | list[str]:  # noqa: FBT001
    if isinstance(columns, bool):
        return columns
    named = isinstance(columns, str | list | tuple)
    _check(named, f"{argument} must be True, False or a list of column names, not {columns!r}.")
    return _to_nonempty_names(columns, argument) or []


def _to_value_lists(given: Mapping[str, Any] | None, argument: str) -> Mapping[str, list[Any]] | None:
    """Take a mapping from names to a value, or to several."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        message = f"{argument} must map names to a value or a list of values, not {given!r}."
        raise InvalidArgumentError(message)
    several = (list, tuple, set, frozenset)
    return {name: list(values) if isinstance(values, several) else [values] for name, values in given.items()}


def to_column_names(columns: Sequence[str] | str, argument: str) -> list[str]:
    """Take a column name or several, or none, as a list; what is wrong is said of the argument."""
    try:
        return normalize_keys(columns) if columns else []
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("key_columns", argument)) from None
