"""Input files that executors read in splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.dataset.read import to_arrow_dataset
from merganser.core.dataset.snapshot import load_target
from merganser.core.model.casts import cast_column
from merganser.core.sources.files import FileSource, SourceFiles, check_folder, find_files
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.engines.spark.jobs import run_tasks
from merganser.errors import InvalidArgumentError, MerganserError, UnreadableFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow.dataset as pads
    from pyspark.sql import SparkSession

    from merganser.core.storage.location import Location

    Batches = Iterator[pa.RecordBatch]

# Bytes of a file that one task reads.
_SPLIT_BYTES = 64 << 20
# Files whose footers the driver reads by itself.
_MAX_DRIVER_FILES = 16


@dataclass(frozen=True, slots=True)
class InputSplits:
    """Rows in files: the split that each task reads, in order, and how it is read."""

    schema: pa.Schema
    splits: Sequence[Any]
    read: Callable[[Any], Batches]


def cast_to_transport(batches: Batches, transport_schema: pa.Schema) -> Batches:
    """Cast rows to the types in which they are transported."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        columns = [cast_column(table.column(field.name), field.type, field.name) for field in transport_schema]
        yield from pa.table(columns, schema=transport_schema).combine_chunks().to_batches()


def is_in_memory(location: Location) -> bool:
    """Whether a location is in this process, where no executor can reach it."""
    return isinstance(location.store, RemoteStore) and location.store.is_in_memory


def locate_shared(path: str | os.PathLike[str], filesystem: Any) -> Location:
    """Locate a dataset; one that executors cannot reach is refused."""
    location = locate(path, filesystem)
    if is_in_memory(location):
        message = f"{location.display} is in this process's memory, where no executor can reach it. Use a shared path."
        raise InvalidArgumentError(message)
    return location


def open_files(spark: SparkSession, source: FileSource) -> InputSplits | None:
    """Find the files of a path and their columns; None if only this process can read them."""
    if is_in_memory(locate(source.path, source.filesystem)):
        return None
    files = find_files(source)
    if not isinstance(files, SourceFiles):
        found = split_dataset(files)
        check_folder(found.schema, source.path)
        return found
    if files.is_parquet and len(files.names) <= _MAX_DRIVER_FILES:
        infos = [files.read_info(name) for name in files.names]
    else:
        infos = run_tasks(spark, files.read_info, files.names, "inspect source files")
    splits: list[tuple[str, Sequence[int] | None]] = []
    for name, info in zip(files.names, infos, strict=True):
        splits += [(name, groups) for groups in _split_row_groups(info.group_sizes)] or [(name, None)]
    schema = files.unify_schemas([info.schema for info in infos])
    return InputSplits(schema, splits, partial(_read_file, files, schema))


def split_dataset(location: Location, columns: Sequence[str] | None = None) -> InputSplits:
    """Split a dataset, or some columns of it: several small files are one split, a large one is several."""
    target = load_target(location, [], None, {})
    dataset = to_arrow_dataset(target)
    schema = dataset.schema
    if columns is not None and target.files:
        lacking = [name for name in columns if name not in schema.names]
        if lacking:
            message = f"{location.display} has no column {lacking[0]!r}. Its columns are: {', '.join(schema.names)}."
            raise InvalidArgumentError(message)
        schema = pa.schema([schema.field(name) for name in columns])
    splits: list[list[pads.Fragment]] = []
    size = _SPLIT_BYTES
    counts = target.group_counts.tolist()
    for fragment, file, count in zip(dataset.get_fragments(), target.files, counts, strict=True):
        if file.size > _SPLIT_BYTES and count > 1:
            splits += [[fragment.subset(row_group_ids=run)] for run in _split_row_groups([file.size // count] * count)]
            size = _SPLIT_BYTES
        elif size + file.size > _SPLIT_BYTES:
            splits.append([fragment])
            size = file.size
        else:
            splits[-1].append(fragment)
            size += file.size
    return InputSplits(schema, splits, partial(_read_fragments, dataset.schema, schema.names))


def _split_row_groups(sizes: Sequence[int]) -> list[list[int]]:
    before = np.cumsum([0, *sizes])[:-1] // _SPLIT_BYTES
    return [run.tolist() for run in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(before)) + 1) if len(run)]


def _read_file(files: SourceFiles, schema: pa.Schema, split: tuple[str, Sequence[int] | None]) -> Batches:
    name, groups = split
    return files.read_batches(name, schema, groups)


def _read_fragments(schema: pa.Schema, columns: Sequence[str], fragments: Sequence[pads.Fragment]) -> Batches:
    for fragment in fragments:
        try:
            with translate_memory_errors(f"reading {fragment.path}"):
                yield from fragment.to_batches(schema=schema, columns=list(columns))
        except MerganserError:
            raise
        except FileNotFoundError as error:
            raise UnreadableFileError(
                f"{fragment.path} no longer exists, because its dataset changed after this DataFrame was made. Make "
                "the DataFrame again."
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise UnreadableFileError(f"Cannot read {fragment.path}: {error}. Restore or remove the file.") from error
