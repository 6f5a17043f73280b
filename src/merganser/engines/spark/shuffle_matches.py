"""Tasks of the shuffle mode that match keys, and change the files that hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import align_chunks, null_array, take
from merganser.core.model.casts import conform_schema
from merganser.core.model.engine import OTHER_PARTITION, SAMPLE_SIZE, UNKNOWN_PARTITION, MatchCounts
from merganser.core.model.keys import (
    SOURCE_ROW,
    join_keys,
    list_key_names,
    name_key_columns,
    number_rows,
    to_canonical_keys,
)
from merganser.core.model.strategy import Action
from merganser.core.rows.audit_rows import keep_tables, list_changed_rows
from merganser.core.rows.clause_rows import find_missing, list_value_columns
from merganser.core.rows.key_scan import POSITION_COLUMNS, make_key_schema, read_key_batches
from merganser.core.rows.match_actions import compare_values, find_single_matches
from merganser.core.rows.matches import Matches, count_groups
from merganser.core.rows.table_source import rewrite_rows
from merganser.engines.spark import columns as col
from merganser.engines.spark.exchange import Kind, decode_inputs, decode_packet, receive, send, split_rows
from merganser.engines.spark.jobs import encode_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import AuditSpec, RewriteJob, ScanFile, SourceSpec
    from merganser.core.model.strategy import MergePolicy
    from merganser.core.storage.staging import Staging
    from merganser.engines.spark.exchange import Received
    from merganser.engines.spark.staged_source import SourceReader

    Batches = Iterator[pa.RecordBatch]
    Rows = npt.NDArray[np.int64]

from merganser.engines.spark.shuffle_keys import (
    describe_rows,
    drop_null_keys,
    hash_to_groups,
    list_flag_columns,
    number_source_rows,
)

_COUNT_SCHEMA = pa.schema(
    [(col.FILE, pa.int32()), (col.ROW_GROUP, pa.int32())]
    + [(name, pa.int64()) for name in ("rows", "replaced", "removed")]
)
_NO_GROUP = -1


def emit_source_keys(
    reader: SourceReader, spec: SourceSpec, partitions: pa.Table, groups: int, batches: Batches
) -> Batches:
    """Send the keys of source rows to their groups, each with its number and partition, and whether it is excluded."""
    names = [*spec.keys, *partitions.column_names, *list_flag_columns(spec.policy)]
    for file, start, rows in reader.read_batches(decode_inputs(batches), list(dict.fromkeys(names))):
        found = describe_rows(file, np.arange(start, start + rows.num_rows), rows, partitions, spec.policy)
        keys = to_canonical_keys(rows, spec.keys)
        table = pa.table([*keys.columns, *found.columns], names=[*keys.column_names, *found.column_names])
        yield from send(Kind.KEYS, split_rows(table, hash_to_groups(table, keys.column_names, groups)))


def emit_target_keys(spec: SourceSpec, types: Sequence[pa.DataType], groups: int, batches: Batches) -> Batches:
    """Send the keys of target files to their groups, each with its position."""
    schema = make_key_schema(types)
    for _, file in decode_inputs(batches):
        for batch in read_key_batches(spec.store, [file], spec.keys, schema):
            table = drop_null_keys(pa.Table.from_batches([batch]))
            yield from send(
                Kind.TARGET_KEYS, split_rows(table, hash_to_groups(table, list_key_names(spec.keys), groups))
            )


@dataclass(frozen=True, slots=True)
class MatchRules:
    """What decides about a match by its key: the policy, and the partition of each target file if rows may move.

    If source keys `repeat`, a target row may have several matches, which are compared.
    """

    policy: MergePolicy
    file_partitions: npt.NDArray[np.int64] | None
    repeats: bool = False

    @classmethod
    def of(cls, policy: MergePolicy, files: Sequence[ScanFile], partitions: pa.Table, repeats: bool) -> MatchRules:  # noqa: FBT001
        """Find the partitions of files."""
        if not (files and policy.rule.replaces and policy.takes_partition and partitions.num_columns):
            return cls(policy, None, repeats)
        found = np.full(max(file.number for file in files) + 1, OTHER_PARTITION, np.int64)
        found[[file.number for file in files]] = [file.partition for file in files]
        return cls(policy, found, repeats)

    def assign_actions(self, file: npt.NDArray[np.int32], source: pa.Table) -> npt.NDArray[np.int8]:
        """Assign actions to matches by their target files and source rows."""
        actions = np.full(len(file), self.policy.rule.matched, np.int8)
        if self.file_partitions is not None:
            expected = self.file_partitions[file]
            actions[(expected != UNKNOWN_PARTITION) & (source.column(col.PARTITION).to_numpy() != expected)] = (
                Action.MOVE
            )
        if self.policy.delete_column is not None:
            actions[source.column(col.IS_EXCLUDED).to_numpy()] = Action.DELETE
        return actions


def join_group(types: Sequence[pa.DataType], rules: MatchRules, batches: Batches) -> Batches:
    """Match the keys of a group; matches and new rows go to the files of their source rows, counts to the driver."""
    received = receive(batches)
    if received is None:
        return
    names, policy = name_key_columns(len(types)), rules.policy
    source_schema = pa.schema([*zip(names, types, strict=True), *col.SOURCE_SCHEMA])
    source = align_chunks(received.read(Kind.KEYS, source_schema))
    target = received.read(Kind.TARGET_KEYS, make_key_schema(types))
    keys = source.select(names).append_column(SOURCE_ROW, number_rows(source.num_rows))
    found = join_keys(target.to_reader(), keys, POSITION_COLUMNS)
    at = found.column(SOURCE_ROW).to_numpy()
    rows = take(source.select(col.SOURCE_SCHEMA.names), at)
    actions = rules.assign_actions(found.column(col.FILE).to_numpy(), rows)
    positions = [found.column(name) for name in POSITION_COLUMNS]
    matches = pa.table([*positions, *rows.columns, pa.array(actions)], schema=col.MATCH_SCHEMA)
    new = source.slice(0, 0)
    if policy.rule.inserts:
        is_new = ~source.column(col.IS_EXCLUDED).to_numpy()
        is_new[at] = False
        new = take(source, np.flatnonzero(is_new))
    if rules.repeats:
        repeated = _find_repeated_rows(new, names).select(col.NEW_SCHEMA.names)
        yield from send(Kind.REPEATED, [(0, 0, repeated)])
    new = new.select(col.NEW_SCHEMA.names)
    yield from send(Kind.NEW_ROWS, split_rows(new, new.column(col.SOURCE_FILE).to_numpy()))
    yield from _send_matches(matches)
    # Where values are compared, that decides about matches; they are counted after it.
    is_open = policy.compares_values or rules.repeats
    yield from _send_counts(matches.slice(0, 0) if is_open else matches, new.num_rows)


def _find_repeated_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Find the first row of each key that several rows have."""
    numbered = rows.append_column(SOURCE_ROW, number_rows(rows.num_rows))
    groups = numbered.group_by(keys).aggregate([(SOURCE_ROW, "count"), (SOURCE_ROW, "min")])
    several = groups.filter(pc.greater(groups.column(f"{SOURCE_ROW}_count"), 1))
    return take(rows, np.sort(several.column(f"{SOURCE_ROW}_min").to_numpy()))


