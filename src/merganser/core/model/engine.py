"""The engine protocol: row work, and nothing else.

An engine never lists, publishes or deletes a data file, never decides a policy, never validates. It is told which
files to look at and answers with facts and counts; rows stay inside it. `GivenT` is a source as an engine takes it,
`SourceT` whatever the engine keeps its rows in, `MatchesT` whatever it keeps its matches in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.columnar.threads import ItemT, ResultT
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

GivenT = TypeVar("GivenT")
SourceT = TypeVar("SourceT")
MatchesT = TypeVar("MatchesT")
SAMPLE_SIZE = 5
ACTION_COLUMN = "merge_action"
OLD_ROW_COLUMN = "merge_old"
UNKNOWN_PARTITION = -1
OTHER_PARTITION = -2


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What validation and planning need to know of the source; its size follows partitions and row groups, not rows.

    `candidates` says of each row of the bounds whether its row group might hold a source key; where a key is NULL or
    NaN, it says nothing. Of rows that delete, of which there are `delete_rows`, only keys count: their other values
    make no partition, and no column with NULLs.
    """

    rows: int
    delete_rows: int
    null_keys: Mapping[str, int]
    duplicate_keys: int
    duplicate_sample: pa.Table
    columns_with_nulls: frozenset[str]
    partitions: pa.Table
    candidates: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScanFile:
    """A file whose key columns are to be read, in some of its row groups.

    `constants` are the one value of each key or partition column that the path tells, or that the file does not have.
    `partition` is the row of `SourceFacts.partitions` that equals the file's partition, ELSEWHERE if none does, UNTOLD
    if the path tells none. `spans` are the first row of each row group in the file and the one after its last;
    `has_all_groups` says that the file has no other row groups, `has_bounds` that statistics which we believe tell the
    bounds of all keys to be read, `deletes_missing` that rows without a source row are deleted. `footer` saves reading
    it again.
    """

    number: int
    path: str
    groups: Sequence[int]
    constants: Mapping[str, pa.Array]
    partition: int
    spans: Sequence[tuple[int, int]] = ()
    has_all_groups: bool = True
    has_bounds: bool = True
    deletes_missing: bool = False
    footer: Footer | None = None


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """How many target rows match in each row group that has any, one entry each, and how many source rows match none.

    Of `rows` that match, `replaced` get new values there, and `removed` leave: they are deleted, or they move. `moved`
    counts those that move, being in files that tell their partition, whose source row belongs to another;
    `moved_sample` shows up to SAMPLE of their keys. Source rows that delete, or that a rule does not insert, are no
    `new_rows`.
    """

    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    replaced: npt.NDArray[np.int64]
    removed: npt.NDArray[np.int64]
    new_rows: int
    moved: int
    moved_sample: pa.Table


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """One file to change: matched rows of `groups` have an action, other rows there stay or not, `dropped_groups` go.

    `columns` are those that replaced rows take from the source. `footer` saves reading it again.
    """

    number: int
    path: str
    columns: frozenset[str]
    groups: Sequence[int]
    dropped_groups: Sequence[int]
    keeps_missing: bool
    footer: Footer | None = None


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A staged replacement: how many rows have new values there, and how many are there no more."""

    staged_path: str
    replaced: int
    removed: int


@dataclass(frozen=True, slots=True)
class AppendedFile:
    """A staged new file, and which row of `SourceFacts.partitions` its rows belong to (0 if unpartitioned)."""

    staged_path: str
    partition: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How new files are written: columns and key-value metadata like the target's, and the caller's wishes.

    The schema is that of the files, so without partition columns, and in plain types; rows take `columns` of it from
    the source, and are NULL in the others. `bloom_filter_columns` are keys, which have a bloom filter.
    """

    schema: pa.Schema
    columns: frozenset[str]
    key_values: Mapping[bytes, bytes]
    writer_options: Mapping[str, Any]
    compression: str | Mapping[str, str]
    max_rows_per_file: int
    row_group_size: int
    bloom_filter_columns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AuditSpec:
    """What an audit lists of every row changed: these columns as they are afterwards, of a deleted row its keys.

    `insert_columns` are the columns that new rows take from the source. With `has_all_groups`, the row as it was comes
    in a struct beside them. With `is_stored`, rows are staged in files.
    """

    columns: Sequence[str]
    keys: Sequence[str]
    insert_columns: frozenset[str]
    has_old_rows: bool
    is_stored: bool
    schema: pa.Schema


