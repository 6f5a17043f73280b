"""What a caller asks for, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from merganser.core.commit import LOCK_TIMEOUT
from merganser.core.engine import ACTION
from merganser.core.errors import InvalidArgumentError
from merganser.core.keys import normalize_keys
from merganser.core.strategy import rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.strategy import MergeStrategy, Rule


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


class MergeOptions(WriteOptions, total=False):
    """What the doors take beside source, path, strategy and keys of a merge; `use_merge` is DuckDB's own."""

    dedup_order_by: Sequence[str] | str | None
    check_partition_moves: bool
    audit: bool
    batch_id: str | None
    use_merge: bool | None


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of a merge or write beyond its source and target; checked before anything is read."""

    partition_columns: Sequence[str] | None = None
    compression: str = "snappy"
    max_rows_per_file: int = 5_000_000
    row_group_size: int = 500_000
    dedup_order_by: Sequence[str] = ()
    check_partition_moves: bool = True
    audit: bool = False
    batch_id: str | None = None
    rewrite_all: bool = False
    retain: int = 0
    lock_timeout: float = LOCK_TIMEOUT

    def __post_init__(self) -> None:
        for name in ("max_rows_per_file", "row_group_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                message = f"{name} must be a positive whole number, not {value!r}."
                raise InvalidArgumentError(message)
        if not isinstance(self.compression, str) or self.compression.lower() not in CODECS:
            message = f"Unknown compression {self.compression!r}. Choose one of: {', '.join(CODECS)}."
            raise InvalidArgumentError(message)
        if self.batch_id is not None and (not isinstance(self.batch_id, str) or not self.batch_id):
            message = f"batch_id must be a text that names this batch and no other, not {self.batch_id!r}."
            raise InvalidArgumentError(message)
        check_retain(self.retain)
        if (
            not isinstance(self.lock_timeout, int | float)
            or isinstance(self.lock_timeout, bool)
            or not self.lock_timeout >= 0
        ):
            message = f"lock_timeout must be a number of seconds, not {self.lock_timeout!r}."
            raise InvalidArgumentError(message)


def check_retain(retain: int) -> None:
    """Refuse what is no number of commits."""
    if not isinstance(retain, int) or isinstance(retain, bool) or retain < 0:
        message = f"retain must be a whole number of commits, 0 or more, not {retain!r}."
        raise InvalidArgumentError(message)


def make_options(
    partition_columns: Sequence[str] | str | None = None,
    partition_by: Sequence[str] | str | None = None,
    dedup_order_by: Sequence[str] | str | None = None,
    **others: Any,
) -> Options:
    """Build options from what the public doors take: one name or several, and `partition_by` as an alias."""
    if partition_columns is not None and partition_by is not None:
        message = "partition_columns and partition_by mean the same. Pass one of them."
        raise InvalidArgumentError(message)
    columns = partition_columns if partition_columns is not None else partition_by
    names = None if columns is None else _names(columns, "partition_columns")
    return Options(names, dedup_order_by=_names(dedup_order_by or (), "dedup_order_by"), **others)


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with which keys."""

    strategy: MergeStrategy
    keys: list[str]
    options: Options

    @property
    def rule(self) -> Rule:
        """What the strategy does with a row."""
        return rule_of(self.strategy)


def make_request(strategy: MergeStrategy, key_columns: Sequence[str] | str, options: Options) -> Request:
    """Check what can be checked before anything is read."""
    rule, keys = rule_of(strategy), normalize_keys(key_columns)
    if options.dedup_order_by and not rule.one_row_per_key:
        message = f"dedup_order_by belongs to strategy 'deduplicate', not {strategy!r}. Leave it out."
        raise InvalidArgumentError(message)
    if options.audit and ACTION in keys:
        message = f"The audit has a column {ACTION!r} of its own, so a key cannot be called that. Rename the key."
        raise InvalidArgumentError(message)
    return Request(strategy, keys, options)


def check_order(request: Request, *, ordered: bool) -> None:
    """Refuse to keep the last row of each key of a source without an order."""
    if request.rule.one_row_per_key and not request.options.dedup_order_by and not ordered:
        message = (
            "A DataFrame has no order, so there is no last row of a key to keep. Name the columns that order rows with "
            "dedup_order_by."
        )
        raise InvalidArgumentError(message)


def _names(columns: Sequence[str] | str, argument: str) -> list[str]:
    try:
        return normalize_keys(columns) if columns else []
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("key_columns", argument)) from None