def number_repeated_rows(batches: Batches) -> Batches:
    """Number new source rows whose key is not the only one."""
    for batch in batches:
        for packet in batch.column(col.PACKET):
            rows = decode_packet(packet.as_py(), col.NEW_SCHEMA)
            numbers = number_source_rows(rows.column(col.SOURCE_FILE).to_numpy(), rows.column(col.ROW).to_numpy())
            yield encode_result(0, numbers)


def _send_matches(matches: pa.Table) -> Batches:
    yield from send(Kind.MATCHES, split_rows(matches, matches.column(col.SOURCE_FILE).to_numpy()))


def _send_counts(matches: pa.Table, new_rows: int) -> Batches:
    """Send the counts of row groups to the task that adds them up; those of no row group are new and moved rows."""
    file, group, action = (matches.column(name).to_numpy() for name in (col.FILE, col.ROW_GROUP, col.ACTION))
    counts = count_groups(file, group, action, new_rows=new_rows, moved_sample=matches)
    columns = (counts.file, counts.row_group, counts.rows, counts.replaced, counts.removed)
    others = (_NO_GROUP, _NO_GROUP, new_rows, counts.moved, 0)
    arrays = [pa.array(np.concatenate([column, [one]])) for column, one in zip(columns, others, strict=True)]
    table = pa.table(arrays, names=_COUNT_SCHEMA.names).cast(_COUNT_SCHEMA)
    yield from send(Kind.COUNTS, [(0, 0, table)])


