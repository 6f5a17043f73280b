"""Snapshots: folders of plain Parquet that no commit changes, made of hard links or, where there are none, of copies.

A snapshot needs no lock: it is made, and valid if nothing was published meanwhile. Otherwise it is made again under the
lock, between two commits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from merganser.core.columnar.threads import map_in_threads
from merganser.core.commit.commit import Session, has_pending_commit
from merganser.core.commit.history import find_newest_id
from merganser.core.commit.states import State, go_back
from merganser.core.dataset.listing import list_files
from merganser.core.dataset.nesting import check_above
from merganser.core.dataset.snapshot import compare_files, make_no_files_error
from merganser.core.dataset.statistics_cache import CACHE_NAME
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.local import DANGLING, HiddenFiles, LocalStore
from merganser.core.storage.location import Location, locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.core.storage.snapshot_folders import (
    is_in_snapshot,
    keep_for,
    open_snapshot_folder,
    remove_ended_snapshots,
    remove_if_empty,
    remove_snapshot,
)
from merganser.core.storage.staging import (
    PARTITION_RECORD,
    choose_control_folder,
    explain_unwritable,
    name_control_folder,
)
from merganser.errors import (
    ConcurrentWriteError,
    LockTimeoutError,
    MerganserError,
    NotRetainedError,
    StagingError,
    TargetPathError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.commit.states import AsOf
    from merganser.core.storage.claims import Claim
    from merganser.core.storage.store import Store

    # Chooses files of the present state and of the one to snapshot.
    Chooser: TypeAlias = Callable[[State, State], State]

# How long a snapshot is kept on an object store, which does not show whether its process lives.
KEEP_REMOTE = timedelta(hours=1)
# How long to wait for the lock before the next attempt without it: its holder may stage files, and publish none.
_LOCK_SECONDS = 1.0


class Snapshot:
    """The folder of a snapshot, removed by `remove`, or when this object is collected or the process ends.

    `location` reads the folder; messages call it by the name of its dataset.
    """

    def __init__(self, location: Location, folder: str, claim: Claim | None) -> None:
        self.location = location
        self._folder = folder
        self._claim = claim
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _abandon, location.store.is_local, folder, claim, self._process)

    def remove(self) -> None:
        """Remove the folder, unless that was done, or is for the process that made it."""
        if self._finalizer.detach() is not None and os.getpid() == self._process:
            remove_snapshot(self.location.store, self._folder)
            self._release()

    def leave(self) -> None:
        """Leave the folder to those who remove it when its time is over."""
        if self._finalizer.detach() is not None:
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()


def _abandon(is_local: bool, folder: str, claim: Claim | None, process: int) -> None:  # noqa: FBT001  of `finalize`
    """Remove the folder of a snapshot that nobody removed; the next writer removes what is left."""
    # A forked process has the object, but the snapshot is its parent's.
    if os.getpid() != process:
        return
    if is_local:
        # The collector may call this while any lock is held, so no thread pool and no client of a store will do.
        shutil.rmtree(folder, ignore_errors=True)
        remove_if_empty(os.path.dirname(folder))
    if claim is not None:
        claim.release()


@contextlib.contextmanager
def snapshot(
    path: str | os.PathLike[str],
    *,
    as_of: AsOf | None = None,
    filesystem: Any = None,
    lock_timeout: float = LOCK_TIMEOUT,
    ignore_table_format: bool = False,
) -> Iterator[str]:
    """Open a folder of plain Parquet files with one state of a dataset, which no commit changes.

    Any reader of Parquet can read it, until the block ends. Its files are hard links, which take no space; where the
    disk has none, and on object stores, they are copies. There, a snapshot ends after an hour.

    Args:
        path: Folder or URL of the dataset.
        as_of: The state after a commit, given by its id, by the number of commits to go back, or by a time; default
            now.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        lock_timeout: Seconds to wait for another writer.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, pyarrow.parquet as pq, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> result = merganser.merge(pa.table({"id": [1, 2]}), orders, key_columns="id")
    >>> with snapshot(orders) as folder:
    ...     result = merganser.merge(pa.table({"id": [3]}), orders, key_columns="id")
    ...     pq.read_table(folder).num_rows
    2
    """
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    made = make_snapshot(location, as_of, lock_timeout)
    try:
        yield format_folder(made.location)
    finally:
        made.remove()


def format_folder(location: Location) -> str:
    """Return the path or URL under which other programs find a folder."""
    store = location.store
    return location.root if store.is_local else str(cast("Any", store).filesystem.unstrip_protocol(location.root))


def keep_snapshot(location: Location, as_of: AsOf | None, timeout: float, keep: timedelta) -> str:
    """Make a snapshot that stays for a time after this process has ended; returns its folder."""
    made = make_snapshot(location, as_of, timeout, keep)
    made.leave()
    return format_folder(made.location)


def make_snapshot(
    location: Location,
    as_of: AsOf | None = None,
    timeout: float = LOCK_TIMEOUT,
    keep: timedelta | None = None,
    choose: Chooser | None = None,
) -> Snapshot:
    """Make a snapshot of links where possible, else of copies; of files that are chosen from both states, if so."""
    return _make(_Plan(location, choose_control_folder(location), as_of, timeout, choose=choose), keep)


def pin_dataset(location: Location, as_of: AsOf | None) -> Snapshot | None:
    """Make a snapshot for a reader in this process; None where only copies could be made, unless `as_of` needs them."""
    store, control = location.store, choose_control_folder(location)
    if as_of is not None:
        return _make(_Plan(location, control, as_of, LOCK_TIMEOUT, is_hidden=True), None)
    # Without a control folder, nothing was ever committed; reading creates none.
    if not store.is_local or _is_inside(location, control) or store.get_path_type(control) is None:
        return None
    if is_in_snapshot(store, location.root):
        return None
    try:
        return _make(_Plan(location, control, None, LOCK_TIMEOUT, only_links=True, is_hidden=True), None)
    except (OSError, TargetPathError) as error:
        if isinstance(error, MerganserError) and not isinstance(error, StagingError | TargetPathError):
            raise
        # There are no files, this user may not write there, or the disk has no hard links.
        return None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which state of a dataset to snapshot, how long to wait for the lock, and whether copies will do."""

    location: Location
    control: str
    as_of: AsOf | None
    timeout: float
    only_links: bool = False
    is_hidden: bool = False  # other programs do not find the files; on disks only
    choose: Chooser | None = None


