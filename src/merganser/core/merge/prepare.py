"""Preparation: validate a source against a snapshot of its target, and assign each partition its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.dataset.key_bounds import make_key_bounds
from merganser.core.dataset.listing import find_partition_columns, list_dataset
from merganser.core.dataset.mixed_schemas import check_names_differ, check_one_schema
from merganser.core.dataset.snapshot import load_target, make_record, read_record
from merganser.core.dataset.statistics_cache import summarise_files
from merganser.core.dataset.target import Target
from merganser.core.merge.evolution import evolve_target
from merganser.core.merge.scope import check_source, make_scope
from merganser.core.model import validation
from merganser.core.model.casts import make_operation_field
from merganser.core.model.clause_source import derive_source, list_bounded_columns, needs_derivation
from merganser.core.model.engine import SourceSpec
from merganser.core.model.keys import NullSafeKeys
from merganser.core.model.option_checks import OPERATIONS
from merganser.core.model.options import Request, check_order, make_write_request
from merganser.core.model.partitions import UNKNOWN, check_partition_type, list_tokens, make_folder_name, render
from merganser.core.model.projection import drop_operation_column, find_projection, uses_column
from merganser.core.model.row_clauses import RESERVED_PREFIX
from merganser.core.model.schema import check_unique, to_new_schema, to_value_type
from merganser.core.model.schema_checks import check_columns, check_exact_columns, check_types
from merganser.core.model.strategy import MergePolicy, find_clauses, find_rule
from merganser.errors import InvalidArgumentError, PartitionValueError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from merganser.core.dataset.key_bounds import KeyBounds
    from merganser.core.merge.scope import Scope
    from merganser.core.model.engine import ConformedSource, Engine, OpenedSource, SourceFacts
    from merganser.core.model.options import Options
    from merganser.core.model.partitions import Unknown
    from merganser.core.model.projection import Projection
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMerge:
    """A validated source, and the snapshot of the target that it will be merged into.

    `source_count` counts rows before duplicates were dropped. Rows of new files take `insert_columns` from the source.
    `folders` are those of `facts.partitions`.
    """

    request: Request
    spec: SourceSpec
    source: ConformedSource
    source_count: int
    facts: SourceFacts
    insert_columns: frozenset[str]
    target: Target
    schema: pa.Schema
    folders: Sequence[str]
    partition_record: Mapping[str, Any] | None
    scope: Scope | None = None

    @property
    def policy(self) -> MergePolicy:
        """The strategy and what options change in it."""
        return self.spec.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMerge:
    """A merge before a row is read: the snapshot of its target, and which columns of the source go where."""

    request: Request
    target: Target
    schema: pa.Schema
    projection: Projection
    spec: SourceSpec
    has_unique_keys: bool
    is_ordered: bool


def prepare(
    engine: Engine, opened: OpenedSource, location: Location, request: Request, staging: Staging | None
) -> PreparedMerge:
    """Validate the source against the target, so that it can be merged."""
    fitted = fit_source(engine, opened, location, request, staging)
    return check_rows(fitted, opened.conform(fitted.spec))


def derive_clauses(opened: OpenedSource, request: Request) -> tuple[OpenedSource, Request]:
    """Give the source the columns that the clauses of a request need; a strategy needs no others."""
    if not (needs_derivation(request.clauses, request.on) or request.applies_in_order):
        return opened, request
    check_unique(opened.schema, "source")
    names = [name for name in request.order_by if name in opened.schema.names]
    derived = derive_source(request.clauses, request.on, names, opened.schema, request.constants)
    if request.applies_in_order:
        derived = derived.mark_inserts(request.clauses)
    return opened.derive(derived), replace(request, derived=derived)


def fit_source(
    engine: Engine,
    opened: OpenedSource,
    location: Location,
    request: Request,
    staging: Staging | None,
    *,
    before: Target | None = None,
) -> FittedMerge:
    """Validate the columns of the source against the target, of which an earlier snapshot may be known."""
    target, source_schema = _load_target(engine, opened, location, request, before)
    evolves = request.options.schema_mode == "evolve"
    if staging is None:
        # Without the lock, files may be replaced while they are read.
        target = replace(target, footers={})
    elif evolves:
        check_names_differ(target)
    else:
        # A plan reports what differs; a merge refuses it.
        check_one_schema(target, ", or pass schema_mode='evolve'")
    target = evolve_target(target, source_schema, request)
    schema = target.schema
    if schema is None:
        validation.check_supported_types(source_schema, "source")
        validation.check_storable(source_schema)
        schema = to_new_schema(_drop_reserved(source_schema), target.partition_columns)
    _check_partition_columns(target.partition_columns, schema)
    if target.schema is not None:
        rows = source_schema if request.derived is None else request.derived.schema_before
        check_exact_columns(request.clauses, rows, target.schema)
    order = "dedup_order_by" if request.options.dedup_order_by else "sequence_column"
    validation.check_order_columns(schema, request.order_by, order, "target" if target.files else "source")
    required = _find_required(target, schema)
    projection = find_projection(request, source_schema, schema, target.partition_columns, required)
    is_partitioned = set(target.partition_columns) <= projection.columns
    spec = SourceSpec(
        schema=_project_schema(
            source_schema, target, schema, projection, request.options, has_clauses=not request.has_strategy
        ),
        keys=NullSafeKeys(request.keys) if request.options.null_keys == "match" else request.keys,
        partition_columns=target.partition_columns if is_partitioned else [],
        policy=projection.policy,
        store=location.store,
        staging=staging,
    )
    check_order(request, is_ordered=opened.is_ordered)
    has_unique_keys = not request.keys or list(opened.unique_columns) == list(request.keys)
    return FittedMerge(
        request=request,
        target=target,
        schema=schema,
        projection=projection,
        spec=spec,
        has_unique_keys=has_unique_keys,
        is_ordered=opened.is_ordered,
    )


def check_rows(fitted: FittedMerge, source: ConformedSource) -> PreparedMerge:
    """Validate the rows of the source, and assign each partition its folder."""
    request, target, projection = fitted.request, fitted.target, fitted.projection
    source, source_count, facts = _check_keys(source, fitted)
    _check_required_columns(fitted, facts)
    is_partitioned = set(target.partition_columns) <= projection.columns
    return PreparedMerge(
        request=request,
        spec=fitted.spec,
        source=source,
        source_count=source_count,
        facts=facts,
        insert_columns=projection.insert_columns,
        target=target,
        schema=fitted.schema,
        folders=_assign_folders(target, facts) if projection.appends else [],
        partition_record=_make_missing_record(target) if is_partitioned else None,
        scope=_find_scope(request.options, target, facts),
    )


def _load_target(
    engine: Engine, opened: OpenedSource, location: Location, request: Request, before: Target | None
) -> tuple[Target, pa.Schema]:
    """Read the target's files, and the source's columns without the operation column."""
    schema, options = opened.schema, request.options
    check_unique(schema, "source")
    validation.check_key_columns(schema, request.keys, "source")
    types = {field.name: field.type for field in schema if uses_column(request, field.name)}
    target = load_target(
        location,
        request.keys,
        options.partition_columns,
        types,
        partial(summarise_files, run_tasks=engine.run_tasks, before=before),
        refuse_nested=True,
        bounded=list_bounded_columns(request.clauses),
    )
    return target, drop_operation_column(schema, target.schema, options)


def _drop_reserved(schema: pa.Schema) -> pa.Schema:
    """Drop the columns that only clauses use."""
    return pa.schema([field for field in schema if not field.name.startswith(RESERVED_PREFIX)], schema.metadata)


def _find_required(target: Target, schema: pa.Schema) -> frozenset[str]:
    return frozenset(target.required | {field.name for field in schema if not field.nullable})


def _project_schema(
    source: pa.Schema,
    target: Target,
    stored: pa.Schema,
    projection: Projection,
    options: Options,
    *,
    has_clauses: bool = False,
) -> pa.Schema:
    evolves, path = options.schema_mode == "evolve", target.location.display
    # Columns that the merge does not use are not added to the target; clauses list those that they use.
    known = {*stored.names} if evolves or has_clauses else {*source.names}
    given = pa.schema([field for field in source if field.name in known])
    check_columns(given, stored, projection.columns, None if evolves else path)
    schema = pa.schema([field for field in stored if field.name in projection.columns], stored.metadata)
    validation.check_supported_types(pa.schema([source.field(name) for name in schema.names]), "source")
    validation.check_supported_types(stored, "target")
    check_types(source, schema, path, evolves=evolves)
    for field in source:
        if field.name.startswith(RESERVED_PREFIX):
            schema = schema.append(field)
    if options.operation_column is None:
        return schema
    return schema.append(make_operation_field(options.operation_column, options.operation_values or OPERATIONS))


def _check_keys(source: ConformedSource, fitted: FittedMerge) -> tuple[ConformedSource, int, SourceFacts]:
    """Check the keys of the source and drop duplicates if the request allows; count its rows before and after."""
    request, target, keys = fitted.request, fitted.target, fitted.spec.keys
    bounds = make_key_bounds(target, keys) if target.files and keys else None
    drops_rows = request.deduplicates or request.applies_in_order
    facts = _collect_facts(source, None if drops_rows else bounds)
    count = facts.rows
    validation.check_source_keys(facts, keys)
    duplicates, sample = 0, pa.table({})
    if not drops_rows and not fitted.has_unique_keys:
        duplicates, sample = source.find_duplicate_keys()
    # Rows that delete by one key are equivalent, so any of them will do.
    if request.deduplicates or (duplicates and request.clauses == find_clauses("delete")):
        source = source.deduplicate(request.order_by)
        facts = _collect_facts(source, bounds)
    elif request.applies_in_order:
        source = source.fold_keys(is_ordered=fitted.is_ordered)
        facts = _collect_facts(source, bounds)
    elif request.allows_repeated_keys:
        facts = replace(facts, repeated_keys=duplicates)
    else:
        validation.check_duplicate_keys(duplicates, sample, request.rule, has_clauses=not request.has_strategy)
    return source, count, facts


def _collect_facts(source: ConformedSource, bounds: KeyBounds | None) -> SourceFacts:
    if bounds is None:
        return source.collect_facts(None)
    facts = source.collect_facts(bounds.table)
    return replace(facts, candidates=bounds.to_group_mask(facts.candidates))


def _check_required_columns(fitted: FittedMerge, facts: SourceFacts) -> None:
    required, projection = _find_required(fitted.target, fitted.schema), fitted.projection
    if fitted.request.derived is None:
        # The rows of a derived source that are not inserted may be NULL.
        validation.check_required(facts, sorted(required & (projection.policy.columns | projection.insert_columns)))
    if projection.policy.rule.inserts:
        validation.check_insert_columns(sorted(required - projection.insert_columns))


def _find_scope(options: Options, target: Target, facts: SourceFacts) -> Scope | None:
    if options.scope is None:
        return None
    scope = make_scope(options.scope, target.partition_types)
    check_source(scope, facts.partitions)
    return scope


def _make_missing_record(target: Target) -> Mapping[str, Any] | None:
    """Make the record of the partition columns, which the first write with them creates."""
    if target.files and set(target.partition_columns) == set(read_record(target.location)):
        return None
    return make_record(target.partition_types)


def prepare_overwrite(opened: OpenedSource, location: Location, options: Options, staging: Staging) -> PreparedMerge:
    """Prepare with the source's own schema: an overwrite uses nothing of the target but its files (O2)."""
    source_schema = opened.schema
    check_unique(source_schema, "source")
    validation.check_supported_types(source_schema, "source")
    validation.check_storable(source_schema)
    files, summary_files = list_dataset(location, refuse_nested=True)
    columns = options.partition_columns
    if columns is None:
        columns = [name for name in find_partition_columns(files) if name in source_schema.names]
    _check_partition_columns(columns, source_schema)
    types = {name: to_value_type(source_schema.field(name).type) for name in columns}
    for name, data_type in types.items():
        check_partition_type(data_type, name)
    spec = SourceSpec(
        schema=to_new_schema(source_schema, columns),
        keys=[],
        partition_columns=columns,
        policy=MergePolicy(rule=find_rule("insert"), columns=frozenset()),
        store=location.store,
        staging=staging,
    )
    source = opened.conform(spec)
    facts = source.collect_facts(None)
    validation.check_required(facts, [field.name for field in source_schema if not field.nullable])
    target = Target(location=location, files=tuple(files), summary_files=tuple(summary_files), partition_types=types)
    return PreparedMerge(
        request=make_write_request(options),
        spec=spec,
        source=source,
        source_count=facts.rows,
        facts=facts,
        insert_columns=frozenset(source_schema.names),
        target=target,
        schema=spec.schema,
        folders=_assign_folders(target, facts),
        partition_record=make_record(types),
    )


def _check_partition_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    validation.check_partition_columns(schema, columns, "source")
    hidden = [name for name in columns if name.startswith(".")]
    if hidden:
        raise PartitionValueError(
            f"Partition column {hidden[0]!r} begins with a dot, so its folders would be hidden. Rename the column."
        )
    if columns and len(columns) == len(schema.names):
        message = "Every column is a partition column, so files would have none. Leave at least one out."
        raise InvalidArgumentError(message)


def _assign_folders(target: Target, facts: SourceFacts) -> list[str]:
    """Find the existing folder of each partition of the source, however it is spelled, or name a new one (H3)."""
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
        # A column that occurs twice in a path has the value of its last folder.
        if depth == len(values):
            for prefix, folder in folders.items():
                known.setdefault(prefix, folder)
    return known


def format_null_partition(target: Target) -> str:
    """Name the folder of a file without rows: partition columns are NULL, so that their names survive."""
    return "".join(f"{make_folder_name(name, None)}/" for name in target.partition_columns)
