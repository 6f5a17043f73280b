"""Changes that are interrupted on an object store, and what they may leave: all of a change, or nothing of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import merganser
from merganser.core.storage import liveness
from merganser.core.storage.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Rows = dict[int, str]
Change = tuple["Callable[[str], object]", "Callable[[Rows], Rows]"]
BASE: Rows = dict.fromkeys(range(12), "first") | {3: "second"}
THEIRS = {1000: "theirs"}


def make_rows(values: Rows) -> pa.Table:
    return pa.table({"id": pa.array(list(values), pa.int64()), "v": list(values.values())})


def upsert(path: str, values: Rows, strategy: Any = "upsert") -> object:
    return merganser.merge(make_rows(values), path, strategy, "id", engine="arrow", max_rows_per_file=4, retain=1)


def prepare(path: str) -> None:
    """Make a dataset of three files, of which the second commit can be undone."""
    upsert(path, dict.fromkeys(range(12), "first"))
    upsert(path, {3: "second"})


# Each change, and the same on rows in a dict.
CHANGES: dict[str, Change] = {
    "upsert": (
        lambda path: upsert(path, {2: "mine", 9: "mine", 50: "mine"}),
        lambda rows: rows | {2: "mine", 9: "mine", 50: "mine"},
    ),
    "full_merge": (
        lambda path: upsert(path, {2: "mine", 50: "mine"}, "full_merge"),
        lambda _: {2: "mine", 50: "mine"},
    ),
    "append": (
        lambda path: merganser.write_dataset(make_rows({60: "mine"}), path, "append", engine="arrow"),
        lambda rows: rows | {60: "mine"},
    ),
    "undo": (merganser.undo, lambda rows: BASE if 1000 in rows else dict.fromkeys(rows, "first")),
    "compact": (lambda path: merganser.compact(path, retain=1), lambda rows: rows),
}


def take_over(path: str) -> None:
    """Merge rows as another writer does that has seen no heartbeat of the lease's holder for long."""
    with mock.patch.object(liveness, "LEASE_SECONDS", 0.0), mock.patch.object(Lease, "_renew"):
        upsert(path, THEIRS)


@contextlib.contextmanager
def without_heartbeats() -> Iterator[None]:
    """Let no lease be renewed in the block, as while the process is stopped."""
    with mock.patch.object(Lease, "_renew"):
        yield


def read_rows(path: str) -> list[tuple[int, str]]:
    """Read every row of the data files."""
    filesystem, root = fsspec.core.url_to_fs(path)
    filesystem.invalidate_cache()
    found: list[tuple[int, str]] = []
    for name in filesystem.find(root):
        assert name.endswith(".parquet"), name
        with filesystem.open(name, "rb") as stream:
            table = pq.ParquetFile(stream).read()
        found += zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True)
    return sorted(found)


def list_outcomes(name: str, *, happened: bool) -> list[list[tuple[int, str]]]:
    """List what may be read after this change and `take_over`, in either order."""
    change = CHANGES[name][1]
    both = [change(BASE) | THEIRS, change(BASE | THEIRS)] if happened else [BASE | THEIRS]
    return [sorted(rows.items()) for rows in both]
