"""The options of `merge`, `plan` and `write_dataset`: the one place where each is declared.

`scripts/options.py` writes signatures and `Args:` of these calls from `Options`; the command line and the keys of a
pipeline are derived from it when they are loaded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from merganser.core.model import option_types as types
from merganser.core.model.clause_checks import check_expressions
from merganser.core.model.clauses import check_clauses, format_clause, quote
from merganser.core.model.keys import normalize_keys
from merganser.core.model.option_checks import check_combination
from merganser.core.model.strategy import Rule, find_clauses
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.errors import InvalidArgumentError
from merganser.printable import mask_credentials

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.clauses import Clause, ClauseAction
    from merganser.core.model.option_types import OptionType
    from merganser.core.model.strategy import MergeStrategy
    from merganser.progress import ProgressCallback

P = ParamSpec("P")
R = TypeVar("R")
PartitionMove = Literal["refuse", "move"]
SchemaMode = Literal["strict", "evolve"]
UpdateMode = Literal["all", "non_null"]
NullKeys = Literal["refuse", "match"]
RepeatedKeys = Literal["refuse", "apply_in_order"]
Call = Literal["merge", "plan", "write_dataset"]

_ALL = get_args(Call)
_MERGES = ("merge", "plan")
_WRITES = ("merge", "write_dataset")
# The options that methods take by position as well.
POSITIONAL = ("partition_columns", "filesystem", "compression", "max_rows_per_file", "row_group_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What is known of an option beside its name, annotation and default."""

    type: OptionType
    description: str
    calls: Sequence[str]  # the calls that take it
    engine: str | None = None  # the only engine that has it
    is_recorded: bool = True  # whether the history of a dataset records it
    # Whether the command line has it, and its help where the description does not fit.
    has_flag: bool = True
    help: str | None = None


def declare(option_type: OptionType, description: str, calls: Sequence[str], default: Any = None, **others: Any) -> Any:
    """Declare an option as a field of `Options`."""
    declared = Declaration(type=option_type, description=description, calls=calls, **others)
    return field(default=default, metadata={"declaration": declared})


