"""The kernel that changes the rows of one file by position: Arrow in, a staged file out.

Every engine calls it, so the file is the same whichever engine found the matches.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from merganser.core.columnar import dictionaries
from merganser.core.columnar.arrow_versions import check_fixed_lists
from merganser.core.columnar.equality import is_identical
from merganser.core.columnar.threads import WORKERS, balance_columns, open_pool
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import RewrittenFile
from merganser.core.model.file_shape import apply_shape, make_shaped_key_values, shape_options
from merganser.core.model.schema import get_plain_column, select_fields, to_plain_schema
from merganser.core.model.validation import check_writable
from merganser.core.parquet.encode import (
    derive_options_by_group,
    derive_writer_options,
    encode_row_group,
    open_writer_like,
)
from merganser.core.parquet.footer import find_unwritable_column, to_arrow_schema
from merganser.core.parquet.reshape import ReshapedColumn, reshape
from merganser.core.parquet.source_file import CannotSpliceError, open_source_file
from merganser.core.parquet.splice import NewRowGroup, check_fits, splice
from merganser.core.parquet.thrift import ThriftError
from merganser.core.rows.key_scan import open_parquet, read_group
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from merganser.core.model.file_shape import FileShape
    from merganser.core.parquet.footer import Footer
    from merganser.core.parquet.reshape import ReshapedFile
    from merganser.core.parquet.source_file import SourceFile
    from merganser.core.rows.key_scan import OpenFile
    from merganser.core.storage.store import Store

    Changes = Mapping[int, "GroupChange | None"]
    Columns = Mapping[str, pa.ChunkedArray]
    Positions = npt.NDArray[np.int64]

_SLICE = 1 << 17
# Encoded columns of one value, by rows, schema, writer options and values: files of a dataset often share them.
_constants: dict[tuple[int, pa.Schema, str, str], pa.Buffer] = {}
_MAX_CONSTANTS = 16


@dataclass(frozen=True, slots=True)
class GroupChange:
    """New values for some positions of a row group; the other rows stay except `removed`, or only `kept` stay.

    `load_rows` is called when the row group is encoded, and returns some of `columns` in the order of `positions`,
    which ascend. All other columns keep their old values.
    """

    positions: Positions
    columns: frozenset[str]
    load_rows: Callable[[Sequence[str]], pa.Table]
    removed: Positions
    kept: Positions | None = None

    def list_changed_columns(self, names: Sequence[str], rows: int) -> list[str]:
        """List the columns of a row group of `rows` rows that cannot be copied."""
        changed = names if self.count_removed(rows) else self.columns if len(self.positions) else ()
        return [name for name in names if name in changed]

    def count_removed(self, rows: int) -> int:
        """Count the rows that do not stay."""
        return len(self.removed) if self.kept is None else rows - len(self.positions) - len(self.kept)

    def make_keep_mask(self, rows: int) -> npt.NDArray[np.bool_]:
        """Make a mask of the rows that stay."""
        mask = np.full(rows, self.kept is None)
        if self.kept is None:
            mask[self.removed] = False
        else:
            mask[self.positions] = mask[self.kept] = True
        return mask


def rewrite_file(
    store: Store,
    path: str,
    staged: str,
    changes: Changes,
    workers: int = WORKERS,
    footer: Footer | None = None,
    shape: FileShape | None = None,
) -> RewrittenFile:
    """Stage a copy of a file, row groups changed or (None) dropped; other column chunks are copied where possible.

    With a `shape`, the copy has that schema, and changes are to its columns.
    """
    with open_parquet(store, path, footer, read_ahead=not store.is_local, shape=shape) as parquet:
        metadata = parquet.metadata
        try:
            _stage_changed(_Rewrite(store, path, parquet, changes, workers), staged)
        except ThriftError as error:
            message = f"The Parquet footer of {path} cannot be read: {error}. Restore or remove the file."
            raise UnreadableFileError(message) from error
    store.keep_mode(path, staged)
    store.begin_flush(staged)
    replaced = sum(len(change.positions) for change in changes.values() if change is not None)
    rows = {group: metadata.row_group(group).num_rows for group in changes}
    removed = sum(rows[at] if one is None else one.count_removed(rows[at]) for at, one in changes.items())
    return RewrittenFile(staged, replaced, removed)


@dataclass(frozen=True)
class _Rewrite:
    """A file to rewrite: what changes in its row groups and, by the shape it is opened in, in its schema."""

    store: Store
    path: str
    parquet: OpenFile
    changes: Changes
    workers: int

    @property
    def footer(self) -> Footer:
        return self.parquet.footer

    @property
    def shape(self) -> FileShape | None:
        return self.parquet.shape

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the new file, in plain types."""
        return to_plain_schema(to_arrow_schema(self.footer.metadata) if self.shape is None else self.shape.schema)

    @cached_property
    def key_values(self) -> Mapping[bytes, bytes]:
        """The key-value metadata of the new file."""
        old = self.footer.metadata.metadata or {}
        return old if self.shape is None else make_shaped_key_values(old, self.shape)

    @cached_property
    def groups(self) -> list[int]:
        """The row groups that are not dropped."""
        return [at for at in range(self.footer.metadata.num_row_groups) if self.changes.get(at, _UNCHANGED) is not None]

    @cached_property
    def encoded_columns(self) -> dict[int, list[str]]:
        """The columns to encode of each row group that has any; all others are copied."""
        reshaped = set() if self.shape is None else {*self.shape.encoded}
        found = {}
        for group in self.groups:
            change = self.changes.get(group)
            changed = (
                reshaped
                if change is None
                else reshaped.union(change.list_changed_columns(self.schema.names, self.count_rows(group)))
            )
            if changed:
                found[group] = [name for name in self.schema.names if name in changed]
        return found

    @cached_property
    def options(self) -> dict[int, dict[str, Any]]:
        """The writer options of each row group with columns to encode; for a new schema, at least those of group 0."""
        wanted = self.encoded_columns if self.shape is None else {*self.encoded_columns, 0}
        options = derive_options_by_group(self.footer, wanted)
        return options if self.shape is None else {at: shape_options(one, self.shape) for at, one in options.items()}

    def count_rows(self, group: int) -> int:
        return int(self.footer.metadata.row_group(group).num_rows)

    def is_constant(self, names: Sequence[str]) -> bool:
        """Whether none of these columns has values in the old file."""
        return self.shape is not None and not self.shape.origins.keys() & {*names}


