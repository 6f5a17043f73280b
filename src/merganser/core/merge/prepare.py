"""Preparation: a source is validated against a snapshot of its target, and each partition gets its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from merganser.core.dataset.listing import find_partition_columns, list_files
from merganser.core.dataset.snapshot import load_target, make_record, read_record
from merganser.core.dataset.target import Target
from merganser.core.merge.scope import check_source, make_scope
from merganser.core.model.casts import make_operation_field
from merganser.core.model.engine import SourceT
from merganser.core.model.option_checks import OPERATIONS
from merganser.core.model.options import check_order
from merganser.core.model.partitions import UNKNOWN, check_partition_type, list_tokens, make_folder_name, render
from merganser.core.model.projection import drop_operation_column, find_projection, uses_column
from merganser.core.model.schema import check_columns, check_types, check_unique, to_stored_schema, to_value_type
from merganser.core.model.strategy import Action, MergePolicy, find_rule
from merganser.core.model.validation import (
    check_duplicate_keys,
    check_insert_columns,
    check_key_columns,
    check_null_keys,
    check_order_columns,
    check_partition_columns,
    check_required,
    check_storable,
    check_supported_types,
)
from merganser.errors import InvalidArgumentError, PartitionValueError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from merganser.core.merge.scope import Scope
    from merganser.core.model.engine import Engine, GivenT, MatchesT, SourceFacts
    from merganser.core.model.options import Options, Request
    from merganser.core.model.partitions import Unknown
    from merganser.core.model.projection import Projection
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


@dataclass(frozen=True)
class PreparedMerge(Generic[SourceT]):
    """A validated source beside the snapshot it will be merged into; `folders` are those of `facts.partitions`."""

    handle: SourceT
    source_count: int
    facts: SourceFacts
    policy: MergePolicy
    # The columns that rows of new files take from the source.
    insert_columns: frozenset[str]
    target: Target
    schema: pa.Schema
    folders: list[str]
    partition_record: Mapping[str, Any] | None
    scope: Scope | None = None


def prepare(
    engine: Engine[GivenT, SourceT, MatchesT],
    given: GivenT,
    location: Location,
    request: Request,
    staging: Staging | None,
) -> PreparedMerge[SourceT]:
    """Validate the source against the target; what comes out may be merged."""
    keys, options = request.keys, request.options
    have = engine.read_schema(given)
    check_unique(have, "source")
    check_key_columns(have, keys, "source")
    types = {field.name: field.type for field in have if uses_column(request, field.name)}
    target = load_target(location, keys, options.partition_columns, types, engine.run_tasks, refuse_nested=True)
    if staging is None:
        # Without the lock, files may be replaced while they are looked at.
        target = replace(target, footers={})
    schema = target.schema
    have = drop_operation_column(have, schema, options)
    if schema is None:
        check_supported_types(have, "source")
        check_storable(have)
        schema = to_stored_schema(have, target.partition_columns)
    _check_partition_columns(target.partition_columns, schema)
    order = "dedup_order_by" if options.dedup_order_by else "sequence_column"
    check_order_columns(schema, request.order_by, order, "target" if target.files else "source")
    needs = find_projection(request, schema, target.partition_columns)
    goal = _project_schema(have, schema, needs, options)
    check_order(request, is_ordered=engine.is_ordered(given))
    handle = engine.conform(given, goal, staging)
    bounds = target.get_bounds(keys) if target.files and keys else None
    partitions = target.partition_columns if set(target.partition_columns) <= needs.columns else []
    terms = needs.policy
    facts = engine.collect_facts(handle, keys, partitions, None if request.deduplicates else bounds, terms)
    source_count = facts.rows
    check_null_keys(facts.null_keys)
    # Rows that delete by one key all mean the same, so any of them will do.
    if request.deduplicates or (facts.duplicate_keys and terms.rule.matched is Action.DELETE):
        handle = engine.deduplicate(handle, keys, request.order_by)
        facts = engine.collect_facts(handle, keys, partitions, bounds, terms)
    check_duplicate_keys(facts, terms.rule)
    required = target.required | {field.name for field in schema if not field.nullable}
    check_required(facts, sorted(required & (terms.columns | needs.insert_columns)))
    if terms.rule.inserts:
        check_insert_columns(sorted(required - needs.insert_columns))
    scope = None if options.scope is None else make_scope(options.scope, target.partition_types)
    if scope is not None:
        check_source(scope, facts.partitions)
    # Recorded with the first write of a source that has them; then the record holds.
    stale = set(target.partition_columns) != set(read_record(location)) or not target.files
    told = len(partitions) == len(target.partition_columns)
    record = make_record(target.partition_types) if stale and told else None
    folders = _assign_folders(target, facts) if needs.appends else []
    return PreparedMerge(
        handle, source_count, facts, terms, needs.insert_columns, target, schema, folders, record, scope
    )


def _project_schema(have: pa.Schema, schema: pa.Schema, projection: Projection, options: Options) -> pa.Schema:
    """Check the columns that the source has, and say what those that are needed are to become."""
    check_columns(have, schema, projection.columns)
    goal = pa.schema([field for field in schema if field.name in projection.columns], schema.metadata)
    check_supported_types(pa.schema([have.field(name) for name in goal.names]), "source")
    check_supported_types(schema, "target")
    check_types(have, goal)
    if options.operation_column is None:
        return goal
    return goal.append(make_operation_field(options.operation_column, options.operation_values or OPERATIONS))


def prepare_overwrite(
    engine: Engine[GivenT, SourceT, MatchesT], given: GivenT, location: Location, options: Options, staging: Staging
) -> PreparedMerge[SourceT]:
    """Take the source's own schema: nothing of the target but its files matters any more (O2)."""
    have = engine.read_schema(given)
    check_unique(have, "source")
    check_supported_types(have, "source")
    check_storable(have)
    found = list_files(location, refuse_nested=True)
    columns = options.partition_columns
    if columns is None:
        columns = [name for name in find_partition_columns(found) if name in have.names]
    _check_partition_columns(columns, have)
    types = {name: to_value_type(have.field(name).type) for name in columns}
    for name, kind in types.items():
        check_partition_type(kind, name)
    schema = to_stored_schema(have, columns)
    handle = engine.conform(given, schema, staging)
    terms = MergePolicy(find_rule("insert"), frozenset())
    facts = engine.collect_facts(handle, [], columns, None, terms)
    check_required(facts, [field.name for field in have if not field.nullable])
    target = Target(location=location, files=tuple(found), partition_types=types)
    everything = frozenset(have.names)
    folders = _assign_folders(target, facts)
    return PreparedMerge(handle, facts.rows, facts, terms, everything, target, schema, folders, make_record(types))


