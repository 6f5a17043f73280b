"""The cache of bounds: what footers told, kept in the control folder, so that only files that changed are opened.

An entry holds for one version of one file: its path, its size, and what storage tells of its content, which locally is
inode, mtime and ctime, elsewhere the ETag. A merge or write that commits saves what it learned; a plan only reads.
A cache that is lost, damaged or made by other rules costs time, never rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.errors import SchemaMismatchError
from merganser.core.schema import same_meaning
from merganser.core.staging import control_folder
from merganser.core.summary import FileSummary, bound_arrays, required_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from merganser.core.footer import Bound
    from merganser.core.staging import Staging
    from merganser.core.store import Location
    from merganser.core.summary import DataFile, Model

NAME = "bounds.cache"
# To be raised with every change of what is stored here, or of what `footer.key_bounds` takes for proven.
VERSION = 1
# Fewer footers than this are read about as fast as a cache is read and written.
FEWEST = 64
# The coarsest clock of a filesystem has steps of two seconds. A file that changed so shortly before it was listed may
# change once more and look the same.
SETTLED = 2_000_000_000
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class News:
    """What was learned and is not in the cache: the summaries of a listing begun at this time, in nanoseconds."""

    model: Model
    files: Sequence[DataFile]
    summaries: Sequence[FileSummary]
    listed: int


def summarise_files(
    model: Model,
    files: Sequence[DataFile],
    listed: int,
    each: Callable[[Callable[[DataFile], FileSummary], Sequence[DataFile]], list[FileSummary]],
) -> tuple[tuple[FileSummary, ...], News | None]:
    """Summarise files that were listed from this time on: from the cache, or else from their footers."""
    if len(files) < FEWEST:
        return tuple(each(model.summarise, files)), None
    cache = _read(model.location)
    found: list[FileSummary | None] = [None] * len(files)
    if cache is not None:
        # Bounds of other merges' keys are kept up, so that merges on different keys can take turns.
        model = replace(model, key_types={**cache.common_keys(model), **model.key_types})
        found = cache.find(model, files)
    missing = [file for file, summary in zip(files, found, strict=True) if summary is None]
    read = iter(each(model.summarise, missing))
    summaries = tuple(next(read) if summary is None else summary for summary in found)
    news = News(model, files, summaries, listed) if any(_settled(file, listed) for file in missing) else None
    return summaries, news


def save_cache(news: News, staging: Staging) -> None:
    """Put what was learned in the place of the cache; where that cannot be, it is learned again another time."""
    store, staged = staging.location.store, staging.new_path()
    with suppress(OSError, OverflowError, pa.ArrowException):
        data = _encode(news)
        with store.create(staged) as stream:
            stream.write(data)
        store.replace(staged, f"{staging.control}/{NAME}")


@dataclass(frozen=True, slots=True)
class _Cache:
    """A cache as it was read: an entry for each file, with the number of its schema, 0 for that of the first file."""

    key_types: Mapping[str, pa.DataType]
    parquet_schema: str
    schemas: Sequence[pa.Schema]
    entries: pa.RecordBatch

    def common_keys(self, model: Model) -> dict[str, pa.DataType]:
        """Give the key columns whose bounds are here and that the dataset still has, in the same type."""
        have = {field.name: field.type for field in model.schema} | dict(model.partition_types)
        return {name: kind for name, kind in self.key_types.items() if have.get(name) == kind}

    def find(self, model: Model, files: Sequence[DataFile]) -> list[FileSummary | None]:
        """Give the summary of each file that is here in this version, with the bounds wanted and columns that fit."""
        if not model.key_types.items() <= self.key_types.items():
            return [None] * len(files)
        wanted = pa.array([_key(file) for file in files], pa.large_binary())
        places = pc.index_in(wanted, self.entries.column("file")).fill_null(-1).to_pylist()
        groups = self.entries.column("groups")
        starts, values = groups.offsets.to_pylist(), groups.values
        rows = values.field("rows").to_pylist()
        bounds = {name: _bounds(values, at) for at, name in enumerate(self.key_types) if name in model.key_types}
        numbers = self.entries.column("schema").to_pylist()
        shapes = [_shape(model, schema, own) for schema, own in self._schemas(model)]
        found: list[FileSummary | None] = []
        for file, place in zip(files, places, strict=True):
            shape = None if place < 0 else shapes[numbers[place]]
            if shape is None or not shape.told <= file.folders.keys():
                found.append(None)
                continue
            part = slice(starts[place], starts[place + 1])
            parts = {name: column[part] for name, column in bounds.items()}
            found.append(FileSummary(tuple(rows[part]), parts, shape.columns, shape.required, shape.own))
        return found

    def _schemas(self, model: Model) -> Iterable[tuple[pa.Schema | None, pa.Schema | None]]:
        """Give each schema, and again if it is not the first file's; None if that is not known any more."""
        yield (model.schema if self.parquet_schema == _parquet_schema(model) else None), None
        yield from zip(self.schemas, self.schemas, strict=True)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What files of one schema have in common; `told` are the columns that their paths have to tell."""

    columns: frozenset[str]
    required: frozenset[str]
    told: frozenset[str]
    own: pa.Schema | None


def _shape(model: Model, schema: pa.Schema | None, own: pa.Schema | None) -> _Shape | None:
    """Measure a schema by the first file as it is now; None if files are to be read, perhaps to be refused."""
    if schema is None:
        return None
    if own is not None:
        try:
            model.check_columns(own, "")
        except SchemaMismatchError:
            return None
    held = {name: kind for name, kind in model.partition_types.items() if name in schema.names}
    told = frozenset(name for name, kind in held.items() if not same_meaning(schema.field(name).type, kind))
    return _Shape(frozenset(schema.names), required_columns(schema), told, own)


def _bounds(groups: pa.StructArray, at: int) -> list[Bound]:
    lows, highs = (groups.field(f"{side}_{at}").to_pylist() for side in ("min", "max"))
    return [None if low is None else (low, high) for low, high in zip(lows, highs, strict=True)]


def _settled(file: DataFile, listed: int) -> bool:
    return file.version is not None and file.changed + SETTLED <= listed


def _key(file: DataFile) -> bytes:
    version = file.version or ""
    # Any text may be a path, also one that is no valid Unicode.
    return f"{file.size}:{len(version)}:{version}{file.rel}".encode("utf-8", "surrogatepass")


def _parquet_schema(model: Model) -> str:
    # The first line tells where in memory it is.
    return str(model.footer.metadata.schema).partition("\n")[2]


def _encode(news: News) -> bytes:
    files, key_types = news.files, news.model.key_types
    kept = [number for number, file in enumerate(files) if _settled(file, news.listed)]
    summaries = [news.summaries[number] for number in kept]
    schemas: dict[pa.Schema | None, int] = {None: 0}
    numbers = [schemas.setdefault(summary.schema, len(schemas)) for summary in summaries]
    columns = {"rows": pa.array(chain.from_iterable(summary.group_rows for summary in summaries), pa.int64())}
    for at, (name, kind) in enumerate(key_types.items()):
        bounds = chain.from_iterable(summary.bounds[name] for summary in summaries)
        columns[f"min_{at}"], columns[f"max_{at}"] = bound_arrays(bounds, kind)
    groups = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    starts = np.cumsum([0, *(len(summary.group_rows) for summary in summaries)])
    about = {
        "keys": _text(pa.schema(list(key_types.items()))),
        "schemas": [_text(schema) for schema in schemas if schema is not None],
        "parquet_schema": _parquet_schema(news.model),
    }
    entries = pa.record_batch(
        {
            "file": pa.array([_key(files[number]) for number in kept], pa.large_binary()),
            "schema": pa.array(numbers, pa.int32()),
            "groups": pa.LargeListArray.from_arrays(starts, groups),
        }
    ).replace_schema_metadata({"about": json.dumps(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, entries.schema) as writer:
        writer.write_batch(entries)
    content: bytes = sink.getvalue().to_pybytes()
    return _digest(content) + content


def _read(location: Location) -> _Cache | None:
    """Read the cache; None if there is none, or none that this version wrote."""
    with suppress(OSError, ValueError, pa.ArrowException):
        data = location.store.read_small(f"{control_folder(location)}/{NAME}") or b""
        content = memoryview(data)[_DIGEST:]
        if data[:_DIGEST] != _digest(content):
            return None
        with pa.ipc.open_stream(content) as reader:
            entries = reader.read_next_batch()
        about = json.loads(entries.schema.metadata[b"about"])
        key_types = {field.name: field.type for field in _schema(about["keys"])}
        return _Cache(key_types, about["parquet_schema"], [_schema(text) for text in about["schemas"]], entries)
    return None


def _digest(content: bytes | memoryview) -> bytes:
    # Arrow decodes statistics and schemas, so that its version belongs to the rules.
    made = hashlib.sha256(f"{VERSION} {pa.__version__} ".encode())
    made.update(content)
    return made.digest()


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
