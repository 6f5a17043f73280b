"""Preparation: a source is validated against a snapshot of its target, and each partition gets its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from merganser.core.dataset import Target, list_files, load_target, make_record, partition_columns_of, read_record
from merganser.core.engine import H
from merganser.core.errors import InvalidArgumentError, PartitionValueError
from merganser.core.hive import UNKNOWN, check_partition_type, folder_name, render, tokens
from merganser.core.options import check_order
from merganser.core.schema import check_columns, check_types, check_unique, declared
from merganser.core.validate import (
    check_carried,
    check_duplicate_keys,
    check_key_columns,
    check_null_keys,
    check_order_columns,
    check_required,
    check_storable,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import pyarrow as pa

    from merganser.core.engine import Engine, G, M, SourceFacts
    from merganser.core.hive import Unknown
    from merganser.core.options import Options, Request
    from merganser.core.staging import Staging
    from merganser.core.store import Location


@dataclass(frozen=True)
class Prepared(Generic[H]):
    """A validated source beside the snapshot it will be merged into; `folders` are those of `facts.partitions`."""

    handle: H
    source_count: int
    facts: SourceFacts
    target: Target
    schema: pa.Schema
    folders: list[str]
    record: Mapping[str, Any] | None


def prepare(
    engine: Engine[G, H, M], given: G, location: Location, request: Request, staging: Staging | None
) -> Prepared[H]:
    """Validate the source against the target; what comes out may be merged."""
    keys, rule, options = request.keys, request.rule, request.options
    have = engine.schema(given)
    check_unique(have, "source")
    check_key_columns(have, keys, "source")
    types = {field.name: field.type for field in have}
    target = load_target(location, keys, options.partition_columns, types, engine.each)
    schema = target.schema
    check_carried(have, "source")
    if schema is None:
        check_storable(have)
        schema = have
    else:
        check_carried(schema, "target")
        check_columns(have, schema)
        check_types(have, schema)
    _check_partition_columns(target.partition_columns, schema)
    check_order_columns(schema, options.dedup_order_by)
    check_order(request, ordered=engine.ordered(given))
    handle = engine.conform(given, schema, staging)
    bounds = target.bounds(keys) if target.files and keys else None
    facts = engine.facts(handle, keys, target.partition_columns, None if rule.one_row_per_key else bounds)
    source_count = facts.rows
    check_null_keys(facts.null_keys)
    if rule.one_row_per_key:
        handle = engine.deduplicate(handle, keys, options.dedup_order_by)
        facts = engine.facts(handle, keys, target.partition_columns, bounds)
    check_duplicate_keys(facts)
    check_required(facts, sorted(target.required | {field.name for field in schema if not field.nullable}))
    # Recorded with the first write; then the record holds.
    stale = set(target.partition_columns) != set(read_record(location)) or not target.files
    record = make_record(target.partition_types) if stale else None
    return Prepared(handle, source_count, facts, target, schema, _folders(target, facts), record)


def prepare_overwrite(
    engine: Engine[G, H, M], given: G, location: Location, options: Options, staging: Staging
) -> Prepared[H]:
    """Take the source's own schema: nothing of the target but its files matters any more (O2)."""
    have = engine.schema(given)
    check_unique(have, "source")
    check_carried(have, "source")
    check_storable(have)
    found = list_files(location)
    columns = options.partition_columns
    if columns is None:
        columns = [name for name in partition_columns_of(found) if name in have.names]
    _check_partition_columns(columns, have)
    types = {name: declared(have.field(name).type) for name in columns}
    for name, kind in types.items():
        check_partition_type(kind, name)
    handle = engine.conform(given, have, staging)
    facts = engine.facts(handle, [], columns, None)
    check_required(facts, [field.name for field in have if not field.nullable])
    target = Target(location, tuple(found), (), types, None, None)
    return Prepared(handle, facts.rows, facts, target, have, _folders(target, facts), make_record(types))


def _check_partition_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    missing = [name for name in columns if name not in schema.names]
    if missing:
        message = (
            f"Partition column {missing[0]!r} is missing from the source. Its columns are: {', '.join(schema.names)}."
        )
        raise InvalidArgumentError(message)
    hidden = [name for name in columns if name.startswith(".")]
    if hidden:
        message = (
            f"Partition column {hidden[0]!r} begins with a dot, so its folders would be hidden. Rename the column."
        )
        raise PartitionValueError(message)
    if columns and len(columns) == len(schema.names):
        message = "Every column is a partition column, so files would have none. Leave at least one out."
        raise InvalidArgumentError(message)


def _folders(target: Target, facts: SourceFacts) -> list[str]:
    """Give each partition of the source its folder: the one that exists, however it is spelled, or a new one (H3)."""
    columns = target.partition_columns
    if not columns:
        return [""]
    known = _known_folders(target)
    texts = [render(facts.partitions.column(name), name) for name in columns]
    folders = []
    for row, values in enumerate(tokens(facts.partitions, columns)):
        depth = next(depth for depth in range(len(columns), -1, -1) if depth == 0 or values[:depth] in known)
        new = [folder_name(columns[at], texts[at][row]) for at in range(depth, len(columns))]
        folders.append(known.get(values[:depth], "") + "".join(f"{name}/" for name in new))
    return folders


def _known_folders(target: Target) -> dict[tuple[Hashable | Unknown, ...], str]:
    known: dict[tuple[Hashable | Unknown, ...], str] = {}
    for file, values in zip(target.files, target.partitions, strict=True):
        if list(file.folders) != target.partition_columns or UNKNOWN in values:
            continue
        path, depth = "", 0
        folders = {}
        for segment in file.rel.split("/")[:-1]:
            path += f"{segment}/"
            name, equals, _ = segment.partition("=")
            depth += bool(name and equals)
            if depth:
                folders[values[:depth]] = path
        # A column that stands twice in a path means its last folder only.
        if depth == len(values):
            for prefix, folder in folders.items():
                known.setdefault(prefix, folder)
    return known


def empty_folder(target: Target) -> str:
    """Give the folder of a file without rows: partition columns NULL, so that their names survive."""
    return "".join(f"{folder_name(name, None)}/" for name in target.partition_columns)
