"""Faults at any single step that changes the disk, and the operations that the crash tests interrupt.

Everything that changes a disk goes through a `Store`, so a step is one call of a mutating method of a store, or one
write or close of a stream that `create` gave (of many writes to one stream, every fifth).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import merganser
from merganser.core.storage.lease import BEAT, LEASE, find_newest
from merganser.core.storage.local import LocalStore
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.staging import BESIDE, INSIDE, JOURNAL, STAGING_PREFIX, choose_control_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from merganser.core.storage.store import Store

Mode = Literal["before", "after", "dead"]
MUTATING = (
    "make_folder",
    "create",
    "flush",
    "replace",
    "link",
    "duplicate",
    "remove",
    "remove_folder",
    "write_small",
    "create_exclusively",
    "keep_mode",
)
OTHER_DISK = "another disk"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class InjectedError(OSError):
    """The fault itself, so that a test can distinguish it from an error of the code under test."""


@dataclass
class Fault:
    """Fails step number `at`: before it is done, after it is done, or before it and at every later step (`dead`).

    `exits` ends the process instead, without any cleanup.
    """

    at: int
    mode: Mode = "before"
    exits: bool = False
    on_journal: Callable[[], None] = lambda: None
    steps: int = 0
    fired: bool = False
    journaled: bool = False
    _journal: tuple[Store, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Do one step inside this block, or fail it."""
        with self._lock:
            self.steps += 1
            mine = self.steps == self.at or (self.mode == "dead" and self.steps >= self.at)
        if mine and self.mode != "after":
            self._fail(name)
        yield
        if mine and self.mode == "after":
            self._fail(name)

    def _fail(self, name: str) -> None:
        self.fired = True
        if self.exits:
            self.note_journal()
            os._exit(7)
        raise InjectedError(f"injected {self.mode} step {self.at}, {name}")

    def watch_journal(self, store: Store, path: str) -> None:
        """Take notice of a small file that is about to be written."""
        if path.endswith(f"/{JOURNAL}"):
            self._journal = (store, path)

    def note_journal(self) -> None:
        """Remember that a journal stood on the disk, whatever became of the merge since."""
        if self._journal is None or self.journaled:
            return
        # Instead of a journal, there may be a tombstone.
        if (self._journal[0].read_small(self._journal[1]) or b"").startswith(b"{"):
            self.journaled = True
            self.on_journal()


class FaultyStream:
    """A stream whose writes and whose close are steps."""

    def __init__(self, stream: Any, fault: Fault) -> None:
        self._stream = stream
        self._fault = fault
        self._writes = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        if next(self._writes) % 5:
            return int(self._stream.write(data))
        with self._fault.step("write"):
            return int(self._stream.write(data))

    def close(self) -> None:
        if not self._stream.closed:
            try:
                with self._fault.step("close"):
                    self._stream.close()
            finally:
                # A close that fails still gives the descriptor back; what was buffered is lost.
                self._stream.close()


@contextlib.contextmanager
def inject(fault: Fault) -> Iterator[Fault]:
    """Put a fault into both stores while the block runs."""
    with contextlib.ExitStack() as patches:
        for store in (LocalStore, RemoteStore):
            for name in filter(partial(hasattr, store), MUTATING):
                patches.enter_context(mock.patch.object(store, name, _wrap_method(getattr(store, name), name, fault)))
        yield fault


def _wrap_method(original: Any, name: str, fault: Fault) -> Any:
    def method(self: Store, path: Any, *others: Any) -> Any:
        done = None
        if name in {"write_small", "create_exclusively"}:
            fault.watch_journal(self, path)
        try:
            with fault.step(name):
                done = original(self, path, *others)
        except InjectedError:
            if name == "create" and done is not None:
                done.close()
            raise
        finally:
            if name in {"write_small", "create_exclusively"}:
                fault.note_journal()
        return FaultyStream(done, fault) if name == "create" else done

    return method


