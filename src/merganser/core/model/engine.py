"""The engine protocol: row work, and nothing else.

An engine never lists, publishes or deletes a data file, never decides a policy, never validates. It gets the files to
read and returns facts and counts; rows stay inside it. Each verb returns the object that has the next ones:

    engine.open(source) -> OpenedSource.conform(spec) -> ConformedSource.match(files, facts) -> MatchedSource.stage(...)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NewType, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.clause_source import DerivedColumns
    from merganser.core.model.file_shape import FileShape
    from merganser.core.model.strategy import MergePolicy, Rule
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

SAMPLE_SIZE = 5
ACTION_COLUMN = "merge_action"
OLD_ROW_COLUMN = "merge_old"

# The index of a file in `Target.files`, of a row group in its file, of a partition in `SourceFacts.partitions`. A row
# group of the whole dataset has one more number, its row in `Target.get_bounds`: masks of row groups are in that order.
FileNumber = NewType("FileNumber", int)
GroupNumber = NewType("GroupNumber", int)
PartitionNumber = NewType("PartitionNumber", int)
# The path does not contain the partition; the source has no row of the partition.
UNKNOWN_PARTITION = PartitionNumber(-1)
OTHER_PARTITION = PartitionNumber(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """What a merge needs from its source, and where the target is."""

    schema: pa.Schema  # the columns to read, in the target's types
    keys: Sequence[str]  # `NullSafeKeys` where NULL equals NULL
    partition_columns: Sequence[str]
    policy: MergePolicy
    store: Store
    staging: Staging | None  # where an engine may keep rows; None where nothing may be written


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What validation and planning know about the source; its size depends on partitions and row groups, not rows."""

    rows: int
    excluded_rows: int  # rows that are not inserted even if they match nothing
    null_keys: Mapping[str, int]  # NULL or NaN
    nan_keys: Mapping[str, int]
    # Of rows that delete only the keys count: their other values add neither a partition nor a column with NULLs.
    columns_with_nulls: frozenset[str]
    partitions: pa.Table
    # Whether each row of the bounds might hold a source key; undefined if a key is NaN, or NULL and not null-safe.
    candidates: npt.NDArray[np.bool_]
    # Keys of several source rows, of which clauses may let one change or add a row.
    repeated_keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFile:
    """A file whose key columns are read, in some of its row groups."""

    number: FileNumber
    path: str
    groups: Sequence[GroupNumber]
    constants: Mapping[str, pa.Array]  # a value for each key or partition column that the path has or the file lacks
    partition: PartitionNumber  # the file's, OTHER_PARTITION or UNKNOWN_PARTITION
    spans: Sequence[tuple[int, int]] = ()  # the first row of each row group in the file, and the one after its last
    has_all_groups: bool = True  # the file has no other row groups
    has_bounds: bool = True  # trusted statistics give the bounds of all keys to be read
    deletes_missing: bool = False  # rows without a source row are deleted
    footer: Footer | None = None  # saves reading it again
    shape: FileShape | None = None  # how to read it in the schema of the dataset, if it has another one


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSize:
    """How large a target is."""

    files: int
    rows: int
    bytes: int

    def is_within(self, limit: TargetSize) -> bool:
        """Whether no figure exceeds that of a limit."""
        return self.files <= limit.files and self.rows <= limit.rows and self.bytes <= limit.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCounts:
    """The number of matching target rows in each row group that has any, and of source rows that match none."""

    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    replaced: npt.NDArray[np.int64]  # of the `rows`, those that get new values
    removed: npt.NDArray[np.int64]  # of the `rows`, those that leave the row group, deleted or moved
    new_rows: int  # without source rows that delete or that the rule does not insert
    moved: int  # rows whose file has a known partition, and whose source row has another one
    moved_sample: pa.Table  # the keys of up to SAMPLE_SIZE of them

    @classmethod
    def of_unmatched(cls, facts: SourceFacts, rule: Rule) -> MatchCounts:
        """Count without a match: every source row is new unless it is excluded."""
        numbers, counts = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return cls(
            file=numbers,
            row_group=numbers,
            rows=counts,
            replaced=counts,
            removed=counts,
            new_rows=facts.rows - facts.excluded_rows if rule.inserts else 0,
            moved=0,
            moved_sample=pa.table({}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob:
    """One file to change: matched rows of `groups` have an action, `dropped_groups` are removed.

    With a `shape`, the file gets that schema.
    """

    number: FileNumber
    path: str
    columns: frozenset[str]  # what replaced rows take from the source
    groups: Sequence[GroupNumber]
    dropped_groups: Sequence[GroupNumber]
    keeps_missing: bool  # rows of `groups` without a match stay
    footer: Footer | None = None  # saves reading it again
    shape: FileShape | None = None
    constants: Mapping[str, pa.Array] = field(default_factory=dict)  # a value for each column that the path has


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A staged replacement, and how many rows of the file it replaces and removes."""

    staged_path: str
    replaced: int
    removed: int


@dataclass(frozen=True, slots=True)
class AppendedFile:
    """A staged new file, and the partition of its rows (0 if unpartitioned)."""

    staged_path: str
    partition: PartitionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How new files are written: columns and key-value metadata like the target's, the rest as the caller chose."""

    schema: pa.Schema  # that of the files: without partition columns, in plain types
    columns: frozenset[str]  # what rows take from the source; the others are NULL
    key_values: Mapping[bytes, bytes]
    writer_options: Mapping[str, Any]
    compression: str | Mapping[str, str]
    max_rows_per_file: int
    row_group_size: int
    bloom_filter_columns: frozenset[str] = frozenset()  # keys that get a bloom filter


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """What an audit lists for every changed row: `columns` as they are afterwards, or the `keys` of a deleted row."""

    columns: Sequence[str]
    keys: Sequence[str]
    insert_columns: frozenset[str]  # what new rows take from the source
    has_old_rows: bool  # a struct beside the columns has the row as it was
    is_stored: bool  # rows are staged in files
    schema: pa.Schema


class Engine(Protocol):
    """Opens sources, and runs tasks on files."""

    name: str

    def open(self, source: Any) -> OpenedSource:
        """Open a source, to be read once."""

    def run_tasks(
        self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, large: bool = False, in_driver: bool = True
    ) -> list[ResultT]:
        """Run a task for each of many files, in order, where the engine has room; a large one reads entire columns.

        An engine with executors runs few tasks in the driver, unless `in_driver` is false.
        """

    def run_merge(
        self, work: Callable[[Engine, ConformedSource], ResultT], source: ConformedSource, target: TargetSize
    ) -> ResultT:
        """Do the work of a merge here, or where the rows of the source are, with an engine there."""


class OpenedSource(Protocol):
    """A source whose columns are known, and whose rows are not read yet."""

    @property
    def schema(self) -> pa.Schema:
        """The source's columns and types."""

    @property
    def is_ordered(self) -> bool:
        """Whether the source has a first and a last row."""

    @property
    def unique_columns(self) -> Sequence[str]:
        """The columns of a key that is known to be unique, if there is one."""

    def derive(self, derived: DerivedColumns) -> OpenedSource:
        """Compute other columns from those of the source, row by row."""

    def conform(self, spec: SourceSpec) -> ConformedSource:
        """Cast the source to `spec.schema` without loss, with the errors of `model.schema.conform`."""


class ConformedSource(Protocol):
    """Source rows whose columns are nullable and in plain types (`model.schema.to_plain_type`).

    Keys are compared in the form of `model.keys.to_canonical`. An engine that matches in its own way must agree with
    it: strings as bytes, instants as integers of the target's unit, decimals at the target's scale, no -0.0.
    """

    def deduplicate(self, order_by: Sequence[str]) -> ConformedSource:
        """Keep the latest row of each key (T3)."""

    def fold_keys(self, *, is_ordered: bool) -> ConformedSource:
        """Make one row of all rows of a key, for clauses that apply to them in order (Q8)."""

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        """Count rows and NULL keys, list partitions, and test `bounds` (see `KeyBounds`)."""

    def find_duplicate_keys(self) -> tuple[int, pa.Table]:
        """Count the keys of more than one row, and take a sample of `SAMPLE_SIZE` of them; no key is NULL."""

    def hash_keys(self) -> Hashes:
        """Hash the canonical keys of a source of few rows, none of them NULL, in any order."""

    def match(self, files: Sequence[ScanFile], facts: SourceFacts, missing: Sequence[ScanFile] = ()) -> MatchedSource:
        """Find every row of the files whose key is a source key, and assign its action.

        Only key columns are read, and the columns that the policy compares. Without files, nothing matches. Rows of
        `missing` that match nothing get the action of the policy's clauses for them.
        """


class MatchedSource(Protocol):
    """A source and its matches: `counts` includes all of them, but only those whose row may change are kept."""

    @property
    def counts(self) -> MatchCounts:
        """The matches of each row group."""

    def stage(
        self, jobs: Sequence[RewriteJob], layout: Layout | None, staging: Staging
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        """Stage a replacement for each job, in their order, and with a layout files of the new rows.

        If no file was matched, jobs only drop row groups.
        """

    def audit(self, files: Sequence[ScanFile], audit: AuditSpec, staging: Staging) -> list[pa.Table | str]:
        """List every changed row in the columns of `audit.schema`, in any order: as tables, or as paths of files.

        `files` are the row groups that change or are removed.
        """
