"""The cache of file statistics in the control folder, so that only footers of changed files are read.

An entry is valid for one version of one file: path, size, and inode and mtime on a local disk, else the ETag.
Commits save new statistics; plans only read them. A cache that is missing, damaged or outdated costs time, never rows.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.threads import map_in_threads
from merganser.core.dataset.file_statistics import Summaries, to_columns
from merganser.core.model.schema import decode_schema, encode_schema, is_same_logical_type
from merganser.core.storage.staging import choose_control_folder
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from merganser.core.dataset.file_statistics import DataFile, FileSummary, Footers, ReferenceFile
    from merganser.core.dataset.target import Target
    from merganser.core.storage.staging import Staging

    RunTasks = Callable[[Callable[[DataFile], FileSummary], Sequence[DataFile]], list[FileSummary]]

CACHE_NAME = "bounds.cache"
VERSION = 4  # to be raised with every change of what is stored here, or of the bounds that `read_key_bounds` trusts
# From here on the cache saves far more than its 3 ms: a footer takes some 0.3 ms.
MIN_FILES = 64
_MAX_FILES_PER_NEW = 1000  # files of a dataset per new one, up to which the cache is written again
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class CacheUpdate:
    """Statistics to save, some of them not in the cache yet; the listing began at `listed_at`."""

    reference: ReferenceFile
    files: Sequence[DataFile]
    summaries: Summaries
    listed_at: int


def summarise_files(
    reference: ReferenceFile,
    files: Sequence[DataFile],
    listed_at: int,
    run_tasks: RunTasks = map_in_threads,
    before: Target | None = None,
) -> tuple[Summaries, Footers, CacheUpdate | None]:
    """Load the statistics of files from the snapshot `before`, of the same merge, from the cache or from footers.

    `listed_at` is in nanoseconds; `run_tasks` is the engine's.
    """
    if before is not None and _can_compare(reference, before):
        return _summarise_changed_files(reference, files, listed_at, run_tasks, before)
    if len(files) < MIN_FILES:
        read = run_tasks(replace(reference, keeps_footers=True).summarise, files)
        return to_columns(reference, read), _collect_footers(files, read), None
    cache = _read_cache(reference)
    if cache is None:
        missing, found = files, run_tasks(reference.summarise, files)
        summaries = to_columns(reference, found)
    else:
        # The bounds of keys of other merges are kept, so that merges on different keys can alternate.
        reference = replace(reference, key_types={**cache.summaries.key_types, **reference.key_types})
        places = cache.find(reference, files)
        missing = [files[number] for number in np.flatnonzero(places < 0).tolist()]
        found = run_tasks(replace(reference, keeps_footers=len(missing) < MIN_FILES).summarise, missing)
        summaries = _join(cache.summaries, to_columns(reference, found, cache.summaries.schemas[1:]), places)
    update = CacheUpdate(reference, files, summaries, listed_at)
    return summaries, _collect_footers(missing, found), update if _is_worthwhile(update, missing) else None


def _summarise_changed_files(
    reference: ReferenceFile, files: Sequence[DataFile], listed_at: int, run_tasks: RunTasks, before: Target
) -> tuple[Summaries, Footers, CacheUpdate | None]:
    """Read the footers of files that are new or other than in an earlier snapshot."""
    known = {(file.rel, file.identity): place for place, file in enumerate(before.files)}
    places = np.array([known.get((file.rel, file.identity), -1) for file in files], np.int64)
    missing = [files[number] for number in np.flatnonzero(places < 0).tolist()]
    cached = cast("Summaries", before.summaries)
    found = run_tasks(replace(reference, keeps_footers=len(missing) < MIN_FILES).summarise, missing)
    summaries = _join(cached, to_columns(reference, found, cached.schemas[1:]), places)
    unchanged = {file.rel for file, place in zip(files, places.tolist(), strict=True) if place >= 0}
    footers = {rel: footer for rel, footer in before.footers.items() if rel in unchanged}
    update = CacheUpdate(reference, files, summaries, listed_at)
    # What was not saved then is to be saved now.
    new = missing if before.cache_update is None else files
    saves = len(files) >= MIN_FILES and _is_worthwhile(update, new)
    return summaries, {**footers, **_collect_footers(missing, found)}, update if saves else None


def _can_compare(reference: ReferenceFile, before: Target) -> bool:
    """Check that the files of an earlier snapshot were compared with a first file of the same columns."""
    first = before.reference
    return (
        first is not None
        and before.summaries is not None
        and before.summaries.key_types == reference.key_types == first.key_types
        and before.partition_types == reference.partition_types
        and first.schema.equals(reference.schema, check_metadata=True)
        and before.summaries.schemas[0].equals(reference.schema, check_metadata=True)
        and _format_parquet_schema(first) == _format_parquet_schema(reference)
    )


def _is_worthwhile(update: CacheUpdate, missing: Sequence[DataFile]) -> bool:
    """Check for enough new files: to write the cache of many takes longer than to read a few footers again."""
    new = sum(file.is_settled(update.listed_at) for file in missing)
    return new > 0 and new * _MAX_FILES_PER_NEW >= len(update.files)


def _collect_footers(files: Sequence[DataFile], read: Sequence[FileSummary]) -> Footers:
    return {file.rel: found.footer for file, found in zip(files, read, strict=True) if found.footer is not None}


def save_cache(update: CacheUpdate, staging: Staging) -> None:
    """Replace the cache; a failure is ignored, because the statistics can be read again."""
    store, staged = staging.location.store, staging.make_path()
    with suppress(*store.errors, pa.ArrowException):
        data = _encode_cache(update)
        with store.create(staged) as stream:
            stream.write(data)
        store.replace(staged, f"{staging.control}/{CACHE_NAME}")


def _join(cached: Summaries, read: Summaries, places: npt.NDArray[np.int64]) -> Summaries:
    """Take each file's statistics from its place in the cache or, at -1, the next of those just read."""
    if not (places >= 0).any():
        return read
    both = Summaries(
        read.schemas,
        np.concatenate([cached.schema_numbers, read.schema_numbers]),
        np.concatenate([cached.group_counts, read.group_counts]),
        pa.concat_tables([cached.groups, read.groups]),
        read.key_types,
    )
    missing = places < 0
    return both.take(np.where(missing, len(cached.group_counts) + np.cumsum(missing) - 1, places))