@dataclass(frozen=True)
class Scenario:
    """A dataset before a change, and the change."""

    setup: Callable[[DatasetFolder], None]
    change: Callable[[DatasetFolder], object]


@dataclass(frozen=True)
class DatasetFolder:
    """A dataset folder, local or in memory, seen without merganser's own reader."""

    path: str

    @property
    def protocol(self) -> str:
        """What makes a store's path the path of a place."""
        return "memory:/" if self.path.startswith("memory://") else ""

    @property
    def control(self) -> str:
        return choose_control_folder(locate(self.path))

    def put(self, rel: str, ids: list[int], value: str) -> None:
        """Write one data file of two row groups."""
        table = pa.table([ids, [value] * len(ids)], schema=SCHEMA)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=2)
        self.write(rel, sink.getvalue().to_pybytes())

    def write(self, rel: str, data: bytes) -> None:
        filesystem, root = fsspec.core.url_to_fs(self.path)
        filesystem.makedirs(f"{root}/{rel}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{root}/{rel}", data)

    def read_files(self) -> dict[str, bytes]:
        """Return every file of the data folder with its bytes."""
        filesystem, root = fsspec.core.url_to_fs(self.path)
        if not filesystem.exists(root):
            return {}
        return {path[len(root) + 1 :]: filesystem.cat_file(path) for path in sorted(filesystem.find(root))}

    def read_rows(self) -> list[tuple[Any, ...]]:
        """Return every row with its folder, read file by file with PyArrow: `id`, `v` and what other columns it has."""
        found = []
        for rel, data in self.read_files().items():
            if rel.endswith(".parquet"):
                table = pq.ParquetFile(pa.BufferReader(data)).read()
                folder = rel.rpartition("/")[0]
                found += [(folder, *row.values()) for row in table.to_pylist()]
        return sorted(found)

    def list_staging(self) -> list[str]:
        """Return the names of staging folders that are left."""
        location = locate(self.path)
        return [name for name in location.store.list_names(self.control) if name.startswith(STAGING_PREFIX)]

    def list_control_files(self) -> list[str]:
        """Return every file in the control folder except leases and the one that records where the dataset is."""
        filesystem, _ = fsspec.core.url_to_fs(self.path)
        found = filesystem.find(self.control) if filesystem.exists(self.control) else []
        names = {path: path.rpartition("/")[2] for path in found}
        return sorted(
            path for path, name in names.items() if name not in (INSIDE, BESIDE) and not name.startswith((LEASE, BEAT))
        )

    def expire_lease(self) -> None:
        """Let a lease that outlived its failed holder run out at once."""
        if self.path.startswith("memory://"):
            filesystem, _ = fsspec.core.url_to_fs(self.path)
            number = find_newest(locate(self.path).store.list_names(self.control))
            if number:
                filesystem.pipe_file(f"{self.control}/{BEAT}{number}", b'{"released": true}')

    def discard(self) -> None:
        """Free what the dataset takes."""
        filesystem, root = fsspec.core.url_to_fs(self.path)
        parent = root.rpartition("/")[0]
        if self.path.startswith("memory://"):
            filesystem.rm(parent, recursive=True)
        else:
            shutil.rmtree(parent)


def make_dataset_folder(kind: str, lake: str) -> DatasetFolder:
    """Make room for one dataset: "local" below the lake, or "memory"."""
    name = uuid.uuid4().hex
    if kind == "memory":
        fsspec.filesystem("memory").makedirs(f"/{name}")
        return DatasetFolder(f"memory://{name}/t")
    os.makedirs(f"{lake}/{name}")
    return DatasetFolder(f"{lake}/{name}/t")


def _make_source(**values: list[Any]) -> pa.Table:
    return pa.table(values)


def _write_three_files(place: DatasetFolder) -> None:
    for number in range(3):
        place.put(f"f{number}.parquet", [number * 10 + at for at in range(4)], "old")
        place.write(f".f{number}.parquet.crc", b"stale")


