"""The key scan in SQL: which rows of the target have a source key, and where they stand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.keys import (
    name_key_columns,
    to_canonical,
    to_canonical_type,
    to_comparable,
    to_comparable_type,
)
from merganser.core.rows.key_scan import make_key_schema, read_key_batches
from merganser.engines.duckdb.connection import register_view
from merganser.engines.duckdb.filesystem import mount_store
from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.core.model.engine import ScanFile
    from merganser.core.storage.store import Store

# What DuckDB takes for a pattern in a path, even where a file has that very name.
_GLOB_CHARACTERS = frozenset("*?[")
# DuckDB thinks long about many alternatives, and each file of which it reads a part takes a statement of its own.
_MAX_RUNS = 20
_MAX_PARTIAL_FILES = 8
# Errors that another reader would not help against. Lack of memory is not one: a broken page may ask for any amount.
_INSTANCE_ERRORS = (duckdb.InterruptException, duckdb.FatalException, duckdb.InternalException)
# Columns that DuckDB adds to those of a file, unless the file has them.
_VIRTUAL_COLUMNS = frozenset({"filename", "file_index", "file_row_number"})


def scan_keys(
    connection: duckdb.DuckDBPyConnection,
    matched: str,
    source: str,
    store: Store,
    files: Sequence[ScanFile],
    keys: Sequence[str],
    schema: pa.Schema,
    *,
    use_duckdb: bool,
) -> None:
    """Put the line and key of every target row that has a source key into the table `matched`.

    Its `file` is the place of the file among `files`, its `line` is counted from the first of the file. DuckDB reads
    the files itself where it takes them for the same as we do. What is left, or what it stumbles over, our own reader
    streams into it; that one also says which file is at fault. Without `scan_with_duckdb`, ours reads all of them.
    """
    scan = _KeyScan(connection, matched, source, keys, schema, files)
    together = _group_files(
        files, [at for at, file in enumerate(files) if use_duckdb and _is_readable_by_duckdb(schema, file, keys)]
    )
    ours = sorted(set(range(len(files))).difference(*together))
    with mount_store(connection, store) as spelled:
        for numbers in together:
            try:
                scan.scan_with_duckdb(numbers, [spelled(files[at].path) for at in numbers])
            except _INSTANCE_ERRORS:
                raise
            except duckdb.Error:
                ours += numbers
    if ours:
        scan.scan_with_arrow(store, ours)


def _is_readable_by_duckdb(schema: pa.Schema, file: ScanFile, keys: Sequence[str]) -> bool:
    """Say whether DuckDB gives the keys of a file the meaning that we do.

    Names are all one to it in any case, and it believes statistics that we do not: some make it read values as NULL.
    """
    names = [name.lower() for name in schema.names]
    read = [name for name in keys if name not in file.constants]
    return (
        file.has_bounds
        and not _GLOB_CHARACTERS & set(file.path)
        and not _VIRTUAL_COLUMNS & set(names)
        and all(names.count(name.lower()) == 1 for name in read)
        and all(_make_key_expression(schema.field(name).type, "") is not None for name in read)
    )


def _make_key_expression(data_type: pa.DataType, column: str) -> str | None:
    """Give the canonical form of a column in SQL, as `model.keys.canonical` makes it; None if there is none.

    Instants, times and UUIDs have none: DuckDB reads some of them in other units, or with less of them. Bytes have none
    either, for it takes those of an ENUM column for text.
    """
    if pa.types.is_large_string(data_type):
        return f"encode({column})"
    if pa.types.is_decimal128(data_type):
        return f"CAST({column} AS DECIMAL(38, {data_type.scale}))"
    if pa.types.is_float32(data_type) or pa.types.is_float64(data_type):
        return f"CAST({column} AS DOUBLE)"
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type):
        return f"CAST({column} AS {'UBIGINT' if to_canonical_type(data_type) == pa.uint64() else 'BIGINT'})"
    return None


def _group_files(files: Sequence[ScanFile], numbers: Sequence[int]) -> list[list[int]]:
    """Group the files that one statement can read: whole ones whose paths tell the same key columns, or part of one."""
    whole: dict[frozenset[str], list[int]] = defaultdict(list)
    parts = []
    for at in numbers:
        if files[at].has_all_groups:
            whole[frozenset(files[at].constants)].append(at)
        elif len(_merge_spans(files[at].spans)) <= _MAX_RUNS:
            parts.append([at])
    return [*whole.values(), *(parts if len(parts) <= _MAX_PARTIAL_FILES else [])]


@dataclass(frozen=True, slots=True)
class _KeyScan:
    """Where matched keys go, and what they are matched with."""

    connection: duckdb.DuckDBPyConnection
    matched: str
    source: str
    keys: Sequence[str]
    schema: pa.Schema
    files: Sequence[ScanFile]

    def scan_with_duckdb(self, numbers: Sequence[int], paths: Sequence[str]) -> None:
        """Let DuckDB read files: any number of whole ones, or some row groups of one."""
        first = self.files[numbers[0]]
        columns = [self._make_key_column(number, key in first.constants) for number, key in enumerate(self.keys)]
        line = "parquet.file_row_number"
        lines = [f"{line} >= {start} AND {line} < {end}" for start, end in _merge_spans(first.spans)]
        with register_view(self.connection, self._make_constants_table(numbers)) as told:
            self._insert(
                f"""
                SELECT target.file, target.line, {self._list_key_names("target")}
                FROM (
                    SELECT told.file, {line} AS line, {", ".join(columns)}
                    FROM read_parquet(?, hive_partitioning = false, union_by_name = false, binary_as_string = false)
                        AS parquet
                    JOIN {told} AS told USING (file_index)
                    WHERE {"TRUE" if first.has_all_groups else " OR ".join(f"({some})" for some in lines)}
                ) AS target
                SEMI JOIN {self.source} AS source ON {self._make_join_condition()}
                """,
                [list(paths)],
            )

    def scan_with_arrow(self, store: Store, numbers: Sequence[int]) -> None:
        """Stream keys from our own reader into DuckDB."""
        files = [self.files[at] for at in numbers]
        starts = {
            (file.number, group): (at, first)
            for at, file in zip(numbers, files, strict=True)
            for group, (first, _) in zip(file.groups, file.spans, strict=True)
        }
        kinds = [to_canonical_type(self.schema.field(key).type) for key in self.keys]
        failed: list[Exception] = []
        batches = _capture_error(read_key_batches(store, files, self.keys, make_key_schema(kinds)), failed)
        shown = pa.schema(
            [
                ("file", pa.int32()),
                ("line", pa.int64()),
                *zip(name_key_columns(len(kinds)), map(to_comparable_type, kinds), strict=True),
            ]
        )
        reader = pa.RecordBatchReader.from_batches(
            shown, (_to_comparable_batch(batch, shown, starts) for batch in batches)
        )
        try:
            with register_view(self.connection, reader) as target:
                self._insert(
                    f"""
                    SELECT file, line, {self._list_key_names("target")}
                    FROM {target} AS target SEMI JOIN {self.source} AS source ON {self._make_join_condition()}
                    """
                )
        except duckdb.Error as error:
            # DuckDB tells of our reader's error in words of its own.
            raise failed[0] if failed else error from None

    def _insert(self, rows: str, parameters: Sequence[object] = ()) -> None:
        self.connection.execute(f"INSERT INTO {self.matched} BY NAME {rows}", list(parameters))

    def _make_key_column(self, number: int, is_constant: bool) -> str:  # noqa: FBT001
        if is_constant:
            return f"told.told_{number} AS key_{number}"
        name = self.keys[number]
        column = 'parquet."' + name.replace('"', '""') + '"'
        return f"{_make_key_expression(self.schema.field(name).type, column)} AS key_{number}"

    def _make_constants_table(self, numbers: Sequence[int]) -> pa.Table:
        """List files as DuckDB will number them, with the key columns that paths tell, in canonical form."""
        # DuckDB's own number for a file is unsigned.
        columns = {"file_index": pa.array(range(len(numbers)), pa.uint64()), "file": pa.array(numbers, pa.int32())}
        for number, key in enumerate(self.keys):
            if key in self.files[numbers[0]].constants:
                values = [self.files[at].constants[key] for at in numbers]
                columns[f"told_{number}"] = to_comparable(to_canonical(pa.chunked_array(values)))
        return pa.table(columns)

    def _list_key_names(self, table: str) -> str:
        return ", ".join(f"{table}.{name}" for name in name_key_columns(len(self.keys)))

    def _make_join_condition(self) -> str:
        return " AND ".join(f"target.{name} = source.{name}" for name in name_key_columns(len(self.keys)))


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Say which lines to read, row groups that touch taken together."""
    runs = [spans[0]]
    for first, after in spans[1:]:
        runs[-1:] = [(runs[-1][0], after)] if first == runs[-1][1] else [runs[-1], (first, after)]
    return runs


def _to_comparable_batch(
    batch: pa.RecordBatch, schema: pa.Schema, starts: Mapping[tuple[int, int], tuple[int, int]]
) -> pa.RecordBatch:
    """Give keys of one row group, which a batch is, as DuckDB can compare them, with their lines."""
    file, group, place, *keys = batch.columns
    at, first = starts[file[0].as_py(), group[0].as_py()] if len(file) else (0, 0)
    lines = [pa.repeat(pa.scalar(at, pa.int32()), len(file)), pc.add(place, first)]
    return pa.record_batch(
        [*lines, *(_to_array(to_comparable(pa.chunked_array([key]))) for key in keys)], schema=schema
    )


def _to_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _capture_error(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (MerganserError, OSError, pa.ArrowException) as error:
        failed.append(error)
        raise
