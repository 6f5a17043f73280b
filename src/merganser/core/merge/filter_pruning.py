"""Sifting: filters of keys pass over row groups that bounds cannot rule out, as where keys are random.

Filters are kept in the control folder, one file for each version of a data file and each choice of key columns. Where
one is missing, the keys are read once, as a scan would, and a filter is made of them; the merge keeps it if it commits
and the data file stays. A filter that is lost, damaged or made by other rules costs time, never rows.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.threads import in_threads
from merganser.core.model.keys import canonical, canonical_type, key_names
from merganser.core.rows.key_filter import decode_filters, encode_filters, make_filter
from merganser.core.rows.key_scan import open_parquet, read_columns
from merganser.core.storage.staging import control_folder
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.dataset.file_statistics import DataFile
    from merganser.core.dataset.snapshot import Target
    from merganser.core.model.engine import Engine, G, H, M, ScanFile
    from merganser.core.rows.key_filter import KeyFilter
    from merganser.core.rows.key_scan import OpenFile
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

FOLDER = "filters"
# With more keys, one of them looks as if it were in every large row group.
MOST_KEYS = 10_000
# Rows of a file: below, its keys are read as fast as a filter. Rows of all files: below, a scan takes no time.
LEAST_ROWS = 1 << 15
WORTH = 1 << 20
# So many files are tried before filters are made for all of them, and not if half of their row groups hold a key.
TRIAL = 4


@dataclass(frozen=True, slots=True)
class Learned:
    """A staged file of filters, the name it is to have, and the data file that it tells of."""

    file: int
    name: str
    staged: str


@dataclass(frozen=True, slots=True)
class Sifted:
    """The row groups to scan, by file; what filters were made; the names of those there are, None without a look."""

    groups: Mapping[int, Sequence[int]]
    learned: Sequence[Learned] = ()
    names: Sequence[str] | None = None


def sift(
    engine: Engine[G, H, M],
    handle: H,
    keys: Sequence[str],
    rows: int,
    target: Target,
    scans: Sequence[ScanFile],
    staging: Staging | None,
) -> Sifted:
    """Leave out row groups that hold no key of a source of so many rows, by filters that are there or that are made."""
    groups = {scan.number: scan.groups for scan in scans}
    large = [scan for scan in scans if _rows(scan) >= LEAST_ROWS]
    if rows > MOST_KEYS or sum(map(_rows, large)) < WORTH:
        return Sifted(groups)
    store, folder = target.location.store, f"{control_folder(target.location)}/{FOLDER}"
    names: list[str] = []
    with suppress(OSError):
        names = store.names(folder)
    columns = _columns_id(target, keys)
    items = [_Item(scan, _name(target, scan.number, columns)) for scan in large]
    kinds = [canonical_type(target.key_type(name)) for name in keys]
    sieve = _Sieve(store, folder, keys, kinds, engine.hashes(handle, keys), staging)
    known = {*names}
    held = [item for item in items if item.name in known]
    looked = engine.each(sieve.look, held, large=True)
    answers = {item.scan.number: answer for item, answer in zip(held, looked, strict=True)}
    lacking = [item for item in items if answers.get(item.scan.number) is None]
    step = -(-len(lacking) // TRIAL) or 1
    trial = lacking[::step]
    made = engine.each(sieve.make, trial, large=True)
    if 2 * sum(len(answer.groups) for answer in made) < sum(len(item.scan.groups) for item in trial):
        rest = [item for number, item in enumerate(lacking) if number % step]
        trial, made = [*trial, *rest], [*made, *engine.each(sieve.make, rest, large=True)]
    answers |= {item.scan.number: answer for item, answer in zip(trial, made, strict=True)}
    groups |= {number: answer.groups for number, answer in answers.items() if answer is not None}
    learned = [
        Learned(item.scan.number, item.name, answer.staged)
        for item, answer in zip(trial, made, strict=True)
        if item.name is not None and answer.staged is not None
    ]
    return Sifted(groups, learned, names)


def save_filters(sifted: Sifted, target: Target, gone: Iterable[int], staging: Staging) -> None:
    """Keep the filters of files that stay, and no others; where that cannot be, they are made again another time."""
    left = {*range(len(target.files))}.difference(gone)
    news = [one for one in sifted.learned if one.file in left]
    if not news:
        return
    store, folder = staging.location.store, f"{staging.control}/{FOLDER}"
    versions = {_version_id(target.files[number]) for number in left}
    stale = [name for name in sifted.names or () if name.partition("-")[0] not in versions]
    with suppress(OSError):
        store.make_folder(folder)
        in_threads(lambda one: store.replace(one.staged, f"{folder}/{one.name}"), news)
        in_threads(lambda name: store.remove(f"{folder}/{name}"), stale)


@dataclass(frozen=True, slots=True)
class _Item:
    """A file, and the name of its filters; None while it may still change and look the same."""

    scan: ScanFile
    name: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The row groups of a file that might hold a key, and where new filters are staged."""

    groups: Sequence[int]
    staged: str | None = None