def _check_partition_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    check_partition_columns(schema, columns, "source")
    hidden = [name for name in columns if name.startswith(".")]
    if hidden:
        message = (
            f"Partition column {hidden[0]!r} begins with a dot, so its folders would be hidden. Rename the column."
        )
        raise PartitionValueError(message)
    if columns and len(columns) == len(schema.names):
        message = "Every column is a partition column, so files would have none. Leave at least one out."
        raise InvalidArgumentError(message)


def _assign_folders(target: Target, facts: SourceFacts) -> list[str]:
    """Give each partition of the source its folder: the one that exists, however it is spelled, or a new one (H3)."""
    columns = target.partition_columns
    if not columns:
        return [""]
    known = _find_partition_folders(target)
    texts = [render(facts.partitions.column(name), name) for name in columns]
    folders = []
    for row, values in enumerate(list_tokens(facts.partitions, columns)):
        depth = next(depth for depth in range(len(columns), -1, -1) if depth == 0 or values[:depth] in known)
        new = [make_folder_name(columns[at], texts[at][row]) for at in range(depth, len(columns))]
        folders.append(known.get(values[:depth], "") + "".join(f"{name}/" for name in new))
    return folders


def _find_partition_folders(target: Target) -> dict[tuple[Hashable | Unknown, ...], str]:
    known: dict[tuple[Hashable | Unknown, ...], str] = {}
    one_each = {file.rel.rpartition("/")[0]: number for number, file in reversed(list(enumerate(target.files)))}
    for number in sorted(one_each.values()):
        file, values = target.files[number], target.partitions[number]
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


def format_null_partition(target: Target) -> str:
    """Give the folder of a file without rows: partition columns NULL, so that their names survive."""
    return "".join(f"{make_folder_name(name, None)}/" for name in target.partition_columns)
