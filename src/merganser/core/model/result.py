"""The result of a merge: counts that add up, and every file with its operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from merganser.core.model.strategy import find_clauses
from merganser.display import FilesDisplayMixin
from merganser.errors import CountMismatchError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from merganser.core.model.clauses import ClauseAction
    from merganser.core.model.strategy import MergeStrategy

FileOperation = Literal["rewritten", "inserted", "preserved"]


@dataclass(frozen=True, slots=True)
class MergeFileMetadata:
    """One data file after a merge or write, as its footer describes it."""

    path: str
    row_count: int
    operation: FileOperation
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MergeResult(FilesDisplayMixin):
    """The outcome of a merge; `target_count_after` is always `target_count_before + inserted - deleted`.

    `skipped` are matched rows that stayed as they were, because the source's were late or equal. `deduplicated` are
    source rows that were left out for a later one with the same key.
    `replayed` says that nothing was done, because a batch of this `batch_id` was committed before: the outcome is that
    batch's, without the files it left alone and without its audit. `clauses` are those of a MERGE in clauses, whose
    `strategy` is "merge". `engine` is the one that did the work, also where the caller left the choice to merganser.
    """

    file_class = MergeFileMetadata

    strategy: str
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    files: list[MergeFileMetadata]
    rewritten_files: list[str]
    inserted_files: list[str]
    preserved_files: list[str]
    removed_files: list[str] = field(default_factory=list)
    audit: pa.Table | None = None
    batch_id: str | None = None
    replayed: bool = False
    skipped: int = 0
    audit_files: list[str] = field(default_factory=list)
    deduplicated: int = 0
    clauses: list[str] = field(default_factory=list)
    engine: str | None = None

    @property
    def stats(self) -> MergeStats:
        """The counts alone."""
        return MergeStats(
            inserted=self.inserted, updated=self.updated, deleted=self.deleted, total=self.target_count_after
        )


@dataclass(frozen=True, slots=True, repr=False)
class WriteResult(FilesDisplayMixin):
    """The outcome of `write_dataset`: the files it wrote, and those an overwrite removed."""

    file_class = MergeFileMetadata

    mode: str
    row_count: int
    files: list[MergeFileMetadata]
    removed_files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompactResult(FilesDisplayMixin):
    """The result of `compact`: the files that it removed, and the files that hold their rows; no row changes.

    In a dry run, `removed_files` are the files that would be compacted, and `files` those that would be left alone.
    `file_count_after` and `size_after` are None, because they are known only after new files are written.
    """

    file_class = MergeFileMetadata

    row_count: int
    file_count_before: int
    file_count_after: int | None
    size_before: int
    size_after: int | None
    files: list[MergeFileMetadata]
    inserted_files: list[str]
    removed_files: list[str]
    preserved_files: list[str]
    sort_by: list[str] = field(default_factory=list)
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DedupeResult(FilesDisplayMixin):
    """The outcome of `dedupe`: `duplicate_keys` stood in several rows, of which `deleted` rows are gone.

    A dry run counts the same; its `files` are those that would be left alone.
    """

    file_class = MergeFileMetadata

    target_count_before: int
    target_count_after: int
    duplicate_keys: int
    deleted: int
    files: list[MergeFileMetadata]
    rewritten_files: list[str]
    removed_files: list[str]
    preserved_files: list[str]
    key_columns: list[str]
    order_by: list[str] = field(default_factory=list)
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredFile:
    """One data file of an altered dataset: stored bytes that are copied, and of columns that are encoded anew."""

    path: str
    row_count: int
    operation: FileOperation
    bytes_copied: int
    bytes_encoded: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AlterResult(FilesDisplayMixin):
    """The result of `alter`: what changed in the schema, and in which files; with `is_plan`, what would change."""

    file_class = AlteredFile

    path: str
    changes: list[str]
    schema_before: dict[str, str]
    schema_after: dict[str, str]
    row_count: int
    files: list[AlteredFile]
    rewritten_files: list[str]
    preserved_files: list[str]
    bytes_copied: int
    bytes_encoded: int
    is_plan: bool = False


class MergeStats(dict[str, int]):
    """Merge counts as a dict with attributes: inserted, updated, deleted, and total, the rows after.

    >>> stats = MergeStats(inserted=1, updated=2, deleted=0, total=10)
    >>> stats["updated"], stats.total
    (2, 10)
    """

    inserted: int
    updated: int
    deleted: int
    total: int

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def compute_merge_stats(
    *,
    strategy: MergeStrategy,
    target_before: int,
    target_after: int,
    inserted_rows: int,
    updated_rows: int,
    deleted_rows: int,
    by_operation: bool = False,
) -> MergeStats:
    """Put the counts of a merge together; numbers that cannot be true are refused.

    Args:
        strategy: The strategy of the merge, which limits what it can have counted.
        target_before: Rows of the target before the merge.
        target_after: Rows of the target after it.
        inserted_rows: Rows that were added.
        updated_rows: Rows that were replaced.
        deleted_rows: Rows that were removed.
        by_operation: Whether source rows may delete, by an operation column.

    >>> compute_merge_stats(strategy="upsert", target_before=2, target_after=3, inserted_rows=1, updated_rows=1,
    ...                     deleted_rows=0)
    {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
    """
    counts = {"inserted": inserted_rows, "updated": updated_rows, "deleted": deleted_rows, "total": target_after}
    actions = {clause.action for clause in find_clauses(strategy)}
    return check_counts(counts, target_before, {*actions, "delete"} if by_operation else actions, strategy)


def check_counts(
    counts: Mapping[str, int], target_before: int, actions: Collection[ClauseAction], strategy: str
) -> MergeStats:
    """Refuse counts that cannot be true of a merge with these actions."""
    inserted_rows, updated_rows, deleted_rows, target_after = counts.values()
    for name, count in {**counts, "target_before": target_before}.items():
        if not isinstance(count, Integral):
            raise InvalidArgumentError(f"The count of {name} must be an integer, not {count!r}.")
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    if min(*counts.values(), target_before) < 0:
        reason = "a count is negative"
    elif target_after != target_before + inserted_rows - deleted_rows:
        reason = f"{target_before} rows before + inserted - deleted does not equal the rows after"
    elif updated_rows + deleted_rows > target_before:
        reason = f"more rows changed than the {target_before} that existed"
    elif (inserted_rows and "insert" not in actions) or (updated_rows and "update" not in actions):
        reason = f"strategy {strategy!r} does not allow these inserts or updates"
    elif deleted_rows and "delete" not in actions:
        reason = f"strategy {strategy!r} deletes nothing"
    else:
        return MergeStats(counts)
    message = f"The counts do not add up ({listed}): {reason}. Nothing was published; please report this."
    raise CountMismatchError(message)