@dataclass(frozen=True, slots=True)
class _Sieve:
    """What is asked of each file: whether its filters, or new ones, let any key of the source through."""

    store: Store
    folder: str
    keys: Sequence[str]
    kinds: Sequence[pa.DataType]
    hashes: Hashes
    staging: Staging | None

    def look(self, item: _Item) -> _Answer | None:
        """Ask the filters that there are; None if they cannot tell of every row group."""
        data, name = None, item.name or ""
        with suppress(OSError):
            data = self.store.read_small(f"{self.folder}/{name}")
        filters = decode_filters(data or b"", name)
        if not filters.keys() >= {*item.scan.groups}:
            return None
        return _Answer([group for group in item.scan.groups if filters[group].might_hold(self.hashes)])

    def make(self, item: _Item) -> _Answer:
        """Read the keys of a file, and stage filters of them unless the file is to be read anyway."""
        filters: dict[int, KeyFilter] = {}
        # What cannot be read here is left to the scan, to be read in another way or to be refused.
        with (
            suppress(UnreadableFileError, pa.ArrowException),
            open_parquet(self.store, item.scan.path, item.scan.footer) as parquet,
        ):
            for group in item.scan.groups:
                made = make_filter(hash_keys(self._keys(parquet, group, item.scan)))
                if made is not None:
                    filters[group] = made
        hit = [one for one in item.scan.groups if one not in filters or filters[one].might_hold(self.hashes)]
        if not hit and item.name is not None and self.staging is not None:
            staged = self.staging.new_path()
            with suppress(OSError), self.store.create(staged) as stream:
                stream.write(encode_filters(filters, item.name))
                return _Answer(hit, staged)
        return _Answer(hit)

    def _keys(self, parquet: OpenFile, group: int, scan: ScanFile) -> Sequence[pa.ChunkedArray]:
        """Read the keys of a row group that are not NULL, in the types that the source's have: files may differ."""
        read = [canonical(column) for _, column in read_columns(parquet, group, scan, self.keys)]
        columns = [column.cast(kind) for column, kind in zip(read, self.kinds, strict=True)]
        if not any(column.null_count for column in columns):
            return columns
        return list(pa.table(columns, names=key_names(len(columns))).drop_null().columns)


def _name(target: Target, file: int, columns: str) -> str | None:
    settled = target.files[file].settled(target.listed)
    return f"{_version_id(target.files[file])}-{columns}" if settled else None


def _rows(scan: ScanFile) -> int:
    return sum(end - start for start, end in scan.spans)


def _version_id(file: DataFile) -> str:
    return hashlib.sha256(file.key).hexdigest()[:32]


def _columns_id(target: Target, keys: Sequence[str]) -> str:
    told = [(name, str(target.key_type(name))) for name in keys]
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]
