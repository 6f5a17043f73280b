"""The folders of a Parquet graph: where a type's dataset is, and what is kept beside it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from merganser.core.commit.batches import find_committed_batch
from merganser.core.commit.commit import has_pending_commit, recover
from merganser.core.dataset.listing import list_files
from merganser.core.model.options import check_option
from merganser.core.model.partitions import make_folder_name, parse_hive_partition_path
from merganser.core.parquet.footer import read_footer
from merganser.core.storage.location import locate
from merganser.core.storage.lock import hold_lock
from merganser.errors import InvalidArgumentError, UnreadableFileError
from merganser.graph.spark.results import make_merge_result
from merganser.graph.sqlite.indexes import read_names
from merganser.safe_json import load_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Sequence

    import pyarrow as pa

    from merganser.core.storage.location import Location
    from merganser.graph.spark.results import GraphMergeResult

# Hidden from readers of Parquet; beside the datasets, whose own control folders belong to their merges.
_CONTROL = ".merganser"
_MATCH = "match.json"


def list_types(path: str | os.PathLike[str], kind: str, filesystem: Any) -> list[str]:
    """Name the types that have a dataset."""
    location = locate(path, filesystem)
    found = []
    for name in location.store.list_names(location.to_path(kind)):
        type_ = parse_hive_partition_path(f"{name}/").get("type")
        if type_ is not None and list_files(locate(location.to_url(f"{kind}/{name}"), filesystem)):
            found.append(type_)
    return sorted(found)


def _check_list(given: Any) -> list[Any]:
    if not isinstance(given, list):
        message = f"{given!r} is no list."
        raise TypeError(message)
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
        """The place of the dataset."""
        return locate(self.path, self.filesystem)

    @property
    def _control_path(self) -> str:
        return self._root.to_path(f"{_CONTROL}/{self.kind}/{make_folder_name('type', self.type)}")

    @contextmanager
    def hold_lock(self, timeout: float) -> Iterator[Callable[[], None]]:
        """Keep other merges of this type out, from looking for records until they are merged.

        Yields a check that they still are: on object stores, who is stalled for long loses the hold.
        """
        with hold_lock(self._root.store, self._control_path, self.path, timeout) as check_hold:
            for folder in (self._control_path, f"{self._control_path}/batches"):
                self._root.store.remove_unfinished(folder)
            self.recover(timeout)
            yield check_hold

    def recover(self, timeout: float) -> None:
        """Finish what a killed merge has decided and not published."""
        if has_pending_commit(self.location):
            recover(self.path, filesystem=self.filesystem, lock_timeout=timeout)

    def read_schema(self) -> pa.Schema | None:
        """Give the columns of the dataset; None while it has no files."""
        location = self.location
        files = list_files(location)
        if not files:
            return None
        return read_footer(location.store, location.to_path(files[0].rel), location.to_display(files[0].rel)).schema

    def read_match_names(self) -> list[str] | None:
        """Name the match properties of the records that are there; None while there are none."""
        data = self._root.store.read_small(f"{self._control_path}/{_MATCH}")
        if data is None or not list_files(self.location):
            return None
        try:
            return sorted(read_names(_check_list(load_json(data)), "it"))
        except (ValueError, TypeError) as error:
            message = (
                f"{self._control_path}/{_MATCH} is damaged: {error} Write the list of match properties to it, as JSON."
            )
            raise UnreadableFileError(message) from error

    def check_match(self, names: Sequence[str], role: str = "match") -> None:
        """Refuse to look for records by other properties than those that their ids are made of."""
        before = self.read_match_names()
        if before is not None and before != sorted(names):
            message = (
                f"{role} names {sorted(names)}, but the {self.kind} of type {self.type!r} were merged by {before}, of "
                "which their ids are made. Match on these."
            )
            raise InvalidArgumentError(message)

    def write_match_names(self, names: Sequence[str]) -> None:
        """Remember the match properties, before the first record is there."""
        if self.read_match_names() is None:
            self._root.store.write_small(f"{self._control_path}/{_MATCH}", json.dumps(sorted(names)).encode())

    def find_batch(self, batch_id: str | None) -> GraphMergeResult | None:
        """Give the result of a batch that was merged before."""
        check_option("batch_id", batch_id)
        if batch_id is None:
            return None
        # The dataset's own record decides: it comes with the commit, and an undo forgets it.
        done = find_committed_batch(self.path, batch_id, self.filesystem)
        data = self._root.store.read_small(self._make_batch_path(batch_id))
        if data is None or done is None:
            return None
        try:
            return make_merge_result(done, **load_json(data))
        except (ValueError, TypeError) as error:
            message = f"{self._make_batch_path(batch_id)} is damaged: {error}. Remove it."
            raise UnreadableFileError(message) from error

    def write_batch(self, batch_id: str | None, *, rows: int, skipped: int, widened: Collection[str]) -> None:
        """Keep what the dataset's own record of a batch does not tell, before that record is there."""
        if batch_id is not None:
            kept = {"rows": rows, "skipped": skipped, "widened": sorted(widened)}
            self._root.store.make_folder(f"{self._control_path}/batches")
            self._root.store.write_small(self._make_batch_path(batch_id), json.dumps(kept).encode())

    def _make_batch_path(self, batch_id: str) -> str:
        # Any text may be an id, but not any text a file's name.
        name = sha256(batch_id.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._control_path}/batches/{name}.json"