_UNCHANGED = object()


def _stage_changed(rewrite: _Rewrite, staged: str) -> None:
    store = rewrite.store
    try:
        with store.open_reader(rewrite.path) as old, store.create(staged) as out:
            opened = open_source_file(old, old.seek(0, 2))
            reshaped = _reshape_checked(opened, rewrite)
            # Closed here if splice fails: its threads must not be joined wherever garbage happens to be collected.
            with closing(_encode_groups(rewrite)) as groups:
                splice(opened, groups, out, reshaped)
    except CannotSpliceError:
        # Splice may copy what cannot be written anew.
        check_writable(find_unwritable_column(rewrite.footer.metadata), rewrite.path)
        store.remove(staged)
        with store.create(staged) as out:
            _rewrite_whole(rewrite, out)


def _reshape_checked(opened: SourceFile, rewrite: _Rewrite) -> ReshapedFile | None:
    """Check before any row is encoded whether new column chunks can be spliced between the old ones."""
    reshaped = None
    if rewrite.shape is not None:
        names = rewrite.shape.encoded
        encoded = _encode_empty(rewrite, names, rewrite.options[0]) if names else None
        columns = [ReshapedColumn(one.name, one.origin, one.is_copied) for one in rewrite.shape.columns]
        reshaped = reshape(opened, columns, encoded, rewrite.key_values)
        if not rewrite.changes:
            # The columns to encode are those of `encoded`, which the new schema was made from.
            return reshaped
    changed = rewrite.encoded_columns
    if names := [name for name in rewrite.schema.names if any(name in some for some in changed.values())]:
        template = opened if reshaped is None else reshaped.template
        check_fits(template, _encode_empty(rewrite, names, rewrite.options[min(changed)]))
    return reshaped


def _encode_empty(rewrite: _Rewrite, names: Sequence[str], options: Mapping[str, Any]) -> pa.Buffer:
    return encode_row_group([], select_fields(rewrite.schema, names), options)