@dataclass(frozen=True, slots=True)
class _Cache:
    versions: pa.LargeBinaryArray  # the keys of file versions
    summaries: Summaries
    is_first_known: bool

    def find(self, reference: ReferenceFile, files: Sequence[DataFile]) -> npt.NDArray[np.int64]:
        """Return the place of each file, or -1 if its version, the bounds or matching columns are missing."""
        if reference.key_types.keys() != self.summaries.key_types.keys() or not len(self.versions):
            return np.full(len(files), -1)
        wanted = pa.array([file.key for file in files], pa.large_binary())
        places: npt.NDArray[np.int64] = pc.index_in(wanted, self.versions).fill_null(-1).to_numpy().astype(np.int64)
        numbers = self.summaries.schema_numbers[places]
        for number, schema in enumerate(self.summaries.schemas):
            here = (places >= 0) & (numbers == number)
            if number == 0 and not self.is_first_known:
                places[here] = -1
            elif columns := _find_path_columns(reference, schema):
                places[[at for at in np.flatnonzero(here).tolist() if not columns <= files[at].folders.keys()]] = -1
        return places


def _find_path_columns(reference: ReferenceFile, schema: pa.Schema) -> frozenset[str]:
    """Find partition columns that files of this schema hold in another type, so that their paths must have them."""
    held = {name: kind for name, kind in reference.partition_types.items() if name in schema.names}
    return frozenset(name for name, kind in held.items() if not is_same_logical_type(schema.field(name).type, kind))


def _format_parquet_schema(reference: ReferenceFile) -> str:
    # The first line has its memory address. Some types are in Arrow's copy of the schema only.
    stored = str(reference.footer.metadata.schema).partition("\n")[2]
    return "\n".join([stored, *map(str, reference.schema.types)])


def _encode_cache(update: CacheUpdate) -> bytes:
    settled = np.array([file.is_settled(update.listed_at) for file in update.files])
    versions = [file.key for file, is_settled in zip(update.files, settled.tolist(), strict=True) if is_settled]
    summaries = update.summaries.take(np.flatnonzero(settled))
    used = np.unique([0, *summaries.schema_numbers])
    about = {
        "keys": encode_schema(pa.schema(list(summaries.key_types.items()))),
        "schemas": [encode_schema(summaries.schemas[number]) for number in used[1:]],
        "parquet_schema": _format_parquet_schema(update.reference),
    }
    groups = summaries.groups.combine_chunks().to_struct_array().combine_chunks()
    entries = pa.record_batch(
        {
            "version": pa.array(versions, pa.large_binary()),
            "schema": np.searchsorted(used, summaries.schema_numbers),
            "groups": pa.LargeListArray.from_arrays(np.cumsum([0, *summaries.group_counts]), groups),
        }
    ).replace_schema_metadata({"about": json.dumps(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, entries.schema) as writer:
        writer.write_batch(entries)
    content: bytes = sink.getvalue().to_pybytes()
    return _digest(content) + content


def _read_cache(reference: ReferenceFile) -> _Cache | None:
    """Read the cache; None if it is missing, damaged, or of another version or other columns."""
    location = reference.location
    with suppress(OSError, ValueError, pa.ArrowException):
        data = location.store.read_small(f"{choose_control_folder(location)}/{CACHE_NAME}") or b""
        content = memoryview(data)[_DIGEST:]
        if data[:_DIGEST] != _digest(content):
            return None
        with pa.ipc.open_stream(content) as reader:
            entries = reader.read_next_batch()
        about = load_json(entries.schema.metadata[b"about"])
        key_types = {field.name: field.type for field in decode_schema(about["keys"])}
        have = {field.name: field.type for field in reference.schema} | dict(reference.partition_types)
        if not key_types.items() <= have.items():
            return None
        summaries = Summaries(
            [reference.schema, *(decode_schema(text) for text in about["schemas"])],
            entries.column("schema").to_numpy(),
            entries.column("groups").value_lengths().to_numpy(),
            pa.Table.from_struct_array(entries.column("groups").values),
            key_types,
        )
        is_first_known = about["parquet_schema"] == _format_parquet_schema(reference)
        return _Cache(entries.column("version"), summaries, is_first_known)
    return None


def _digest(content: bytes | memoryview) -> bytes:
    # Arrow decodes statistics and schemas, so its version matters too.
    digest = hashlib.sha256(f"{VERSION} {pa.__version__} ".encode())
    digest.update(content)
    return digest.digest()