def _make(plan: _Plan, keep: timedelta | None) -> Snapshot:
    location, store = plan.location, plan.location.store
    check_above(location, refuse_nested=False)
    name = location.root.rpartition("/")[2]
    if _is_inside(location, plan.control):
        # Readers of the dataset would read files in the control folder too.
        above, claim = tempfile.mkdtemp(prefix="merganser-"), None
        made_in: Store = LocalStore()
    else:
        with explain_unwritable(store, location.display, plan.control):
            remove_ended_snapshots(store, plan.control)
            claim = open_snapshot_folder(store, plan.control, keep or KEEP_REMOTE)
        above, made_in = claim.folder, store
    if plan.is_hidden and made_in.is_local:
        # Another user of a shared dataset may have to remove it.
        made_in = HiddenFiles(None if claim is None else location.root)
    made = Snapshot(replace(location, store=made_in, root=f"{above}/{name}"), above, claim)
    try:
        with explain_unwritable(store, location.display, plan.control):
            _fill(plan, made.location)
            if keep is not None and claim is not None and store.is_local:
                # A power failure must not leave a part of the files.
                store.flush([folder for folder, _, _ in os.walk(above)])
                keep_for(store, above, keep)
    except BaseException:
        made.remove()
        raise
    return made


def _is_inside(location: Location, control: str) -> bool:
    return control.startswith(f"{location.root}/")


