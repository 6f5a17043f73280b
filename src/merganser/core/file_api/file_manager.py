"""Manual replacement of data files: staged beside the dataset, published by a journaled commit."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from merganser.core.commit.commit import open_session
from merganser.core.commit.journal import Journal, Move
from merganser.core.dataset.listing import is_data_file
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.location import list_paths, locate
from merganser.core.storage.staging import JOURNAL, MARKER, REPLACED_LINKS, explain_staging_errors, open_staging
from merganser.errors import DatasetMergeError, InvalidArgumentError, UnreadableFileError

if TYPE_CHECKING:
    import os
    from typing import Self

    from merganser.core.commit.commit import Session
    from merganser.core.storage.location import Paths
    from merganser.core.storage.staging import Staging


class IncrementalFileManager:
    """Stages files beside a dataset and replaces its data files with them, under a journal.

    The dataset is held exclusively from `create_staging_directory` to `cleanup_staging_files`, or to the end of a
    `with` block.

    >>> import tempfile, merganser, pyarrow as pa, pyarrow.parquet as pq
    >>> lake = tempfile.mkdtemp()
    >>> (old,) = merganser.write_dataset(pa.table({"id": [1]}), f"{lake}/t", engine="arrow").files
    >>> with IncrementalFileManager() as manager:
    ...     folder = manager.create_staging_directory(f"{lake}/t")
    ...     pq.write_table(pa.table({"id": [1, 2]}), f"{folder}/new.staged")
    ...     manager.atomic_replace_files([f"{folder}/new.staged"], [old.path])
    >>> pq.read_table(old.path).num_rows
    2
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._session: Session | None = None
        self._staging: Staging | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A failed cleanup must not hide the error; the next merge removes the folder.
        with contextlib.suppress(*([] if error is None else [OSError])):
            self.cleanup_staging_files()

    def create_staging_directory(
        self, base_path: str | os.PathLike[str], filesystem: Any = None, *, ignore_table_format: bool = False
    ) -> str:
        """Lock a dataset, create a hidden `.staging_<uuid>` folder for it, and return the folder's path.

        Args:
            base_path: The folder of the dataset, or its fsspec URL; it need not exist.
            filesystem: An fsspec or PyArrow filesystem that has the path.
            ignore_table_format: Treat a table of another format as plain Parquet files.
        """
        self.cleanup_staging_files()
        location = locate(base_path, filesystem, ignore_table_format=ignore_table_format)
        self._session = self._held.enter_context(open_session(location))
        self._staging = self._held.enter_context(open_staging(location, self._session.control))
        return self._staging.folder

    def atomic_replace_files(self, source_files: Paths, target_files: Paths, filesystem: Any = None) -> None:
        """Replace data files by staged files, or add staged files, atomically.

        May be called several times. Once the journal is written the replacement will happen: if the process is killed
        or the disk fails, `recover`, or the next merge, completes it.

        Args:
            source_files: Staged Parquet files, of any name, in the staging folder or in folders below it.
            target_files: For each source file, the data file that it replaces or a new path in the dataset.
            filesystem: The fsspec or PyArrow filesystem of the paths; default: that of the staging folder.
        """
        if self._session is None or self._staging is None:
            raise InvalidArgumentError("There is no staging folder. Call create_staging_directory first.")
        staging, store = self._staging, self._staging.location.store
        sources, targets = list_paths(source_files, "source_files"), list_paths(target_files, "target_files")
        if len(sources) != len(targets):
            message = (
                f"{len(sources)} source files cannot replace {len(targets)} target files. Give one for each source."
            )
            raise InvalidArgumentError(message)
        if filesystem is None and not store.is_local:
            filesystem = getattr(store, "filesystem", None)
        staged = [_resolve_staged(staging, path, goal, filesystem) for path, goal in zip(sources, targets, strict=True)]
        if store.read_small(staging.journal) is not None:
            raise DatasetMergeError(
                f"An earlier replacement in {staging.location.display} is not fully published. Call "
                "cleanup_staging_files(), then recover(path) to complete it."
            )
        goals = [_resolve_target(staging, path, goal, filesystem) for path, goal in zip(sources, targets, strict=True)]
        _check_pairs(staging, staged, goals)
        location = staging.location
        old = [store.get_identity(location.to_path(goal)) for goal in goals]
        moves = [Move(*one) for one in zip(staged, goals, old, strict=True)]
        if not moves:
            return
        with explain_staging_errors(staging):
            store.flush(sorted({f"{staging.folder}/{folder}" for rel in staged for folder in _list_parents(rel)}))
            # Left by an earlier call; each commit makes its own.
            store.remove(staging.marker)
            if store.is_local:
                store.remove_folder(f"{staging.folder}/{REPLACED_LINKS}")
            self._session.commit(staging, Journal(moves))

    def cleanup_staging_files(self) -> None:
        """Remove the staging folder, unless `recover` has to complete its replacement, and unlock the dataset."""
        with self._held:
            staging, self._session, self._staging = self._staging, None, None
            if staging is not None and staging.location.store.read_small(staging.journal) is None:
                staging.remove()


