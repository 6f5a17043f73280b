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
from merganser.core.columnar.threads import map_in_threads
from merganser.core.model.keys import name_key_columns, to_canonical, to_canonical_type
from merganser.core.rows.key_filter import decode_filters, encode_filters, make_filter
from merganser.core.rows.key_scan import open_parquet, read_columns
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.dataset.file_statistics import DataFile
    from merganser.core.dataset.target import Target
    from merganser.core.model.engine import Engine, GivenT, MatchesT, ScanFile, SourceT
    from merganser.core.rows.key_filter import KeyFilter
    from merganser.core.rows.key_scan import OpenFile
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

FILTER_FOLDER = "filters"
# With more keys, one of them looks as if it were in every large row group.
MAX_SOURCE_KEYS = 10_000
# Rows of a file: below, its keys are read as fast as a filter. Rows of all files: below, a scan takes no time.
MIN_FILE_ROWS = 1 << 15
MIN_TOTAL_ROWS = 1 << 20
# So many files are tried before filters are made for all of them, and not if half of their row groups hold a key.
TRIAL_FILES = 4


@dataclass(frozen=True, slots=True)
class NewFilter:
    """A staged file of filters, the name it is to have, and the data file that it tells of."""

    file: int
    name: str
    staged: str


@dataclass(frozen=True, slots=True)
class FilterPruning:
    """The row groups to scan, by file; what filters were made; the names of those there are, None without a look."""

    groups: Mapping[int, Sequence[int]]
    new_filters: Sequence[NewFilter] = ()
    filter_names: Sequence[str] | None = None