def _write_three_days(place: DatasetFolder) -> None:
    for number, day in enumerate("abc"):
        place.put(f"day={day}/f.parquet", [number * 10 + at for at in range(4)], "old")


def _write_linked_file(place: DatasetFolder) -> None:
    """Make the first of two files a link to another disk."""
    for number in range(2):
        place.put(f"f{number}.parquet", [number * 10 + at for at in range(4)], "old")
    elsewhere = os.path.join(os.path.dirname(place.path), OTHER_DISK)
    os.makedirs(elsewhere)
    os.replace(f"{place.path}/f0.parquet", f"{elsewhere}/real")
    os.symlink(f"{elsewhere}/real", f"{place.path}/f0.parquet")


@contextlib.contextmanager
def simulate_other_disk() -> Iterator[None]:
    """Refuse renames into or out of a folder called OTHER_DISK, as the system does between disks."""
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        if (OTHER_DISK in str(source)) != (OTHER_DISK in str(target)):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, target)
        original(source, target)

    with mock.patch("os.replace", replace):
        yield


def _linked_upsert(place: DatasetFolder) -> object:
    with simulate_other_disk():
        return _upsert(place)


def _write_nothing(_: DatasetFolder) -> None:
    pass


def _upsert(place: DatasetFolder) -> object:
    rows = _make_source(id=[1, 12, 99], v=["new"] * 3)
    return merganser.merge(rows, place.path, "upsert", "id", max_rows_per_file=1)


def _moves_and_deletes(place: DatasetFolder) -> object:
    """Move a row to another day, delete one, update one and add one, with a change feed."""
    rows = _make_source(id=[1, 2, 11, 99], v=["new"] * 4, day=["b", None, "b", "a"], op=["u", "d", "u", "c"])
    options: dict[str, Any] = {"operation_column": "op", "on_partition_move": "move", "audit": f"{place.path}-feed"}
    return merganser.merge(rows, place.path, "upsert", "id", engine="arrow", **options)


def _write_updated_files(place: DatasetFolder) -> None:
    _write_three_files(place)
    merganser.merge(_make_source(id=[2], v=["newer"]), place.path, "update", "id", retain=1, engine="arrow")


def _retained_merge(place: DatasetFolder) -> object:
    """Rewrite two files, remove one and add two, and keep what was there instead of what was kept before."""
    rows = _make_source(id=[1, 12, 98, 99], v=["new"] * 4)
    options: Any = {"max_rows_per_file": 1, "retain": 1, "batch_id": "b", "engine": "arrow"}
    return merganser.merge(rows, place.path, "full_merge", "id", **options)


def _write_merged_files(place: DatasetFolder) -> None:
    _write_three_files(place)
    _retained_merge(place)


def _undo(place: DatasetFolder) -> object:
    return merganser.undo(place.path)


def _full_merge(place: DatasetFolder) -> object:
    rows = _make_source(id=[1, 12, 98, 99], v=["new"] * 4)
    return merganser.merge(rows, place.path, "full_merge", "id", max_rows_per_file=1)


def _empty(place: DatasetFolder) -> object:
    return merganser.merge(pa.table([[], []], schema=SCHEMA), place.path, "full_merge", "id")


def _first_load(place: DatasetFolder) -> object:
    rows = _make_source(id=[1, 2, 3], v=["new"] * 3)
    return merganser.merge(rows, place.path, "upsert", "id", max_rows_per_file=2)


def _partitioned_load(place: DatasetFolder) -> object:
    rows = _make_source(id=[1, 2, 3], v=["new"] * 3, day=["a", "b", "a"])
    return merganser.merge(rows, place.path, "upsert", "id", partition_columns="day")


def _partitioned_merge(place: DatasetFolder) -> object:
    rows = _make_source(id=[1, 2, 11, 99, 98], v=["new"] * 5, day=["a", "a", "b", "a", "d"])
    return merganser.merge(rows, place.path, "full_merge", "id")