def add_counts(sample: pa.Table, batches: Batches) -> Batches:
    """Add up the counts of all tasks."""
    received = receive(batches)
    if received is None:
        return
    by = _COUNT_SCHEMA.names[:2]
    table = received.read(Kind.COUNTS, _COUNT_SCHEMA)
    sums = table.group_by(by).aggregate([(name, "sum") for name in _COUNT_SCHEMA.names[2:]])
    sums = sums.sort_by([(name, "ascending") for name in by])
    others, groups = sums.slice(0, 1), sums.slice(1)
    file, row_group, rows, replaced, removed = (column.to_numpy() for column in groups.columns)
    counts = MatchCounts(
        file=file,
        row_group=row_group,
        rows=rows,
        replaced=replaced,
        removed=removed,
        new_rows=others.column("rows_sum")[0].as_py(),
        moved=others.column("replaced_sum")[0].as_py(),
        moved_sample=sample,
    )
    yield encode_result(received.number, counts)


def sample_moved_rows(batches: Batches) -> Batches:
    """Find the first source rows of matches that move."""
    for batch in batches:
        for packet in batch.column(col.PACKET):
            matches = decode_packet(packet.as_py(), col.MATCH_SCHEMA)
            moved = matches.filter(pc.equal(matches.column(col.ACTION), int(Action.MOVE)))
            numbers = number_source_rows(moved.column(col.SOURCE_FILE).to_numpy(), moved.column(col.ROW).to_numpy())
            yield encode_result(0, np.unique(numbers)[:SAMPLE_SIZE])


def find_missing_rows(reader: SourceReader, spec: SourceSpec, batches: Batches) -> Batches:
    """Find the rows of a part of a file that change although they match nothing, and count them."""
    found = _receive_matches(reader, [], batches)
    if found is None:
        return
    received, _, _, matches = found
    missing = find_missing(matches, spec, received.inputs)
    count = len(missing.position)
    none, number = np.zeros(count, np.int64), np.full(count, -1)
    columns = [missing.file, missing.row_group, missing.position, number, none, none, none != 0, missing.action]
    table = pa.table(list(map(pa.array, columns)), names=col.MATCH_SCHEMA.names).cast(col.MATCH_SCHEMA)
    yield from send(Kind.MISSING, [(0, 0, table)])
    yield from _send_counts(table, 0)


def route_missing(reader: SourceReader, names: Sequence[str], places: GroupTasks, batches: Batches) -> Batches:
    """Send rows that change without a match to the tasks of their row groups; they have no source row."""
    schema = _make_value_schema(reader, names)
    nulls = schema.types[len(col.MATCH_SCHEMA) :]
    for batch in batches:
        for packet in batch.column(col.PACKET):
            rows = pa.Table.from_batches([decode_packet(packet.as_py(), col.MATCH_SCHEMA)])
            tasks = places.find(rows)
            rows, tasks = rows.filter(pa.array(tasks >= 0)), tasks[tasks >= 0]
            columns = [*rows.columns, *(null_array(rows.num_rows, data_type) for data_type in nulls)]
            yield from send(Kind.VALUES, split_rows(pa.table(columns, schema=schema), tasks))


@dataclass(frozen=True, slots=True)
class GroupTasks:
    """The task of each row group: its number in the job, by file and row group."""

    groups: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]

    @classmethod
    def of(cls, files: Sequence[ScanFile | RewriteJob]) -> GroupTasks:
        """Let the task of a file, or of a part of it, have its row groups."""
        pairs = [(int(one.number) << 32 | group, task) for task, one in enumerate(files) for group in one.groups]
        found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return cls(found[:, 0].copy(), found[:, 1].copy())

    def find(self, matches: pa.Table) -> npt.NDArray[np.int64]:
        """Find the tasks of matches, -1 where there is none."""
        file, group = (matches.column(name).to_numpy().astype(np.int64) for name in (col.FILE, col.ROW_GROUP))
        wanted = file << 32 | group
        at = np.minimum(np.searchsorted(self.groups, wanted), max(0, len(self.groups) - 1))
        return np.where(self.groups[at] == wanted, self.tasks[at], -1) if len(self.groups) else np.full(len(wanted), -1)