# The parameters of the calls that are not options.
ARGUMENTS = {
    "source": "Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.",
    "path": "Folder or URL of the dataset.",
    "strategy": "What happens to matched, new and missing rows.",
    "key_columns": "Columns that identify a row.",
    "mode": "Whether existing rows are kept or replaced.",
    "data": "Another name for `source`.",
    "engine": "Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a merge, plan or write, checked and converted when they are made."""

    partition_columns: Sequence[str] | str | None = declare(
        types.COLUMNS, "Partition columns of a new dataset; an existing one keeps its own.", _ALL, has_flag=False
    )
    filesystem: Any = declare(
        types.ANY,
        "fsspec filesystem of the dataset; by default that of its URL.",
        _ALL,
        has_flag=False,
        is_recorded=False,
    )
    compression: str = declare(types.CODEC, "Codec for new files.", _WRITES, default="snappy")
    max_rows_per_file: int = declare(
        types.POSITIVE, "Maximum number of rows in a new file.", _WRITES, default=5_000_000
    )
    row_group_size: int = declare(
        types.POSITIVE, "Maximum number of rows in a row group of a new file.", _WRITES, default=500_000
    )
    partition_by: Sequence[str] | str | None = declare(
        types.COLUMNS,
        "Another name for `partition_columns`.",
        _ALL,
        help="Partition columns of a new dataset; an existing one keeps its own.",
    )
    column_types: Mapping[str, str | pa.DataType] | None = declare(
        types.COLUMN_TYPES,
        'Types of columns of CSV, JSON and Python rows, instead of inferred ones: `pa.string()`, "BIGINT", '
        '"timestamp[us, tz=UTC]".',
        _ALL,
        has_flag=False,
        is_recorded=False,
    )
    null_values: Sequence[str] | str | None = declare(
        types.STRINGS,
        "Unquoted CSV cells that are NULL, beside empty ones.",
        _ALL,
        has_flag=False,
        is_recorded=False,
    )
    schema_mode: SchemaMode = declare(
        types.choose_from(*get_args(SchemaMode)),
        "Whether a source with other columns is refused, or new columns are added to the target and types widened.",
        _ALL,
        default="strict",
    )
    null_keys: NullKeys = declare(
        types.choose_from(*get_args(NullKeys)),
        "Whether NULL in a key column of the source is refused, or matches NULL in the target.",
        _MERGES,
        default="refuse",
    )
    update_columns: Sequence[str] | str | None = declare(
        types.SOME_COLUMNS, "Columns that matched rows take from the source; default all.", _MERGES
    )
    update_mode: UpdateMode = declare(
        types.choose_from(*get_args(UpdateMode)),
        "Whether matched rows take every value of the source, or keep theirs where that of the source is NULL.",
        _MERGES,
        default="all",
    )
    insert_columns: Sequence[str] | str | None = declare(
        types.SOME_COLUMNS, "Columns that new rows take from the source; default all.", _MERGES
    )
    dedup_order_by: Sequence[str] | str | None = declare(
        types.ORDER, "Columns that order source rows with the same key; the highest row is merged.", _MERGES
    )
    sequence_column: str | None = declare(
        types.COLUMN,
        "Column that orders rows with the same key, in the source and against the target; older source rows "
        "are skipped.",
        _MERGES,
    )
    repeated_keys: RepeatedKeys = declare(
        types.choose_from(*get_args(RepeatedKeys)),
        "Whether several source rows with the same key are refused, or clauses apply to each in turn, ordered by "
        "`sequence_column`.",
        _MERGES,
        default="refuse",
    )
    operation_column: str | None = declare(
        types.COLUMN, "Source column that holds the operation of each row: insert, update or delete.", _MERGES
    )
    operation_values: Mapping[str, Any] | None = declare(
        types.OPERATION_VALUES, "Values of the operation column that stand for insert, update and delete.", _MERGES
    )
    skip_unchanged: bool | Sequence[str] | str = declare(
        types.COMPARED_COLUMNS,
        "Do not rewrite matched rows that already equal the source, in all columns or in those listed.",
        _MERGES,
        help="Do not rewrite matched rows that already equal the source.",
        default=False,
    )
    scope: Mapping[str, Any] | None = declare(
        types.VALUES,
        "Partitions that the source covers completely; full_merge deletes missing rows only there.",
        _MERGES,
    )
    on_partition_move: PartitionMove = declare(
        types.choose_from(*get_args(PartitionMove)),
        "Whether matched rows whose partition changes are refused or moved.",
        _MERGES,
        default="refuse",
    )
    check_partition_moves: bool = declare(
        types.BOOLEAN,
        "Check for matched rows whose partition changes; False skips the check, which is safe if there are none.",
        _MERGES,
        help="Check for matched rows whose partition changes; on by default.",
        default=True,
    )
    audit: bool | str | os.PathLike[str] = declare(
        types.AUDIT,
        'Record of changed rows: True for keys and actions, "rows" to include the rows before and after, or a folder '
        "to store these as Parquet.",
        ("merge",),
        help="Record of changed rows: 'keys' for keys and actions, 'rows' to include rows, or a folder for Parquet.",
        default=False,
    )
    batch_id: str | None = declare(
        types.BATCH_ID,
        "Name of this batch; a batch that was committed before is not merged again.",
        ("merge",),
        is_recorded=False,
    )
    retain: int = declare(
        types.COMMITS, "Number of latest commits that can be undone; their replaced files are kept.", _WRITES, default=0
    )
    lock_timeout: float = declare(types.SECONDS, "Seconds to wait for another writer.", _WRITES, default=LOCK_TIMEOUT)
    progress: ProgressCallback | None = declare(
        types.CALLBACK,
        "Function that is called with a `Progress` at every step, from any thread.",
        _WRITES,
        has_flag=False,
        is_recorded=False,
    )
    ignore_table_format: bool = declare(
        types.BOOLEAN,
        "Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg, Hudi, "
        "Lance or DuckLake table.",
        _ALL,
        default=False,
    )
    use_merge: bool | None = declare(
        types.OPTIONAL_BOOLEAN,
        "DuckDB only: True for MERGE, False for UNION ALL and NOT EXISTS; by default MERGE if DuckDB has it.",
        ("merge",),
        engine="duckdb",
        help="DuckDB only: use MERGE, or UNION ALL and NOT EXISTS; by default MERGE if DuckDB has it.",
        is_recorded=False,
    )
    rewrite_all: bool = declare(types.BOOLEAN, "Rewrite every file.", (), default=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            object.__setattr__(self, one.name, one.metadata["declaration"].type.read(value, one.name))
        if self.partition_by is not None:
            if self.partition_columns is not None:
                raise InvalidArgumentError("partition_columns and partition_by mean the same. Pass one of them.")
            object.__setattr__(self, "partition_columns", self.partition_by)
            object.__setattr__(self, "partition_by", None)


DECLARATIONS: Mapping[str, Declaration] = {one.name: one.metadata["declaration"] for one in fields(Options)}


def list_options(call: Call) -> list[str]:
    """List the names of the options of a call, in the order of their declaration."""
    return [name for name, declared in DECLARATIONS.items() if call in declared.calls]


def pick_options(call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the options of a call out of its arguments."""
    return {name: arguments[name] for name in list_options(call) if name in arguments}


def check_option(name: str, value: object) -> None:
    """Refuse a value that an option does not take."""
    DECLARATIONS[name].type.read(value, name)


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an unknown argument as Python does, and suggest the known one that is closest."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]}?" if near else f" Its options are: {', '.join(names)}."
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}.{hint}")


def suggest_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function suggest the closest parameter where it gets an unknown argument, as Python does from 3.13 on."""
    known = set(inspect.signature(function).parameters) - {"self"}

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        check_names(function.__name__, named, known)
        return function(*arguments, **named)

    return call


def count_own_frames() -> int:
    """Count the calls up to the line outside of this library, which a warning names."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame and frame.f_back) and frame.f_globals.get("__name__", "").startswith("merganser."):
        level += 1
    return level


def pick_source(source: Any, data: Any) -> Any:
    """Return the source, which may be passed under either of its names."""
    if source is not None and data is not None:
        raise InvalidArgumentError("source and data mean the same. Pass one of them.")
    if source is None and data is None:
        raise InvalidArgumentError("There is no source: source and data are both None. Pass one of them.")
    return data if source is None else source


@dataclass(frozen=True, slots=True)
class Request:
    """A merge as it was asked for: clauses, key columns and options.

    Where the caller named a strategy, the clauses are those that it stands for. If clauses compute anything, the source
    is that of the `derived` columns, once it is open.
    """

    strategy: MergeStrategy | Literal["merge"]
    keys: list[str]
    options: Options
    clauses: tuple[Clause, ...]
    on: Mapping[str, str] = field(default_factory=dict)
    derived: DerivedColumns | None = None
    # The values of functions that depend on the time, the same in all clauses.
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def rule(self) -> Rule:
        """What the clauses do with matched, new and missing rows."""
        return Rule.of(self.clauses, deduplicates=self.strategy == "deduplicate")

    @property
    def has_strategy(self) -> bool:
        """Whether the caller named a strategy instead of clauses."""
        return self.strategy != "merge"

    @property
    def clause_texts(self) -> list[str]:
        """The clauses that the caller gave, as SQL."""
        # A clause may compare a column with a URL.
        return [] if self.has_strategy else [mask_credentials(format_clause(clause)) for clause in self.clauses]

    @property
    def actions(self) -> set[ClauseAction]:
        """What may happen to a row."""
        actions = {clause.action for clause in self.clauses}
        if self.applies_in_order and {"delete", "insert"} <= actions:
            # A row that is deleted and inserted again is updated.
            actions.add("update")
        return actions if self.options.operation_column is None else {*actions, "delete"}

    @property
    def changes_missing(self) -> bool:
        """Whether rows without a match may change."""
        return any(clause.side == "not_matched_by_source" for clause in self.clauses)

    @property
    def allows_repeated_keys(self) -> bool:
        """Whether several source rows may have one key, of which conditions choose one at most."""
        conditions = [one.where for one in self.clauses if one.side != "not_matched_by_source"]
        return not self.has_strategy and any(one is not None for one in conditions)

    @property
    def deduplicates(self) -> bool:
        """Whether one of several source rows with the same key is merged, instead of all being refused."""
        has_order = self.options.sequence_column is not None
        return self.rule.deduplicates or (has_order and not self.applies_in_order)

    @property
    def applies_in_order(self) -> bool:
        """Whether clauses apply to all source rows with the same key, one after the other."""
        return self.options.repeated_keys == "apply_in_order"

    @property
    def order_by(self) -> Sequence[str]:
        """The columns that order source rows with the same key."""
        sequence = self.options.sequence_column
        return self.options.dedup_order_by or () if sequence is None else [sequence]


def make_request(
    strategy: MergeStrategy,
    key_columns: Sequence[str] | Mapping[str, str] | str,
    options: Options,
    clauses: Sequence[Clause] | None = None,
) -> Request:
    """Check everything that can be checked before anything is read."""
    keys = normalize_keys(list(key_columns) if isinstance(key_columns, Mapping) else key_columns)
    on = dict(key_columns) if isinstance(key_columns, Mapping) else {name: quote(name) for name in keys}
    if clauses is None:
        request = Request(strategy, keys, options, _make_clauses(strategy, options), on)
    else:
        check_clauses(clauses)
        for clause in clauses:
            check_expressions(clause)
        request = Request("merge", keys, options, tuple(_adapt_clause(one, options) for one in clauses), on)
    check_combination(request)
    return request


def make_write_request(options: Options) -> Request:
    """Request a write without keys, which inserts every row."""
    return Request("insert", [], options, _make_clauses("insert", options))


def _make_clauses(strategy: str, options: Options) -> tuple[Clause, ...]:
    """Make the clauses that a strategy and its options stand for."""
    columns = {"update": options.update_columns, "insert": options.insert_columns}
    chosen = {action: None if some is None else tuple(some) for action, some in columns.items()}
    clauses = [replace(one, columns=chosen.get(one.action)) for one in find_clauses(strategy)]
    return tuple(_adapt_clause(one, options) for one in clauses)


def _adapt_clause(clause: Clause, options: Options) -> Clause:
    """Apply the options that change what a clause takes from the source."""
    # A row that moves has nothing but what the source has, so none of its columns may be missing there.
    evolves = options.schema_mode == "evolve" and options.on_partition_move != "move"
    keeps_old = clause.action == "update" and options.update_mode == "non_null"
    return replace(clause, by_name=clause.by_name or evolves, keeps_old=clause.keeps_old or keeps_old)


def check_order(request: Request, *, is_ordered: bool) -> None:
    """Refuse to deduplicate a source whose rows have no order."""
    if request.deduplicates and not request.order_by and not is_ordered:
        raise InvalidArgumentError(
            "The rows of a DataFrame have no order, so the last row of a key is undefined. Set dedup_order_by or "
            "sequence_column to columns that order the rows."
        )