def _append(place: DatasetFolder) -> object:
    return merganser.write_dataset(_make_source(id=[50, 51], v=["new"] * 2), place.path, "append", max_rows_per_file=1)


def _overwrite(place: DatasetFolder) -> object:
    return merganser.write_dataset(_make_source(id=[50, 51], v=["new"] * 2), place.path, "overwrite")


def _partitioned_overwrite(place: DatasetFolder) -> object:
    rows = _make_source(id=[50, 51], v=["new"] * 2, day=["c", "e"])
    return merganser.write_dataset(rows, place.path, "overwrite", partition_columns="day")


def _write_small_files(place: DatasetFolder) -> None:
    """Put five files into two folders, and one into a third."""
    for number, day in enumerate("aabbbc"):
        place.put(f"day={day}/f{number}.parquet", [number * 10 + 9 - at for at in range(4)], "old")


def _compact(place: DatasetFolder) -> object:
    return merganser.compact(place.path, retain=1)


def _sorted_compact(place: DatasetFolder) -> object:
    return merganser.compact(place.path, sort_by="id", retain=1)


def _write_repeated_keys(place: DatasetFolder) -> None:
    """Put keys into several files and folders, one of which loses all."""
    for number, (day, ids) in enumerate([("a", [1, 2, 3, 4]), ("a", [1, 2]), ("b", [4, 5, 6, 7]), ("c", [8, 9])]):
        place.put(f"day={day}/f{number}.parquet", ids, f"{9 - number}")


def _dedupe(place: DatasetFolder) -> object:
    return merganser.dedupe(place.path, "id", order_by="v", retain=1)


def _alter(place: DatasetFolder) -> object:
    """Change every file, those of a dataset without one schema too."""
    changes: Any = {"add": {"x": "int64"}, "default": {"x": 7}, "drop": "w", "unify": True}
    return merganser.alter(place.path, **changes, retain=1, engine="arrow")


def _write_mixed_files(place: DatasetFolder) -> None:
    """Put two files with different columns and types."""
    place.put("f.parquet", [0, 1, 2, 3], "old")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([50], pa.int32()), "v": ["old"], "w": [1.5]}), sink)
    place.write("g.parquet", sink.getvalue().to_pybytes())


def _evolve(place: DatasetFolder) -> object:
    """Update a row, add one, add a column to every file, and unify them."""
    rows = _make_source(id=[1, 99], x=["new"] * 2)
    return merganser.merge(rows, place.path, "upsert", "id", schema_mode="evolve", engine="arrow", retain=1)


SCENARIOS = {
    "upsert": Scenario(_write_three_files, _upsert),
    "full_merge": Scenario(_write_three_files, _full_merge),
    "empty": Scenario(_write_three_files, _empty),
    "first_load": Scenario(_write_nothing, _first_load),
    "partitioned_load": Scenario(_write_nothing, _partitioned_load),
    "partitioned_merge": Scenario(_write_three_days, _partitioned_merge),
    "fed": Scenario(_write_three_days, _moves_and_deletes),
    "linked": Scenario(_write_linked_file, _linked_upsert),
    "append": Scenario(_write_three_files, _append),
    "overwrite": Scenario(_write_three_files, _overwrite),
    "partitioned_overwrite": Scenario(_write_three_days, _partitioned_overwrite),
    "retained_merge": Scenario(_write_updated_files, _retained_merge),
    "undo": Scenario(_write_merged_files, _undo),
    "compact": Scenario(_write_small_files, _compact),
    "sorted_compact": Scenario(_write_small_files, _sorted_compact),
    "dedupe": Scenario(_write_repeated_keys, _dedupe),
    "alter": Scenario(_write_mixed_files, _alter),
    "evolve": Scenario(_write_mixed_files, _evolve),
}