def _fill(plan: _Plan, made: Location) -> None:
    """Fill the folder of a snapshot, without the lock if nothing is published meanwhile."""
    deadline = time.monotonic() + plan.timeout
    while not _try_to_fill(plan, made):
        left = deadline - time.monotonic()
        waited = plan.timeout - min(max(left, 0), _LOCK_SECONDS)
        session = Session(
            location=plan.location, control=plan.control, started=deadline, timeout=plan.timeout, waited=waited
        )
        try:
            with session.lock():
                if _try_to_fill(plan, made):
                    return
            raise ConcurrentWriteError(
                f"{plan.location.display} is being changed by another program, which does not wait for locks. Make the "
                "snapshot again when it has finished."
            )
        except LockTimeoutError:
            if left <= _LOCK_SECONDS:
                raise


def _try_to_fill(plan: _Plan, made: Location) -> bool:
    """Fill the folder of a snapshot; returns whether it holds one state."""
    try:
        return _fill_once(plan, made)
    except FileNotFoundError:
        # A file or folder vanished between two steps, of the listing for example.
        return False


def _fill_once(plan: _Plan, made: Location) -> bool:
    location, store, control = plan.location, plan.location.store, plan.control
    # A commit writes its journal first and its record last. So this order shows it, whenever it began or ended.
    newest = find_newest_id(store, control)
    if has_pending_commit(location):
        return False
    files = list_files(location)
    for file in files:
        if file.identity == DANGLING:
            # This fails with the error of every reader.
            read_footer(store, location.to_path(file.rel), location.to_display(file.rel))
    present = State({file.rel: location.to_path(file.rel) for file in files})
    made.store.remove_folder(made.root)
    try:
        state = go_back(location, control, present, plan.as_of)
        if plan.choose is not None:
            state = plan.choose(present, state)
        elif not state.paths:
            raise make_no_files_error(location)
        _fill_folder(plan, state, made)
    except NotRetainedError:
        if find_newest_id(store, control) == newest:
            raise
        return False
    if has_pending_commit(location) or find_newest_id(store, control) != newest:
        return False
    return not compare_files(files, list_files(location))


def _fill_folder(plan: _Plan, state: State, made: Location) -> None:
    """Link or copy the files of a state."""
    for folder in sorted({made.root, *(f"{made.root}/{rel}".rpartition("/")[0] for rel in state.paths)}):
        made.store.make_folder(folder)
    copy = _choose_copy(plan, made)
    steps = [(path, made.store.to_stored_path(f"{made.root}/{rel}")) for rel, path in state.paths.items()]
    if plan.location.store.is_local:
        for path, link in steps:
            copy(path, link)
    else:
        map_in_threads(lambda step: copy(*step), steps)
    _fill_control(plan, state, made)


def _choose_copy(plan: _Plan, made: Location) -> Callable[[str, str], None]:
    store = plan.location.store

    def copy_apart(path: str, copy: str) -> None:
        with store.open_reader(path) as source, made.store.create(copy) as target:
            shutil.copyfileobj(source, target)

    def link(path: str, link: str) -> None:
        if not store.link(path, link):
            if store.get_path_type(path) is None:
                raise FileNotFoundError(path)
            raise OSError(errno.EXDEV, "no hard link can be made", path)

    if _is_inside(plan.location, plan.control):
        return copy_apart
    return link if plan.only_links else store.duplicate


def _fill_control(plan: _Plan, state: State, made: Location) -> None:
    """Give a snapshot the types of its partition columns and, beside links, the statistics of their files."""
    store, above = plan.location.store, made.root.rpartition("/")[0]
    control = f"{above}/{name_control_folder(made.root.rpartition('/')[2])}"
    made.store.make_folder(control)
    if state.partitions:
        made.store.write_small(f"{control}/{PARTITION_RECORD}", json.dumps(state.partitions, indent=1).encode())
    names = [PARTITION_RECORD] * (state.partitions is None) + [CACHE_NAME] * store.is_local
    for name in names:
        if store.get_path_type(f"{plan.control}/{name}") is not None:
            _choose_copy(plan, made)(f"{plan.control}/{name}", f"{control}/{name}")
