"""Takes a snapshot of a dataset, and checks before a commit that the dataset still matches it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from merganser.core.dataset.file_statistics import DataFile, ReferenceFile, drop_columns
from merganser.core.dataset.listing import find_partition_columns, list_dataset, list_identities
from merganser.core.dataset.mixed_schemas import unify_schemas
from merganser.core.dataset.nesting import check_above
from merganser.core.dataset.statistics_cache import summarise_files
from merganser.core.dataset.target import Target, Template
from merganser.core.model.partitions import check_partition_type
from merganser.core.model.schema import check_unique, decode_schema, encode_schema, to_value_type
from merganser.core.model.validation import check_key_columns
from merganser.core.parquet.encode import derive_new_file_options, find_bloom_filter_columns
from merganser.core.parquet.footer import find_unwritable_column, read_footer
from merganser.core.storage.staging import PARTITION_RECORD, choose_control_folder
from merganser.errors import (
    ConcurrentWriteError,
    InvalidArgumentError,
    TargetPathError,
    UnreadableFileError,
    UnsupportedFileError,
)
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from merganser.core.dataset.file_statistics import Footers, Summaries
    from merganser.core.dataset.statistics_cache import CacheUpdate
    from merganser.core.parquet.footer import Footer
    from merganser.core.storage.location import Location


def load_target(
    location: Location,
    keys: Sequence[str],
    partition_columns: Sequence[str] | None,
    source_types: Mapping[str, pa.DataType],
    summarise: Callable[..., tuple[Summaries, Footers, CacheUpdate | None]] = summarise_files,
    *,
    refuse_nested: bool = False,
    bounded: Sequence[str] = (),
) -> Target:
    """Take a snapshot for a merge on these keys (none for a plain write).

    It has the bounds of keys, and of other columns that are `bounded`; `summarise` may tell `summarise_files` more.

    With `refuse_nested`, nested datasets are refused; enclosing ones were checked by `check_target`.
    Partition types come from the dataset's record, else from the source's columns, else they are strings (H2).
    """
    if not refuse_nested:
        check_above(location, refuse_nested=False)
    listed_at = time.time_ns()
    files, summary_files = list_dataset(location, refuse_nested=refuse_nested)
    types = _find_partition_types(location, files, partition_columns, source_types)
    if not files:
        return Target(location=location, partition_types=types, summary_files=tuple(summary_files))
    first = read_footer(location.store, location.to_path(files[0].rel), location.to_display(files[0].rel))
    first_schema = first.schema
    check_unique(first_schema, "target")
    own_schema = drop_columns(first_schema, types)
    first_types = {field.name: field.type for field in own_schema} | types
    reference = ReferenceFile(
        location=location,
        file=files[0],
        footer=first,
        schema=first_schema,
        partition_types=types,
        key_types={name: first_types[name] for name in keys if name in first_types}
        | {name: first_types[name] for name in bounded if not pa.types.is_nested(first_types.get(name, pa.struct([])))},
    )
    summaries, footers, cache_update = summarise(reference, files, listed_at)
    file_schema = _unify_schemas(location, files, summaries, list(types))
    schema = pa.schema([*file_schema, *types.items()])
    check_key_columns(schema, keys, "target")
    return Target(
        location=location,
        files=tuple(files),
        summary_files=tuple(summary_files),
        summaries=summaries.retype({name: schema.field(name).type for name in [*summaries.key_types, *keys]}),
        partition_types=types,
        file_schema=file_schema,
        template=_make_template(first, first_schema, own_schema).fit(own_schema, file_schema),
        reference=reference,
        listed_at=listed_at,
        footers=footers,
        cache_update=cache_update,
    )


def _find_partition_types(
    location: Location,
    files: Sequence[DataFile],
    partition_columns: Sequence[str] | None,
    source_types: Mapping[str, pa.DataType],
) -> dict[str, pa.DataType]:
    found = find_partition_columns(files)
    if files and partition_columns is not None and list(partition_columns) != found:
        raise InvalidArgumentError(
            f"partition_columns {list(partition_columns)} differ from those of {location.display}, {found}. Leave "
            "partition_columns out, or rewrite the dataset with write_dataset(mode='overwrite')."
        )
    names = found if files else list(partition_columns or [])
    # A record without files means that someone removed them: the types then come from the source.
    record = read_record(location) if files else {}
    types = {name: to_value_type(record.get(name) or source_types.get(name) or pa.string()) for name in names}
    for name, data_type in types.items():
        check_partition_type(data_type, name)
    return types


def _unify_schemas(
    location: Location, files: Sequence[DataFile], summaries: Summaries, partition_columns: Sequence[str]
) -> pa.Schema:
    numbers, first = np.unique(summaries.schema_numbers, return_index=True)
    # The first file decides on order and metadata.
    by_file = sorted(zip(first.tolist(), numbers.tolist(), strict=True))
    schemas = [summaries.schemas[number] for _, number in by_file]
    return unify_schemas(schemas, [location.to_display(files[at].rel) for at, _ in by_file], partition_columns)


def _make_template(footer: Footer, schema: pa.Schema, file_schema: pa.Schema) -> Template:
    # Key-value metadata of a file that holds partition columns describes columns that new files lack.
    has_partition_columns = len(schema) > len(file_schema)
    return Template(
        None if has_partition_columns else dict(footer.metadata.metadata or {}),
        derive_new_file_options(footer),
        find_unwritable_column(footer.metadata),
        find_bloom_filter_columns(footer) & {*file_schema.names},
        bool(footer.int96_columns),
    )


def load_existing(location: Location, keys: Sequence[str] = (), *, refuse_nested: bool = False) -> Target:
    """Take a snapshot of a dataset that must exist, without footers: not all callers hold the lock."""
    target = load_target(location, keys, None, {}, refuse_nested=refuse_nested)
    if target.schema is None:
        raise make_no_files_error(location)
    _check_links(location, target.files)
    return replace(target, footers={})


def _check_links(location: Location, files: Sequence[DataFile]) -> None:
    """Refuse a file that a link makes appear twice, because its rows would count as duplicates."""
    first: dict[str, str] = {}
    for file in files:
        other = first.setdefault(file.real or location.to_path(file.rel), file.rel)
        if other != file.rel:
            raise UnsupportedFileError(
                f"{location.to_display(other)} and {location.to_display(file.rel)} are the same file, through a "
                "link. Remove the link, or move it out of the dataset."
            )


def make_no_files_error(location: Location) -> TargetPathError:
    """Make the error for a folder without data files."""
    return TargetPathError(f"There are no Parquet files below {location.display}. Check the path.")


def check_listing(target: Target) -> None:
    """Refuse to publish over a dataset that another program changed since it was listed (C6)."""
    changed = find_changed_files(target)
    if changed:
        raise ConcurrentWriteError(
            f"{target.location.to_display(min(changed))} was changed by another program while the merge was being "
            "prepared. Nothing was published; run the merge again."
        )


def find_changed_files(target: Target) -> set[str]:
    """Find the files that are new, other or gone since the dataset was listed; paths are relative to it."""
    # An enclosing dataset may be new too. On object stores, that check costs requests: only a first write does it.
    if target.location.store.is_local or not target.files:
        check_above(target.location, refuse_nested=True)
    return _compare(_list_identities_of(target.files), list_identities(target.location))


def compare_files(before: Iterable[DataFile], after: Iterable[DataFile]) -> set[str]:
    """Find the files that are new, other or gone in the second of two listings."""
    return _compare(_list_identities_of(before), _list_identities_of(after))


def _list_identities_of(files: Iterable[DataFile]) -> dict[str, str]:
    return {file.rel: file.identity for file in files}


def _compare(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {rel for rel, _ in before.items() ^ after.items()} if before != after else set()


def read_record(location: Location) -> dict[str, pa.DataType]:
    """Read the recorded types of partition columns; empty if there is no record."""
    path = f"{choose_control_folder(location)}/{PARTITION_RECORD}"
    data = location.store.read_small(path)
    if data is None:
        return {}
    try:
        schema = decode_schema(load_json(data)["schema"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UnreadableFileError(
            f"{path} is damaged: {error}. Remove it; the types of the partition columns then come from the source."
        ) from error
    return {field.name: field.type for field in schema}


def make_record(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Describe partition types: `columns` for people, `schema` for `read_record`."""
    encoded = encode_schema(pa.schema(list(types.items())))
    return {"columns": {name: str(data_type) for name, data_type in types.items()}, "schema": encoded}
