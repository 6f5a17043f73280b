"""The kernel that changes the rows of one file by position: Arrow in, a staged file out.

Every engine calls it, so the file is the same whichever engine found the matches.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from merganser.core.columnar import dictionaries
from merganser.core.columnar.equality import is_identical
from merganser.core.columnar.threads import WORKERS, balance_columns, open_pool
from merganser.core.model.casts import cast_column
from merganser.core.model.engine import RewrittenFile
from merganser.core.model.schema import get_plain_column, select_fields, to_plain_schema
from merganser.core.model.validation import check_writable
from merganser.core.parquet.encode import derive_options_by_group, encode_row_group, open_writer_like
from merganser.core.parquet.footer import find_unwritable_column, to_arrow_schema
from merganser.core.parquet.source_file import CannotSpliceError, open_source_file
from merganser.core.parquet.splice import NewRowGroup, check_fits, splice
from merganser.core.parquet.thrift import ThriftError
from merganser.core.rows.key_scan import open_parquet, read_group
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt
    import pyarrow.parquet as pq

    from merganser.core.parquet.footer import Footer
    from merganser.core.parquet.source_file import SourceFile
    from merganser.core.rows.key_scan import OpenFile
    from merganser.core.storage.store import Store

    Changes = Mapping[int, "GroupChange | None"]
    Columns = Mapping[str, pa.ChunkedArray]
    Positions = npt.NDArray[np.int64]

_SLICE = 1 << 17


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
    store: Store, path: str, staged: str, changes: Changes, workers: int = WORKERS, footer: Footer | None = None
) -> RewrittenFile:
    """Stage a copy of a file, row groups changed or (None) dropped; other column chunks are copied where possible."""
    with open_parquet(store, path, footer, read_ahead=not store.is_local) as parquet:
        metadata = parquet.metadata
        try:
            _stage_changed(store, path, staged, parquet, changes, workers)
        except ThriftError as error:
            message = f"The Parquet footer of {path} cannot be read: {error}. Restore or remove the file."
            raise UnreadableFileError(message) from error
    store.keep_mode(path, staged)
    replaced = sum(len(change.positions) for change in changes.values() if change is not None)
    rows = {group: metadata.row_group(group).num_rows for group in changes}
    removed = sum(rows[at] if one is None else one.count_removed(rows[at]) for at, one in changes.items())
    return RewrittenFile(staged, replaced, removed)


def _stage_changed(store: Store, path: str, staged: str, parquet: OpenFile, changes: Changes, workers: int) -> None:
    metadata = parquet.metadata
    schema = to_plain_schema(to_arrow_schema(metadata))
    try:
        with store.open_reader(path) as old, store.create(staged) as out:
            anew = {
                group: change.list_changed_columns(schema.names, metadata.row_group(group).num_rows)
                for group, change in changes.items()
                if change is not None
            }
            opened = _open_checked(old, parquet.footer, schema, anew)
            # Closed here if splice fails: its threads must not be joined wherever garbage happens to be collected.
            with closing(_encode_groups(store, path, parquet.footer, schema, changes, anew, workers)) as groups:
                splice(opened, groups, out)
    except CannotSpliceError:
        # Splice may copy what cannot be written anew.
        check_writable(find_unwritable_column(metadata), path)
        store.remove(staged)
        with store.create(staged) as out:
            _rewrite_whole(parquet, path, schema, changes, out)


def _open_checked(old: BinaryIO, footer: Footer, schema: pa.Schema, changed: Mapping[int, Sequence[str]]) -> SourceFile:
    """Check before any row is encoded whether new column chunks can be spliced between the old ones."""
    opened = open_source_file(old, old.seek(0, 2))
    if names := [name for name in schema.names if any(name in some for some in changed.values())]:
        first = min(changed)
        options = derive_options_by_group(footer, [first])[first]
        check_fits(opened, encode_row_group([], select_fields(schema, names), options))
    return opened


def _encode_groups(
    store: Store,
    path: str,
    footer: Footer,
    schema: pa.Schema,
    changes: Changes,
    changed_columns: Mapping[int, Sequence[str]],
    workers: int,
) -> Generator[int | NewRowGroup]:
    """Yield the row groups of the new file in order; changed columns are encoded a few row groups ahead."""
    metadata = footer.metadata
    changed = {group: change for group, change in changes.items() if change is not None}
    options = derive_options_by_group(footer, changed)
    # Few row groups are divided by columns, so that no worker is idle.
    share_count = -(-2 * workers // len(changed)) if 0 < len(changed) < workers else 1

    def encode(group: int, names: Sequence[str]) -> pa.Buffer | None:
        some, ahead = select_fields(schema, names), not store.is_local
        encoded = dictionaries.find_dictionary_columns(some, options[group])
        with open_parquet(store, path, footer, read_ahead=ahead, dictionaries=encoded) as parquet:
            return _encode(parquet, path, group, changed[group], some, options[group])

    shares = {
        group: balance_columns(_measure_columns(names, footer, group), share_count) if share_count > 1 else [names]
        for group, names in changed_columns.items()
        if names
    }
    with open_pool(sum(map(len, shares.values())), workers, "encode") as pool:
        waiting: deque[tuple[int, list[Future[pa.Buffer | None]]]] = deque()
        for group in range(metadata.num_row_groups):
            if group in changed or group not in changes:
                waiting.append((group, [pool.submit(encode, group, share) for share in shares.get(group, ())]))
            while len(waiting) > workers:
                yield _finish_group(*waiting.popleft(), changed, metadata)
        while waiting:
            yield _finish_group(*waiting.popleft(), changed, metadata)


def _finish_group(
    group: int, tasks: Sequence[Future[pa.Buffer | None]], changed: Mapping[int, GroupChange], metadata: pq.FileMetaData
) -> int | NewRowGroup:
    columns = [buffer for future in tasks if (buffer := future.result()) is not None]
    if not columns:
        return group
    return NewRowGroup(columns, None if changed[group].count_removed(metadata.row_group(group).num_rows) else group)


def _measure_columns(names: Sequence[str], footer: Footer, group: int) -> dict[str, int]:
    sizes = dict.fromkeys(names, 0)
    columns = {name.encode(): name for name in names}
    for chunk in footer.load_chunks([group])[group]:
        if chunk.path[:1] and chunk.path[0] in columns:
            sizes[columns[chunk.path[0]]] += chunk.size
    return sizes


def _encode(
    parquet: OpenFile, path: str, group: int, change: GroupChange, schema: pa.Schema, options: Mapping[str, Any]
) -> pa.Buffer | None:
    """Encode the columns of a changed row group that differ; None if none does."""
    rows = parquet.metadata.row_group(group).num_rows
    new = _load_new_columns(change, schema)
    if change.count_removed(rows) or len(change.positions) == rows:
        return encode_row_group(_make_changed_batches(parquet, path, group, change, new, schema), schema, options)
    old = read_group(parquet, group, schema.names, path)
    picks = pa.array(change.positions)
    differ = [name for name in schema.names if not is_identical(_take_column(old, name, schema, picks), new[name])]
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


def _rewrite_whole(parquet: OpenFile, path: str, schema: pa.Schema, changes: Changes, out: BinaryIO) -> None:
    with open_writer_like(out, schema, parquet.footer) as writer:
        for group in range(parquet.metadata.num_row_groups):
            if group not in changes:
                table = _to_plain_table(read_group(parquet, group, None, path), schema)
            elif (change := changes[group]) is not None:
                new = _load_new_columns(change, schema)
                table = pa.Table.from_batches(_make_changed_batches(parquet, path, group, change, new, schema), schema)
            else:
                continue
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