def _encode_groups(rewrite: _Rewrite) -> Generator[int | NewRowGroup]:
    """Yield the row groups of the new file in order; changed columns are encoded a few row groups ahead."""
    columns, workers = rewrite.encoded_columns, rewrite.workers
    # Few row groups are divided by columns, so that no worker is idle.
    share_count = -(-2 * workers // len(columns)) if 0 < len(columns) < workers else 1
    shares = {
        group: balance_columns(_measure_columns(names, rewrite, group), share_count) if share_count > 1 else [names]
        for group, names in columns.items()
    }
    with open_pool(sum(map(len, shares.values())), workers, "encode") as pool:
        waiting: deque[tuple[int, list[Future[pa.Buffer | None]]]] = deque()
        for group in rewrite.groups:
            tasks = [pool.submit(_encode_share, rewrite, group, share) for share in shares.get(group, ())]
            waiting.append((group, tasks))
            while len(waiting) > workers:
                yield _finish_group(rewrite, *waiting.popleft())
        while waiting:
            yield _finish_group(rewrite, *waiting.popleft())


def _finish_group(rewrite: _Rewrite, group: int, tasks: Sequence[Future[pa.Buffer | None]]) -> int | NewRowGroup:
    columns = [buffer for future in tasks if (buffer := future.result()) is not None]
    if not columns:
        return group
    change = rewrite.changes.get(group)
    is_copied = change is None or not change.count_removed(rewrite.count_rows(group))
    return NewRowGroup(columns, group if is_copied else None)


def _measure_columns(names: Sequence[str], rewrite: _Rewrite, group: int) -> dict[str, int]:
    sizes = dict.fromkeys(names, 0)
    origins = {name: name for name in names} if rewrite.shape is None else rewrite.shape.origins
    columns = {origins[name].encode(): name for name in names if name in origins}
    for chunk in rewrite.footer.load_chunks([group])[group]:
        if chunk.path[:1] and chunk.path[0] in columns:
            sizes[columns[chunk.path[0]]] += chunk.size
    return sizes


def _encode_share(rewrite: _Rewrite, group: int, names: Sequence[str]) -> pa.Buffer | None:
    """Encode columns of a row group that differ; None if none does."""
    schema, options, change = select_fields(rewrite.schema, names), rewrite.options[group], rewrite.changes.get(group)
    if change is None and rewrite.is_constant(names):
        return _encode_constants(rewrite, rewrite.count_rows(group), schema, options)
    store, shape = rewrite.store, rewrite.shape
    encoded = dictionaries.find_dictionary_columns(schema, options)
    stored = [name for name in encoded if shape is None or shape.copies(name)]
    with open_parquet(
        store, rewrite.path, rewrite.footer, read_ahead=not store.is_local, dictionaries=stored, shape=shape
    ) as parquet:
        if change is None:
            table = _to_plain_table(read_group(parquet, group, names, rewrite.path), schema)
            return encode_row_group(table.to_batches(), schema, options)
        reshaped = set() if shape is None else {*shape.encoded}
        return _encode(parquet, rewrite.path, group, change, schema, options, reshaped)


def _encode_constants(rewrite: _Rewrite, rows: int, schema: pa.Schema, options: Mapping[str, Any]) -> pa.Buffer:
    """Encode columns that have one value in every row, once for all row groups of as many rows."""
    shaped = [] if rewrite.shape is None else rewrite.shape.select(schema.names)
    values = [None if column.default is None else column.default.to_pylist() for column in shaped]
    key = rows, schema, repr(options), repr(values)
    if (found := _constants.get(key)) is None:
        table = _to_plain_table(apply_shape(pa.table({}), shaped, rows, rewrite.path), schema)
        if len(_constants) >= _MAX_CONSTANTS:
            _constants.clear()
        found = _constants[key] = encode_row_group(table.to_batches(), schema, options)
    return found


def _encode(
    parquet: OpenFile,
    path: str,
    group: int,
    change: GroupChange,
    schema: pa.Schema,
    options: Mapping[str, Any],
    reshaped: Collection[str],
) -> pa.Buffer | None:
    """Encode the columns of a changed row group that differ or are `reshaped`; None if there are none."""
    rows = parquet.metadata.row_group(group).num_rows
    new = _load_new_columns(change, schema)
    if change.count_removed(rows) or len(change.positions) == rows:
        return encode_row_group(_make_changed_batches(parquet, path, group, change, new, schema), schema, options)
    old = read_group(parquet, group, schema.names, path)
    picks = pa.array(change.positions)
    differ = [
        name
        for name in schema.names
        if name in reshaped or not is_identical(_take_column(old, name, schema, picks), new[name])
    ]
    if not differ:
        return None
    old, schema = old.select(differ), select_fields(schema, differ)
    for number, name in enumerate(differ):
        if dictionaries.is_dictionary(old.schema.field(name).type):
            column = dictionaries.replace_dictionary_values(old.column(name), change.positions, new.pop(name))
            old = old.set_column(number, name, column)
            schema = schema.set(number, schema.field(name).with_type(column.type))
    return encode_row_group(_replace_rows(old, change.positions, new, None, schema), schema, options)


def _take_column(old: pa.Table, name: str, schema: pa.Schema, picks: pa.Array) -> pa.ChunkedArray:
    data_type = schema.field(name).type
    if dictionaries.is_dictionary(old.schema.field(name).type):
        return dictionaries.decode_dictionary(old.column(name).take(picks), data_type)
    return get_plain_column(old, name, schema).take(picks)


def _load_new_columns(change: GroupChange, schema: pa.Schema) -> dict[str, pa.ChunkedArray]:
    names = [name for name in schema.names if name in change.columns]
    rows = change.load_rows(names)
    return {name: cast_column(rows.column(name), schema.field(name).type, name) for name in names}


def _rewrite_whole(rewrite: _Rewrite, out: BinaryIO) -> None:
    parquet, path, schema = rewrite.parquet, rewrite.path, rewrite.schema
    options = derive_writer_options(rewrite.footer)
    if rewrite.shape is not None:
        options = shape_options(options, rewrite.shape)
    with open_writer_like(out, schema, options, rewrite.key_values) as writer:
        for group in rewrite.groups:
            if (change := rewrite.changes.get(group)) is None:
                table = _to_plain_table(read_group(parquet, group, None, path), schema)
            else:
                new = _load_new_columns(change, schema)
                table = pa.Table.from_batches(_make_changed_batches(parquet, path, group, change, new, schema), schema)
            check_fixed_lists(table)
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)