class Engine(Protocol[GivenT, SourceT, MatchesT]):
    """The verbs, in the order the driver calls them.

    After `conform` a handle's columns are nullable and in the plain types of `model.schema.plain`. Keys are compared in
    the form of `model.keys.canonical`, which an engine that matches in its own way must equal: strings as bytes,
    instants as integers of the target's unit, decimals at the target's scale, no -0.0.
    """

    name: str

    def open(self, source: Any) -> GivenT:
        """Take a source, to be read once."""

    def read_schema(self, given: GivenT) -> pa.Schema:
        """Tell the source's columns and types."""

    def is_ordered(self, given: GivenT) -> bool:
        """Say whether the source has a first and a last row."""

    def run_tasks(
        self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, large: bool = False
    ) -> list[ResultT]:
        """Run a task that reads a file for each of many files, in order, wherever the engine has room for it.

        A small task reads a footer, a large one whole columns.
        """

    def conform(self, given: GivenT, schema: pa.Schema, staging: Staging | None) -> SourceT:
        """Cast the source to the target's columns without loss, with the errors of `model.schema.conform`.

        An engine may keep its rows in the staging folder; there is none where nothing may be written.
        """

    def deduplicate(self, handle: SourceT, keys: Sequence[str], order_by: Sequence[str]) -> SourceT:
        """Keep the one row of each key that counts (T3)."""

    def collect_facts(
        self,
        handle: SourceT,
        keys: Sequence[str],
        partition_columns: Sequence[str],
        bounds: pa.Table | None,
        policy: MergePolicy,
    ) -> SourceFacts:
        """Count rows, NULL and repeated keys, list partition values, and test `bounds` (see `Target.bounds`)."""

    def hash_keys(self, handle: SourceT, keys: Sequence[str]) -> Hashes:
        """Hash the canonical keys of a source of few rows, none of them NULL, in any order."""

    def match(
        self,
        handle: SourceT,
        keys: Sequence[str],
        store: Store,
        files: Sequence[ScanFile],
        partitions: pa.Table,
        policy: MergePolicy,
    ) -> tuple[MatchesT, MatchCounts]:
        """Find every target row whose key is a source key, and what happens to it; there is at least one file.

        Key columns are read, and only if the terms look at values these too. The counts are of all matches; the matches
        themselves are those that anything could happen to. `partitions` is `SourceFacts.partitions`; a source row's
        number there says whether its match moves.
        """

    def stage(
        self,
        handle: SourceT,
        matches: MatchesT | None,
        jobs: Sequence[RewriteJob],
        layout: Layout | None,
        partitions: pa.Table,
        staging: Staging,
        policy: MergePolicy,
    ) -> tuple[list[RewrittenFile], list[AppendedFile]]:
        """Stage a replacement for each file, in the order of the jobs, and with a layout files of the new rows.

        Without matches, jobs only drop row groups, and every row that does not delete is new.
        """

    def audit(
        self,
        handle: SourceT,
        matches: MatchesT | None,
        files: Sequence[ScanFile],
        audit: AuditSpec,
        staging: Staging,
        policy: MergePolicy,
    ) -> list[pa.Table | str]:
        """List every row changed in the columns of `audit.schema`, in any order: as tables, or as paths of files.

        `files` are the row groups that change, or that go; without matches, every source row that does not delete is
        an insert, or none is.
        """
