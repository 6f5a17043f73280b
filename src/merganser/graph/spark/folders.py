"""The folders of a Parquet graph: the dataset of each type, and the control files beside it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from merganser.core.commit.batches import find_committed_batch
from merganser.core.commit.commit import has_pending_commit, recover
from merganser.core.dataset.listing import list_files
from merganser.core.model.options import check_option
from merganser.core.model.partitions import make_folder_name, parse_hive_partition_path
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.location import Location, locate
from merganser.core.storage.lock import hold_lock
from merganser.errors import InvalidArgumentError, UnreadableFileError
from merganser.graph.spark.results import GraphMergeResult, MergeRecord, make_merge_result
from merganser.graph.sqlite.indexes import read_names
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa


# Beside the datasets, whose own control folders belong to their merges.
_CONTROL = ".merganser"
_MATCH = "match.json"


def list_types(path: str | os.PathLike[str], kind: str, filesystem: Any) -> list[str]:
    """List the types that have a dataset."""
    location = locate(path, filesystem)
    found = []
    for name in location.store.list_names(location.to_path(kind)):
        type_ = parse_hive_partition_path(f"{name}/").get("type")
        if type_ is not None and list_files(locate(location.to_url(f"{kind}/{name}"), filesystem)):
            found.append(type_)
    return sorted(found)


def _check_list(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise TypeError(f"{given!r} is not a list.")
    return given


@dataclass(frozen=True)
class Folder:
    """The dataset of one type of node or edge."""

    graph: str | os.PathLike[str]
    kind: str
    type: str
    filesystem: Any

    @cached_property
    def _root(self) -> Location:
        return locate(self.graph, self.filesystem)

    @property
    def path(self) -> str:
        """The path of the dataset."""
        return self._root.to_url(f"{self.kind}/{make_folder_name('type', self.type)}")

    @property
    def location(self) -> Location:
        """The location of the dataset."""
        return locate(self.path, self.filesystem)

    @property
    def _control_path(self) -> str:
        return self._root.to_path(f"{_CONTROL}/{self.kind}/{make_folder_name('type', self.type)}")

    @contextmanager
    def hold_lock(self, timeout: float) -> Iterator[Callable[[], None]]:
        """Exclude other merges of this type, from the lookup of records until they are merged.

        Yields a check that the lock is still held: on object stores, a process that stalls for long loses it.
        """
        with hold_lock(self._root.store, self._control_path, self.path, timeout) as check_hold:
            for folder in (self._control_path, f"{self._control_path}/batches"):
                self._root.store.remove_unfinished(folder)
            self.recover(timeout)
            yield check_hold

    def recover(self, timeout: float) -> None:
        """Complete a commit that a killed merge journaled but did not publish."""
        if has_pending_commit(self.location):
            recover(self.path, filesystem=self.filesystem, lock_timeout=timeout)

    def read_schema(self) -> pa.Schema | None:
        """Read the columns of the dataset; None if it has no files."""
        location = self.location
        files = list_files(location)
        if not files:
            return None
        return read_footer(location.store, location.to_path(files[0].rel), location.to_display(files[0].rel)).schema

    def read_match_names(self) -> list[str] | None:
        """Read the match properties of the existing records; None if there are none."""
        data = self._root.store.read_small(f"{self._control_path}/{_MATCH}")
        if data is None or not list_files(self.location):
            return None
        try:
            return sorted(read_names(_check_list(load_json(data)), "it"))
        except (ValueError, TypeError) as error:
            raise UnreadableFileError(
                f"{self._control_path}/{_MATCH} is damaged: {error} Write the list of match properties to it, as JSON."
            ) from error

    def check_match(self, names: Sequence[str], role: str = "match") -> None:
        """Refuse match properties other than those that the ids are made of."""
        before = self.read_match_names()
        if before is not None and before != sorted(names):
            raise InvalidArgumentError(
                f"{role} names {sorted(names)}, but the {self.kind} of type {self.type!r} were merged by {before}, "
                "from which their ids are derived. Match on these."
            )

    def write_match_names(self, names: Sequence[str]) -> None:
        """Record the match properties, before the first record is merged."""
        if self.read_match_names() is None:
            self._root.store.write_small(f"{self._control_path}/{_MATCH}", json.dumps(sorted(names)).encode())

    def find_batch(self, batch_id: str | None) -> GraphMergeResult | None:
        """Find the result of a batch that was merged before."""
        check_option("batch_id", batch_id)
        if batch_id is None:
            return None
        # The dataset's own record decides: it is part of the commit, and an undo removes it.
        done = find_committed_batch(self.path, batch_id, self.filesystem)
        data = self._root.store.read_small(self._make_batch_path(batch_id))
        if data is None or done is None:
            return None
        try:
            found = load_json(data)
            # Lists of ids are tuples in results.
            found["missing_ids"] = tuple(found.get("missing_ids", ()))
            return make_merge_result(done, MergeRecord(**found))
        except (ValueError, TypeError, KeyError) as error:
            raise UnreadableFileError(f"{self._make_batch_path(batch_id)} is damaged: {error}. Remove it.") from error

    def write_batch(self, batch_id: str | None, record: MergeRecord) -> None:
        """Record what the dataset's own record of a batch does not hold, before that record is written."""
        if batch_id is not None:
            self._root.store.make_folder(f"{self._control_path}/batches")
            self._root.store.write_small(self._make_batch_path(batch_id), json.dumps(asdict(record)).encode())

    def _make_batch_path(self, batch_id: str) -> str:
        # Any string may be an id, but not any string a file name.
        name = sha256(batch_id.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._control_path}/batches/{name}.json"
