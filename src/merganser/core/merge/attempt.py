"""Writers side by side: a change is staged without the lock, and fitted under the lock to what others committed.

What was staged is valid while the files that it read are as they were. Under the lock, only files that changed since
are looked at. If the change concerns none of their rows, neither old nor new ones, its staged files are committed as
they are: the outcome is that of a change that began after the other commits. Otherwise, or if anything failed while
files changed, it is staged again under the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa

from merganser.core.commit.commit import has_pending_commit
from merganser.core.commit.history import find_newest_id, has_undo_since
from merganser.core.commit.journal import list_staged
from merganser.core.dataset.snapshot import compare_files, find_changed_files
from merganser.core.merge.planner import has_source_keys
from merganser.core.merge.prepare import fit_source
from merganser.core.merge.scope import flag_files_in_scope, make_scope
from merganser.core.storage.staging import explain_staging_errors
from merganser.errors import ConcurrentWriteError, MerganserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from typing import Self

    from merganser.core.commit.commit import Session
    from merganser.core.commit.journal import Journal
    from merganser.core.dataset.target import Target
    from merganser.core.merge.prepare import FittedMerge
    from merganser.core.model.engine import ConformedSource, Engine, OpenedSource
    from merganser.core.model.options import Request
    from merganser.core.storage.staging import Staging


class StagedChange(Protocol):
    """Staged files and the journal that commits them; paths are relative to the root of the dataset."""

    @property
    def journal(self) -> Journal | None:
        """What the commit does; None if it changes nothing."""

    @property
    def touched_files(self) -> frozenset[str]:
        """The files that are replaced or removed."""

    @property
    def matched_files(self) -> frozenset[str]:
        """The files that have rows with a source key."""

    def rebase(self, before: Target, after: Target) -> Self:
        """Give counts and lists of files as they are after other commits, which changed none of these files."""


StagedT = TypeVar("StagedT", bound=StagedChange)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[StagedT]):
    """A staged change, and the snapshot that it was planned for.

    `is_settled`: it was flushed before the lock was taken, and the snapshot was compared with the dataset since.
    """

    fitted: FittedMerge
    staged: StagedT
    is_settled: bool = False


class Stager(Generic[StagedT]):
    """Stages a change from one source, again if need be; the source is read once."""

    def __init__(
        self,
        session: Session,
        engine: Engine,
        opened: OpenedSource,
        request: Request,
        staging: Staging,
        stage: Callable[[ConformedSource, FittedMerge], StagedT],
    ) -> None:
        self._session = session
        self._engine = engine
        self._opened = opened
        self._request = request
        self._staging = staging
        self._stage = stage
        self._conformed: tuple[FittedMerge, ConformedSource] | None = None
        self._newest = find_newest_id(session.location.store, session.control)

    def stage_early(self) -> Attempt[StagedT] | None:
        """Stage and flush without the lock; None if the change has to be staged under it."""
        if self._session.is_locked:
            return None
        try:
            fitted = self._fit()
        except (OSError, MerganserError, pa.ArrowException):
            # Files may have changed while they were read; under the lock, another attempt shows what is wrong.
            return None
        target = fitted.target
        # The first load decides on the schema, and a merge that changes it touches every file.
        if not target.rows or target.is_mixed or target.schema_before is not None:
            return None
        source = self._conform(fitted)
        try:
            staged = self._stage(source, fitted)
            self._flush(staged.journal)
        except BaseException as error:
            # Of a commit that is being published, some files are as they were and others as they will be.
            if isinstance(error, Exception) and (has_pending_commit(target.location) or self._find_changes(target)):
                return None
            raise
        return Attempt(fitted, staged)

    def settle(self, attempt: Attempt[StagedT] | None) -> Attempt[StagedT]:
        """Under the lock, fit what was staged early to the dataset as it is, or stage again."""
        changed = set[str]() if attempt is None else self._find_changes(attempt.fitted.target)
        if attempt is not None and not changed:
            return replace(attempt, is_settled=True)
        # What was read of a file before an undo may be of another one, whose identity it has again.
        fitted = self._fit(None if attempt is None or self._has_undo() else attempt.fitted.target)
        if attempt is not None and self._is_unaffected(attempt, fitted):
            staged = attempt.staged.rebase(attempt.fitted.target, fitted.target)
            return Attempt(fitted, staged, is_settled=True)
        return Attempt(fitted, self._stage(self._conform(fitted), fitted))

    def _fit(self, before: Target | None = None) -> FittedMerge:
        location = self._session.location
        return fit_source(self._engine, self._opened, location, self._request, self._staging, before=before)

    def _conform(self, fitted: FittedMerge) -> ConformedSource:
        if self._conformed is None:
            self._conformed = fitted, self._opened.conform(fitted.spec)
        before, source = self._conformed
        if before.spec != fitted.spec:
            raise ConcurrentWriteError(
                f"Another writer changed the schema of {self._session.location.display} while this change was being "
                "staged. Nothing was published; run again."
            )
        return source

    def _flush(self, journal: Journal | None) -> None:
        """Flush staged files before the commit does, which others wait for."""
        if journal is not None:
            with explain_staging_errors(self._staging):
                self._session.location.store.flush(list_staged(self._staging, journal))

    def _find_changes(self, target: Target) -> set[str]:
        """Find the files that changed since they were listed; after an undo, all files count as changed."""
        return {file.rel for file in target.files} if self._has_undo() else find_changed_files(target)

    def _has_undo(self) -> bool:
        """Check whether another writer undid a commit since this change began."""
        return has_undo_since(self._session.location.store, self._session.control, self._newest)

    def _is_unaffected(self, attempt: Attempt[StagedT], fitted: FittedMerge) -> bool:
        """Check that the change would be the same if it were staged for this snapshot."""
        staged, before, after = attempt.staged, attempt.fitted.target, fitted.target
        if self._has_undo() or not _is_same_kind(attempt.fitted, fitted):
            return False
        changed = compare_files(before.files, after.files)
        # A dataset that is left without rows keeps a file for its schema, and the next rows replace that.
        record = None if staged.journal is None else staged.journal.history
        empties = record is not None and not record.target_count_after
        if empties or not changed.isdisjoint(staged.matched_files | staged.touched_files):
            return False
        if any(_has_missing_rows(one, changed) for one in (attempt.fitted, fitted)):
            return False
        new = after.select(after.find_numbers(changed))
        if not new.files or not self._request.keys:
            return True
        check = partial(has_source_keys, fitted=replace(fitted, target=new))
        return not self._engine.run_merge(check, self._conform(fitted), new.size)


def _is_same_kind(before: FittedMerge, after: FittedMerge) -> bool:
    """Check that another snapshot has rows, and that the source fits it as it fits the one before."""
    return (
        after.target.rows > 0
        and not after.target.is_mixed
        and after.target.schema_before is None
        and after.spec == before.spec
        and after.schema.equals(before.schema, check_metadata=True)
        and after.target.partition_types == before.target.partition_types
    )


def _has_missing_rows(fitted: FittedMerge, changed: AbstractSet[str]) -> bool:
    """Check whether the merge may change rows of these files that the source lacks."""
    policy, options, target = fitted.spec.policy, fitted.request.options, fitted.target
    if options.rewrite_all:
        return True
    if not (policy.rule.deletes_missing or policy.missing is not None):
        return False
    scope = None if options.scope is None else make_scope(options.scope, target.partition_types)
    return any(flag_files_in_scope(scope, target.select(target.find_numbers(changed))))
