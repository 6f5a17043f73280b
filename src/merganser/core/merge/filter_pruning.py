"""Filter pruning: key filters exclude row groups that bounds cannot exclude, for example where keys are random.

Filters are stored in the control folder, one file for each version of a data file and each choice of key columns. Where
one is missing, the keys are read once, as a scan would, and a filter is built from them; the merge stores it if it
commits and the data file stays. A filter that is lost, damaged or built by other rules costs time, never rows.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from merganser.core.columnar.hashing import hash_keys
from merganser.core.columnar.threads import map_in_threads
from merganser.core.model.engine import FileNumber
from merganser.core.model.keys import (
    NullSafeKeys,
    fill_null_keys,
    name_key_columns,
    to_canonical,
    to_canonical_type,
)
from merganser.core.rows.key_filter import decode_filters, encode_filters, make_filter
from merganser.core.rows.key_scan import open_parquet, read_columns
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from merganser.core.columnar.hashing import Hashes
    from merganser.core.dataset.file_statistics import DataFile
    from merganser.core.dataset.target import Target
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.model.engine import Engine, GroupNumber, ScanFile
    from merganser.core.rows.key_filter import KeyFilter
    from merganser.core.rows.key_scan import OpenFile
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store

FILTER_FOLDER = "filters"
# With more keys, some key passes the filter of every large row group.
MAX_SOURCE_KEYS = 10_000
# In a file of fewer rows, keys are read as fast as a filter. With fewer rows in all files, a scan takes no time.
MIN_FILE_ROWS = 1 << 15
MIN_TOTAL_ROWS = 1 << 20
# Files to try before filters are built for all of them.
TRIAL_FILES = 4


@dataclass(frozen=True, slots=True)
class NewFilter:
    """A staged file of filters, its final name, and the data file that it describes."""

    file: FileNumber
    name: str
    staged: str


@dataclass(frozen=True, slots=True)
class FilterPruning:
    """The row groups to scan, by file; the filters that were built; the names of stored ones, None if not listed."""

    groups: Mapping[FileNumber, Sequence[GroupNumber]]
    new_filters: Sequence[NewFilter] = ()
    filter_names: Sequence[str] | None = None


def prune_by_key_filters(engine: Engine, prepared: PreparedMerge, scans: Sequence[ScanFile]) -> FilterPruning:
    """Leave out row groups that hold no source key, by stored filters or by new ones."""
    groups = {scan.number: scan.groups for scan in scans}
    large = [scan for scan in scans if _count_rows(scan) >= MIN_FILE_ROWS]
    if prepared.facts.rows > MAX_SOURCE_KEYS or sum(map(_count_rows, large)) < MIN_TOTAL_ROWS:
        return FilterPruning(groups)
    target, keys = prepared.target, prepared.spec.keys
    probe = _FilterProbe(
        store=target.location.store,
        folder=f"{choose_control_folder(target.location)}/{FILTER_FOLDER}",
        keys=keys,
        key_types=[to_canonical_type(target.get_key_type(name)) for name in keys],
        hashes=prepared.source.hash_keys(),
        staging=prepared.spec.staging,
    )
    names: list[str] = []
    with suppress(OSError):
        names = probe.store.list_names(probe.folder)
    columns = _hash_columns(target, keys)
    files = [_ProbedFile(scan, _make_filter_name(target, scan.number, columns)) for scan in large]
    stored = _probe_stored(engine, probe, files, {*names})
    built = _build_missing(engine, probe, [file for file in files if file.scan.number not in stored])
    groups |= stored | {file.scan.number: result.groups for file, result in built}
    new_filters = [
        NewFilter(file.scan.number, file.filter_name, result.staged)
        for file, result in built
        if file.filter_name is not None and result.staged is not None
    ]
    return FilterPruning(groups, new_filters, names)


def _probe_stored(
    engine: Engine, probe: _FilterProbe, files: Sequence[_ProbedFile], names: set[str]
) -> dict[FileNumber, Sequence[GroupNumber]]:
    """Probe stored filters; a file whose filters are missing or damaged is left out."""
    stored = [file for file in files if file.filter_name in names]
    results = zip(stored, engine.run_tasks(probe.probe_stored, stored, large=True), strict=True)
    return {file.scan.number: groups for file, groups in results if groups is not None}


def _build_missing(
    engine: Engine, probe: _FilterProbe, files: Sequence[_ProbedFile]
) -> list[tuple[_ProbedFile, _ProbeResult]]:
    """Build filters of a few files, and of all others only if half of the row groups are pruned there."""
    step = -(-len(files) // TRIAL_FILES) or 1
    tried = list(files[::step])
    results = engine.run_tasks(probe.build_and_probe, tried, large=True)
    if 2 * sum(len(result.groups) for result in results) < sum(len(file.scan.groups) for file in tried):
        rest = [file for number, file in enumerate(files) if number % step]
        tried += rest
        results = [*results, *engine.run_tasks(probe.build_and_probe, rest, large=True)]
    return list(zip(tried, results, strict=True))


def rebase_filters(pruning: FilterPruning, before: Target, after: Target) -> FilterPruning:
    """Keep the new filters of files that are the same after other commits."""
    same = {(file.rel, file.identity): FileNumber(number) for number, file in enumerate(after.files)}
    numbers = [same.get((file.rel, file.identity)) for file in before.files]
    kept = [(one, number) for one in pruning.new_filters if (number := numbers[one.file]) is not None]
    return replace(pruning, new_filters=[replace(one, file=number) for one, number in kept])


def save_filters(pruning: FilterPruning, target: Target, touched: Collection[str], staging: Staging) -> None:
    """Store the new filters of files that stay, and remove those of others; what fails is built again next time."""
    left = {*range(len(target.files))}.difference(target.find_numbers(touched))
    new_filters = [one for one in pruning.new_filters if one.file in left]
    if not new_filters:
        return
    store, folder = staging.location.store, f"{staging.control}/{FILTER_FOLDER}"
    versions = {_hash_version(target.files[number]) for number in left}
    stale = [name for name in pruning.filter_names or () if name.partition("-")[0] not in versions]
    with suppress(*store.errors):
        store.make_folder(folder)
        map_in_threads(lambda one: store.replace(one.staged, f"{folder}/{one.name}"), new_filters)
        map_in_threads(lambda name: store.remove(f"{folder}/{name}"), stale)


@dataclass(frozen=True, slots=True)
class _ProbedFile:
    """A file, and the name of its filters; None while the file could change without a new modification time."""

    scan: ScanFile
    filter_name: str | None


@dataclass(frozen=True, slots=True)
class _ProbeResult:
    """The row groups of a file that might hold a key, and the staged path of new filters."""

    groups: Sequence[GroupNumber]
    staged: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilterProbe:
    """Tests whether any key of the source passes the filters of a file."""

    store: Store
    folder: str
    keys: Sequence[str]
    key_types: Sequence[pa.DataType]
    hashes: Hashes
    staging: Staging | None

    def probe_stored(self, file: _ProbedFile) -> Sequence[GroupNumber] | None:
        """Find the row groups that might hold a key by stored filters; None if these lack a row group."""
        data, name = None, file.filter_name or ""
        with suppress(OSError):
            data = self.store.read_small(f"{self.folder}/{name}")
        filters = decode_filters(data or b"", name)
        if not filters.keys() >= {*file.scan.groups}:
            return None
        return [group for group in file.scan.groups if filters[group].might_hold(self.hashes)]

    def build_and_probe(self, file: _ProbedFile) -> _ProbeResult:
        """Build filters from the keys of a file, and stage them unless the file has to be read anyway."""
        scan = file.scan
        filters: dict[int, KeyFilter] = {}
        # A file that cannot be read here is left to the scan, which reads it in another way or refuses it.
        with (
            suppress(UnreadableFileError, pa.ArrowException),
            open_parquet(self.store, scan.path, scan.footer, shape=scan.shape) as parquet,
        ):
            for group in scan.groups:
                built = make_filter(hash_keys(self._read_keys(parquet, group, scan)))
                if built is not None:
                    filters[group] = built
        hit = [one for one in scan.groups if one not in filters or filters[one].might_hold(self.hashes)]
        if not hit and file.filter_name is not None and self.staging is not None:
            staged = self.staging.make_path()
            with suppress(OSError), self.store.create(staged) as stream:
                stream.write(encode_filters(filters, file.filter_name))
                return _ProbeResult(hit, staged)
        return _ProbeResult(hit)

    def _read_keys(self, parquet: OpenFile, group: int, scan: ScanFile) -> Sequence[pa.ChunkedArray]:
        """Read the keys of a row group that can match, cast to the source's types: those of files may differ."""
        read = [to_canonical(column) for _, column in read_columns(parquet, group, scan, self.keys)]
        columns = [column.cast(data_type) for column, data_type in zip(read, self.key_types, strict=True)]
        columns = fill_null_keys(columns, self.keys)
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
    typed: list[object] = [(name, str(target.get_key_type(name))) for name in keys]
    if isinstance(keys, NullSafeKeys):
        # The other filters of these columns have neither the keys with NULL nor these hashes.
        typed.append("null-safe")
    return hashlib.sha256(repr(typed).encode("utf-8", "surrogatepass")).hexdigest()[:16]
