"""A dataset as it stands: its data files, their partitions, their row groups, and the one schema they share."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.columnar.threads import map_in_threads
from merganser.core.dataset.file_statistics import DataFile, ReferenceFile, drop_columns
from merganser.core.dataset.listing import find_partition_columns, list_files
from merganser.core.dataset.nesting import check_above
from merganser.core.dataset.statistics_cache import summarise_files
from merganser.core.dataset.target import Target, Template
from merganser.core.model.keys import check_key_type
from merganser.core.model.partitions import (
    check_partition_type,
)
from merganser.core.model.schema import check_unique, decode_schema, encode_schema, to_value_type
from merganser.core.parquet.encode import derive_new_file_options, find_bloom_filter_columns
from merganser.core.parquet.footer import find_unwritable_column, read_footer
from merganser.core.storage.staging import PARTITION_RECORD, choose_control_folder
from merganser.errors import (
    ConcurrentWriteError,
    InvalidArgumentError,
    KeyColumnError,
    TargetPathError,
    UnreadableFileError,
    UnsupportedFileError,
)
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from merganser.core.dataset.file_statistics import FileSummary
    from merganser.core.storage.location import Location


def load_target(
    location: Location,
    keys: Sequence[str],
    partition_columns: Sequence[str] | None,
    source_types: Mapping[str, pa.DataType],
    run_tasks: Callable[[Callable[[DataFile], FileSummary], Sequence[DataFile]], list[FileSummary]] = map_in_threads,
    *,
    refuse_nested: bool = False,
) -> Target:
    """Take a snapshot for a merge on these keys (none for a plain write); `each` is `Engine.each`.

    With `alone`, other datasets below are refused; `check_target` has looked above by then.

    Partition types come from the dataset's record, else from the source's columns, else they are strings (H2).
    """
    if not refuse_nested:
        check_above(location, refuse_nested=False)
    listed = time.time_ns()
    files = list_files(location, refuse_nested=refuse_nested)
    found = find_partition_columns(files)
    if files and partition_columns is not None and list(partition_columns) != found:
        message = (
            f"partition_columns {list(partition_columns)} differ from those of {location.display}, {found}. Leave "
            "partition_columns out, or rewrite the dataset with write_dataset(mode='overwrite')."
        )
        raise InvalidArgumentError(message)
    names = found if files else list(partition_columns or [])
    # A record outlives its files only when someone removed them by hand: then the source begins anew.
    record = read_record(location) if files else {}
    types = {name: to_value_type(record.get(name) or source_types.get(name) or pa.string()) for name in names}
    for name, data_type in types.items():
        check_partition_type(data_type, name)
    if not files:
        return Target(location, (), None, types, None, None)
    first = read_footer(location.store, location.to_path(files[0].rel), location.to_display(files[0].rel))
    first_schema = first.schema
    check_unique(first_schema, "target")
    file_schema = drop_columns(first_schema, names)
    model = ReferenceFile(location, files[0], first, first_schema, types, _find_key_types(keys, file_schema, types))
    summaries, footers, news = summarise_files(model, files, listed, run_tasks)
    told_too = set(names) & set(first_schema.names)
    key_values = None if told_too else dict(first.metadata.metadata or {})
    filtered = find_bloom_filter_columns(first) & {*file_schema.names}
    template = Template(
        key_values,
        derive_new_file_options(first),
        find_unwritable_column(first.metadata),
        filtered,
        bool(first.int96_columns),
    )
    return Target(location, tuple(files), summaries, types, file_schema, template, listed, footers, news)


def load_existing(location: Location, keys: Sequence[str] = (), *, refuse_nested: bool = False) -> Target:
    """Take a snapshot of a dataset that has to be there; footers are not kept, for not all callers have the lock."""
    target = load_target(location, keys, None, {}, refuse_nested=refuse_nested)
    if target.schema is None:
        raise make_no_files_error(location)
    _check_links(location, target.files)
    return replace(target, footers={})


def _check_links(location: Location, files: Sequence[DataFile]) -> None:
    """Refuse a file that a link shows a second time: its rows would be taken for others that are the same."""
    if all(file.real is None for file in files):
        return
    first: dict[str, str] = {}
    for file in files:
        other = first.setdefault(file.real or location.to_path(file.rel), file.rel)
        if other != file.rel:
            message = (
                f"{location.to_display(other)} and {location.to_display(file.rel)} are one file, which a link shows "
                "twice. "
                "Remove the link, or move it out of the dataset."
            )
            raise UnsupportedFileError(message)


def make_no_files_error(location: Location) -> TargetPathError:
    """Say that there is no dataset."""
    return TargetPathError(f"There are no Parquet files below {location.display}. Check the path.")


def _find_key_types(
    keys: Sequence[str], file_schema: pa.Schema, partition_types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    kinds = {}
    for name in keys:
        if name in partition_types:
            kinds[name] = partition_types[name]
        elif name in file_schema.names:
            kinds[name] = file_schema.field(name).type
        else:
            message = (
                f"Key column {name!r} is missing from the target. Its columns are: {', '.join(file_schema.names)}."
            )
            raise KeyColumnError(message)
        check_key_type(kinds[name], name)
    return kinds


def check_listing(target: Target) -> None:
    """Refuse to publish over a dataset that something else changed since it was listed (C6).

    A dataset above may have come meanwhile; on an object store, where looking costs requests, only a first write looks.
    """
    if target.location.store.is_local or not target.files:
        check_above(target.location, refuse_nested=True)
    before = {file.rel: file.identity for file in target.files}
    now = {file.rel: file.identity for file in list_files(target.location, refuse_nested=True)}
    changed = sorted(rel for rel in before.keys() | now.keys() if before.get(rel) != now.get(rel))
    if changed:
        message = (
            f"{target.location.to_display(changed[0])} was changed by another program while the merge was being "
            "prepared. "
            "Nothing was published; run the merge again."
        )
        raise ConcurrentWriteError(message)


def read_record(location: Location) -> dict[str, pa.DataType]:
    """Read the recorded types of partition columns; without a record there are none."""
    path = f"{choose_control_folder(location)}/{PARTITION_RECORD}"
    data = location.store.read_small(path)
    if data is None:
        return {}
    try:
        schema = decode_schema(load_json(data)["schema"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        message = (
            f"{path} is damaged: {error}. Remove it; the types of the partition columns then come from the source."
        )
        raise UnreadableFileError(message) from error
    return {field.name: field.type for field in schema}


def make_record(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Describe partition types for people and, exactly, for `read_record`."""
    encoded = encode_schema(pa.schema(list(types.items())))
    return {"columns": {name: str(data_type) for name, data_type in types.items()}, "schema": encoded}