def _make_changed_batches(
    parquet: OpenFile, path: str, group: int, change: GroupChange, new: Columns, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a changed row group, slice by slice, in the types of the file."""
    rows = parquet.metadata.row_group(group).num_rows
    if len(change.positions) + change.count_removed(rows) < rows:
        old = read_group(parquet, group, schema.names, path)
        stay = change.make_keep_mask(rows) if change.count_removed(rows) else None
        yield from _replace_rows(old, change.positions, new, stay, schema)
        return
    # Only replaced rows stay, so only columns that the new rows lack are read from the old file.
    lacking = [name for name in schema.names if name not in new]
    old = read_group(parquet, group, lacking, path) if lacking else None
    picks = pa.array(change.positions)
    columns = [new[name] if name in new else get_plain_column(old, name, schema).take(picks) for name in schema.names]
    yield from pa.table(columns, schema=schema).to_batches(max_chunksize=_SLICE)


def _replace_rows(
    old: pa.Table, positions: Positions, new: Columns, stay: npt.NDArray[np.bool_] | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for start in range(0, old.num_rows, _SLICE):
        rows = old.slice(start, _SLICE)
        first, last = np.searchsorted(positions, [start, start + _SLICE])
        columns = [get_plain_column(rows, name, schema) for name in schema.names]
        if first < last:
            picks = np.arange(rows.num_rows)
            picks[positions[first:last] - start] = rows.num_rows + np.arange(last - first)
            indices = pa.array(picks)
            columns = [
                _replace_values(column, new[name].slice(first, last - first), indices) if name in new else column
                for name, column in zip(schema.names, columns, strict=True)
            ]
        table = pa.table(columns, schema=schema)
        if stay is not None:
            table = table.filter(pa.array(stay[start : start + _SLICE]))
        yield from table.to_batches()


def _replace_values(old: pa.ChunkedArray, new: pa.ChunkedArray, picks: pa.Array) -> pa.ChunkedArray:
    together = pa.concat_arrays([*old.chunks, *new.chunks])
    return pa.chunked_array([together.take(picks)])


def _to_plain_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table([get_plain_column(table, name, schema) for name in schema.names], schema=schema)