def prune_by_key_filters(
    engine: Engine[GivenT, SourceT, MatchesT],
    handle: SourceT,
    keys: Sequence[str],
    source_rows: int,
    target: Target,
    scans: Sequence[ScanFile],
    staging: Staging | None,
) -> FilterPruning:
    """Leave out row groups that hold no key of a source of so many rows, by filters that are there or that are made."""
    groups = {scan.number: scan.groups for scan in scans}
    large = [scan for scan in scans if _count_rows(scan) >= MIN_FILE_ROWS]
    if source_rows > MAX_SOURCE_KEYS or sum(map(_count_rows, large)) < MIN_TOTAL_ROWS:
        return FilterPruning(groups)
    store, folder = target.location.store, f"{choose_control_folder(target.location)}/{FILTER_FOLDER}"
    names: list[str] = []
    with suppress(OSError):
        names = store.list_names(folder)
    columns = _hash_columns(target, keys)
    items = [_ProbedFile(scan, _make_filter_name(target, scan.number, columns)) for scan in large]
    kinds = [to_canonical_type(target.get_key_type(name)) for name in keys]
    sieve = _FilterProbe(store, folder, keys, kinds, engine.hash_keys(handle, keys), staging)
    known = {*names}
    held = [item for item in items if item.filter_name in known]
    looked = engine.run_tasks(sieve.probe_stored, held, large=True)
    answers = {item.scan.number: answer for item, answer in zip(held, looked, strict=True)}
    lacking = [item for item in items if answers.get(item.scan.number) is None]
    step = -(-len(lacking) // TRIAL_FILES) or 1
    trial = lacking[::step]
    made = engine.run_tasks(sieve.build_and_probe, trial, large=True)
    if 2 * sum(len(answer.groups) for answer in made) < sum(len(item.scan.groups) for item in trial):
        rest = [item for number, item in enumerate(lacking) if number % step]
        trial, made = [*trial, *rest], [*made, *engine.run_tasks(sieve.build_and_probe, rest, large=True)]
    answers |= {item.scan.number: answer for item, answer in zip(trial, made, strict=True)}
    groups |= {number: answer.groups for number, answer in answers.items() if answer is not None}
    learned = [
        NewFilter(item.scan.number, item.filter_name, answer.staged)
        for item, answer in zip(trial, made, strict=True)
        if item.filter_name is not None and answer.staged is not None
    ]
    return FilterPruning(groups, learned, names)


def save_filters(pruning: FilterPruning, target: Target, gone: Iterable[int], staging: Staging) -> None:
    """Keep the filters of files that stay, and no others; where that cannot be, they are made again another time."""
    left = {*range(len(target.files))}.difference(gone)
    news = [one for one in pruning.new_filters if one.file in left]
    if not news:
        return
    store, folder = staging.location.store, f"{staging.control}/{FILTER_FOLDER}"
    versions = {_hash_version(target.files[number]) for number in left}
    stale = [name for name in pruning.filter_names or () if name.partition("-")[0] not in versions]
    with suppress(OSError):
        store.make_folder(folder)
        map_in_threads(lambda one: store.replace(one.staged, f"{folder}/{one.name}"), news)
        map_in_threads(lambda name: store.remove(f"{folder}/{name}"), stale)


@dataclass(frozen=True, slots=True)
class _ProbedFile:
    """A file, and the name of its filters; None while it may still change and look the same."""

    scan: ScanFile
    filter_name: str | None


@dataclass(frozen=True, slots=True)
class _ProbeResult:
    """The row groups of a file that might hold a key, and where new filters are staged."""

    groups: Sequence[int]
    staged: str | None = None


@dataclass(frozen=True, slots=True)
class _FilterProbe:
    """What is asked of each file: whether its filters, or new ones, let any key of the source through."""

    store: Store
    folder: str
    keys: Sequence[str]
    key_types: Sequence[pa.DataType]
    hashes: Hashes
    staging: Staging | None

    def probe_stored(self, item: _ProbedFile) -> _ProbeResult | None:
        """Ask the filters that there are; None if they cannot tell of every row group."""
        data, name = None, item.filter_name or ""
        with suppress(OSError):
            data = self.store.read_small(f"{self.folder}/{name}")
        filters = decode_filters(data or b"", name)
        if not filters.keys() >= {*item.scan.groups}:
            return None
        return _ProbeResult([group for group in item.scan.groups if filters[group].might_hold(self.hashes)])

    def build_and_probe(self, item: _ProbedFile) -> _ProbeResult:
        """Read the keys of a file, and stage filters of them unless the file is to be read anyway."""
        filters: dict[int, KeyFilter] = {}
        # What cannot be read here is left to the scan, to be read in another way or to be refused.
        with (
            suppress(UnreadableFileError, pa.ArrowException),
            open_parquet(self.store, item.scan.path, item.scan.footer) as parquet,
        ):
            for group in item.scan.groups:
                made = make_filter(hash_keys(self._read_keys(parquet, group, item.scan)))
                if made is not None:
                    filters[group] = made
        hit = [one for one in item.scan.groups if one not in filters or filters[one].might_hold(self.hashes)]
        if not hit and item.filter_name is not None and self.staging is not None:
            staged = self.staging.make_path()
            with suppress(OSError), self.store.create(staged) as stream:
                stream.write(encode_filters(filters, item.filter_name))
                return _ProbeResult(hit, staged)
        return _ProbeResult(hit)

    def _read_keys(self, parquet: OpenFile, group: int, scan: ScanFile) -> Sequence[pa.ChunkedArray]:
        """Read the keys of a row group that are not NULL, in the types that the source's have: files may differ."""
        read = [to_canonical(column) for _, column in read_columns(parquet, group, scan, self.keys)]
        columns = [column.cast(kind) for column, kind in zip(read, self.key_types, strict=True)]
        if not any(column.null_count for column in columns):
            return columns
        return list(pa.table(columns, names=name_key_columns(len(columns))).drop_null().columns)


def _make_filter_name(target: Target, file: int, columns: str) -> str | None:
    settled = target.files[file].is_settled(target.listed_at)
    return f"{_hash_version(target.files[file])}-{columns}" if settled else None


def _count_rows(scan: ScanFile) -> int:
    return sum(end - start for start, end in scan.spans)


def _hash_version(file: DataFile) -> str:
    return hashlib.sha256(file.key).hexdigest()[:32]


def _hash_columns(target: Target, keys: Sequence[str]) -> str:
    told = [(name, str(target.get_key_type(name))) for name in keys]
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]