def fetch_values(
    reader: SourceReader,
    names: Sequence[str],
    places: GroupTasks,
    kept: bool,  # noqa: FBT001  tasks get theirs by position
    batches: Batches,
) -> Batches:
    """Send matches to the tasks of their row groups, each with some columns of its source row."""
    received = receive(batches)
    if received is None:
        return
    matches = received.read(Kind.MATCHES, col.MATCH_SCHEMA)
    if not kept:
        matches = matches.filter(pc.not_equal(matches.column(col.ACTION), int(Action.KEEP)))
    tasks = places.find(matches)
    matches, tasks = matches.filter(pa.array(tasks >= 0)), tasks[tasks >= 0]
    if not matches.num_rows:
        return
    values = reader.read_table(received.inputs, names) if names else pa.table({})
    taken = take(values, matches.column(col.ROW).to_numpy()).columns if names else []
    schema = _make_value_schema(reader, names)
    found = pa.table([*matches.columns, *taken], schema=schema)
    yield from send(Kind.VALUES, split_rows(found, tasks))


def _make_value_schema(reader: SourceReader, names: Sequence[str]) -> pa.Schema:
    """Make the schema of matches with columns of their source rows, which are numbered: they may have any name."""
    target = conform_schema(reader.schemas.select(names).target)
    return pa.schema([*col.MATCH_SCHEMA, *(pa.field(f"value_{at}", one) for at, one in enumerate(target.types))])


def _receive_matches(
    reader: SourceReader, names: Sequence[str], batches: Batches
) -> tuple[Received, pa.Table, pa.Table, Matches] | None:
    """Receive the matches of one file, and the values of their source rows."""
    received = receive(batches, _make_value_schema(reader, names))
    if received is None or received.values is None:
        return None
    width = len(col.MATCH_SCHEMA)
    sent = received.values.select(range(width))
    values = received.values.select(range(width, received.values.num_columns)).rename_columns(list(names))
    file, group, position, action = (
        sent.column(name).to_numpy() for name in (col.FILE, col.ROW_GROUP, col.POSITION, col.ACTION)
    )
    order = np.lexsort((position, group))
    matches = Matches(
        file=file[order],
        row_group=group[order],
        position=position[order],
        source_row=order,
        action=action[order],
        new=np.arange(0),
    )
    return received, sent, values, matches


def split_files(files: Sequence[ScanFile], max_rows: int) -> list[ScanFile]:
    """Split files into parts, by row groups, of about as many rows as one task may compare."""
    parts = []
    for file in files:
        part = np.cumsum([0, *(end - begin for begin, end in file.spans)])[:-1] // max_rows
        for number in np.unique(part):
            at = np.flatnonzero(part == number).tolist()
            groups, spans = [file.groups[one] for one in at], [file.spans[one] for one in at]
            is_whole = file.has_all_groups and len(at) == len(file.groups)
            parts.append(replace(file, groups=groups, spans=spans, has_all_groups=is_whole))
    return parts


def compare_rows(
    reader: SourceReader,
    names: Sequence[str],
    spec: SourceSpec,
    repeats: bool,  # noqa: FBT001  tasks get theirs by position
    batches: Batches,
) -> Batches:
    """Decide about the matches of a part of a file by comparing their values with the source rows."""
    found = _receive_matches(reader, names, batches)
    if found is None:
        return
    received, sent, values, matches = found
    if sent.num_rows:
        if spec.policy.rule.touches:
            action = compare_values(values, spec, matches, received.inputs, repeats=repeats)
            matches = replace(matches, action=action)
        if repeats:
            matches = matches.select(find_single_matches(matches))
        decided = take(align_chunks(sent), matches.source_row)
        decided = decided.set_column(decided.num_columns - 1, col.ACTION, pa.array(matches.action))
        yield from _send_matches(decided)
        yield from _send_counts(decided, 0)


def rewrite(
    reader: SourceReader,
    names: Sequence[str],
    policy: MergePolicy,
    staging: Staging,
    has_matches: bool,  # noqa: FBT001  tasks get theirs by position
    batches: Batches,
) -> Batches:
    """Stage one file with the rows that were sent for it."""
    found = _receive_matches(reader, names, batches)
    if found is not None:
        received, _, values, matches = found
        (job,) = received.inputs
        done = rewrite_rows(values, matches if has_matches else None, policy, job, staging=staging)
        yield encode_result(received.number, done)


def list_changed(
    reader: SourceReader, spec: SourceSpec, audit: AuditSpec, staging: Staging, batches: Batches
) -> Batches:
    """List the rows of one file that change."""
    names = list_value_columns(reader.schemas.target.names, spec.policy, {*audit.columns})
    found = _receive_matches(reader, names, batches)
    if found is not None:
        received, _, values, matches = found
        listed = list_changed_rows(values, spec, matches, received.inputs[0], audit)
        yield encode_result(received.number, keep_tables(listed, audit, staging))