def _list_parents(rel: str) -> list[str]:
    names = rel.split("/")[:-1]
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _resolve_staged(staging: Staging, path: str, goal: str, filesystem: Any) -> str:
    found = locate(path, filesystem)
    rel = found.root.removeprefix(f"{staging.folder}/")
    if rel == found.root or not staging.location.store.can_reach(found.store):
        message = f"Cannot move {path} onto {goal}: it must be staged. Write it below {staging.folder}."
        raise InvalidArgumentError(message)
    if rel.partition("/")[0] in {JOURNAL, REPLACED_LINKS, MARKER}:
        message = f"Cannot move {path} onto {goal}: commits reserve that name. Rename the staged file."
        raise InvalidArgumentError(message)
    if found.store.get_path_type(found.root) != "file":
        raise UnreadableFileError(f"The staged file {path} does not exist. Write it before replacing {goal} with it.")
    read_footer(found.store, found.root, path)
    return rel


def _resolve_target(staging: Staging, path: str, goal: str, filesystem: Any) -> str:
    """Return the path of a data file relative to the dataset; refuse paths that cannot be one."""
    location = staging.location
    rel = goal.removeprefix(f"{location.url}/")
    if rel == goal or {"", ".", ".."} & {*rel.split("/")}:
        # A linked file keeps its link, and the file it points to is replaced; linked folders are resolved.
        folder, _, name = goal.rpartition("/")
        found = locate(folder or ("/" if goal.startswith("/") else "."), filesystem)
        inside = location.store.can_reach(found.store) and f"{found.root}/{name}".startswith(f"{location.root}/")
        rel = f"{found.root}/{name}"[len(location.root) + 1 :] if inside else ""
    if not is_data_file(rel):
        raise InvalidArgumentError(
            f"Cannot move {path} onto {goal}: it is not the path of a data file in {location.display}. Give one inside "
            "the dataset that ends in .parquet and is not hidden."
        )
    return rel


def _check_pairs(staging: Staging, staged: list[str], goals: list[str]) -> None:
    """Refuse duplicate files, and paths that are a file and a folder."""
    location = staging.location
    # Two paths may lead to one file through a link.
    real = [locate(location.to_path(rel), getattr(location.store, "filesystem", None)).root for rel in goals]
    targets = [location.to_display(rel) for rel in goals]
    for what, found, names in (("target", real, targets), ("staged file", staged, staged)):
        counts = Counter(found)
        repeated = [name for name, one in zip(names, found, strict=True) if counts[one] > 1]
        if repeated:
            message = f"The {what} {repeated[-1]} is given {len(repeated)} times. Give each {what} once."
            raise InvalidArgumentError(message)
    parents = {folder for rel in goals for folder in _list_parents(rel)}
    types = {rel: location.store.get_path_type(location.to_path(rel)) for rel in (*goals, *sorted(parents))}
    blocked = [rel for rel in goals if rel in parents or types[rel] == "directory"]
    blocked += [rel for rel in sorted(parents) if types[rel] == "file"]
    if blocked:
        message = f"{location.to_display(blocked[0])} cannot be a file and a folder. Give another target."
        raise InvalidArgumentError(message)
