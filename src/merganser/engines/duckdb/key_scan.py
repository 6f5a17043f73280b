"""The key scan in SQL: which rows of the target have a source key, and where they stand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.model.keys import canonical, canonical_type, comparable, comparable_type, key_names
from merganser.core.rows.key_scan import key_batches, key_schema
from merganser.engines.duckdb.connection import registered
from merganser.engines.duckdb.filesystem import readable_by
from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from merganser.core.model.engine import ScanFile
    from merganser.core.storage.store import Store

# What DuckDB takes for a pattern in a path, even where a file has that very name.
_GLOB = frozenset("*?[")
# DuckDB thinks long about many alternatives, and each file of which it reads a part takes a statement of its own.
_MOST_RUNS = 20
_MOST_PARTS = 8
# Errors that another reader would not help against. Lack of memory is not one: a broken page may ask for any amount.
_NOT_OF_THE_FILE = (duckdb.InterruptException, duckdb.FatalException, duckdb.InternalException)
# Columns that DuckDB adds to those of a file, unless the file has them.
_ADDED = frozenset({"filename", "file_index", "file_row_number"})


def scan_keys(
    connection: duckdb.DuckDBPyConnection,
    matched: str,
    source: str,
    store: Store,
    files: Sequence[ScanFile],
    keys: Sequence[str],
    schema: pa.Schema,
    *,
    by_duckdb: bool,
) -> None:
    """Put the line and key of every target row that has a source key into the table `matched`.

    Its `file` is the place of the file among `files`, its `line` is counted from the first of the file. DuckDB reads
    the files itself where it takes them for the same as we do. What is left, or what it stumbles over, our own reader
    streams into it; that one also says which file is at fault. Without `by_duckdb`, ours reads all of them.
    """
    scan = _Scan(connection, matched, source, keys, schema, files)
    together = _together(files, [at for at, file in enumerate(files) if by_duckdb and _read_alike(schema, file, keys)])
    ours = sorted(set(range(len(files))).difference(*together))
    with readable_by(connection, store) as spelled:
        for numbers in together:
            try:
                scan.by_duckdb(numbers, [spelled(files[at].path) for at in numbers])
            except _NOT_OF_THE_FILE:
                raise
            except duckdb.Error:
                ours += numbers
    if ours:
        scan.by_arrow(store, ours)


def _read_alike(schema: pa.Schema, file: ScanFile, keys: Sequence[str]) -> bool:
    """Say whether DuckDB gives the keys of a file the meaning that we do.

    Names are all one to it in any case, and it believes statistics that we do not: some make it read values as NULL.
    """
    names = [name.lower() for name in schema.names]
    read = [name for name in keys if name not in file.constants]
    return (
        file.bounded
        and not _GLOB & set(file.path)
        and not _ADDED & set(names)
        and all(names.count(name.lower()) == 1 for name in read)
        and all(_expression(schema.field(name).type, "") is not None for name in read)
    )


def _expression(kind: pa.DataType, column: str) -> str | None:
    """Give the canonical form of a column in SQL, as `model.keys.canonical` makes it; None if there is none.

    Instants, times and UUIDs have none: DuckDB reads some of them in other units, or with less of them. Bytes have none
    either, for it takes those of an ENUM column for text.
    """
    if pa.types.is_large_string(kind):
        return f"encode({column})"
    if pa.types.is_decimal128(kind):
        return f"CAST({column} AS DECIMAL(38, {kind.scale}))"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return f"CAST({column} AS DOUBLE)"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return f"CAST({column} AS {'UBIGINT' if canonical_type(kind) == pa.uint64() else 'BIGINT'})"
    return None


def _together(files: Sequence[ScanFile], numbers: Sequence[int]) -> list[list[int]]:
    """Group the files that one statement can read: whole ones whose paths tell the same key columns, or part of one."""
    whole: dict[frozenset[str], list[int]] = defaultdict(list)
    parts = []
    for at in numbers:
        if files[at].whole:
            whole[frozenset(files[at].constants)].append(at)
        elif len(_runs(files[at].spans)) <= _MOST_RUNS:
            parts.append([at])
    return [*whole.values(), *(parts if len(parts) <= _MOST_PARTS else [])]


@dataclass(frozen=True, slots=True)
class _Scan:
    """Where matched keys go, and what they are matched with."""

    connection: duckdb.DuckDBPyConnection
    matched: str
    source: str
    keys: Sequence[str]
    schema: pa.Schema
    files: Sequence[ScanFile]

    def by_duckdb(self, numbers: Sequence[int], paths: Sequence[str]) -> None:
        """Let DuckDB read files: any number of whole ones, or some row groups of one."""
        first = self.files[numbers[0]]
        columns = [self._key(number, key in first.constants) for number, key in enumerate(self.keys)]
        line = "parquet.file_row_number"
        lines = [f"{line} >= {start} AND {line} < {end}" for start, end in _runs(first.spans)]
        with registered(self.connection, self._told(numbers)) as told:
            self._insert(
                f"""
                SELECT target.file, target.line, {self._names("target")}
                FROM (
                    SELECT told.file, {line} AS line, {", ".join(columns)}
                    FROM read_parquet(?, hive_partitioning = false, union_by_name = false, binary_as_string = false)
                        AS parquet
                    JOIN {told} AS told USING (file_index)
                    WHERE {"TRUE" if first.whole else " OR ".join(f"({some})" for some in lines)}
                ) AS target
                SEMI JOIN {self.source} AS source ON {self._equal()}
                """,
                [list(paths)],
            )

    def by_arrow(self, store: Store, numbers: Sequence[int]) -> None:
        """Stream keys from our own reader into DuckDB."""
        files = [self.files[at] for at in numbers]
        starts = {
            (file.number, group): (at, first)
            for at, file in zip(numbers, files, strict=True)
            for group, (first, _) in zip(file.groups, file.spans, strict=True)
        }
        kinds = [canonical_type(self.schema.field(key).type) for key in self.keys]
        failed: list[Exception] = []
        batches = _remembering(key_batches(store, files, self.keys, key_schema(kinds)), failed)
        shown = pa.schema(
            [
                ("file", pa.int32()),
                ("line", pa.int64()),
                *zip(key_names(len(kinds)), map(comparable_type, kinds), strict=True),
            ]
        )
        reader = pa.RecordBatchReader.from_batches(shown, (_shown(batch, shown, starts) for batch in batches))
        try:
            with registered(self.connection, reader) as target:
                self._insert(
                    f"""
                    SELECT file, line, {self._names("target")}
                    FROM {target} AS target SEMI JOIN {self.source} AS source ON {self._equal()}
                    """
                )
        except duckdb.Error as error:
            # DuckDB tells of our reader's error in words of its own.
            raise failed[0] if failed else error from None

    def _insert(self, rows: str, parameters: Sequence[object] = ()) -> None:
        self.connection.execute(f"INSERT INTO {self.matched} BY NAME {rows}", list(parameters))

    def _key(self, number: int, told: bool) -> str:  # noqa: FBT001
        if told:
            return f"told.told_{number} AS key_{number}"
        name = self.keys[number]
        column = 'parquet."' + name.replace('"', '""') + '"'
        return f"{_expression(self.schema.field(name).type, column)} AS key_{number}"

    def _told(self, numbers: Sequence[int]) -> pa.Table:
        """List files as DuckDB will number them, with the key columns that paths tell, in canonical form."""
        # DuckDB's own number for a file is unsigned.
        columns = {"file_index": pa.array(range(len(numbers)), pa.uint64()), "file": pa.array(numbers, pa.int32())}
        for number, key in enumerate(self.keys):
            if key in self.files[numbers[0]].constants:
                values = [self.files[at].constants[key] for at in numbers]
                columns[f"told_{number}"] = comparable(canonical(pa.chunked_array(values)))
        return pa.table(columns)

    def _names(self, table: str) -> str:
        return ", ".join(f"{table}.{name}" for name in key_names(len(self.keys)))

    def _equal(self) -> str:
        return " AND ".join(f"target.{name} = source.{name}" for name in key_names(len(self.keys)))


def _runs(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Say which lines to read, row groups that touch taken together."""
    runs = [spans[0]]
    for first, after in spans[1:]:
        runs[-1:] = [(runs[-1][0], after)] if first == runs[-1][1] else [runs[-1], (first, after)]
    return runs


def _shown(
    batch: pa.RecordBatch, schema: pa.Schema, starts: Mapping[tuple[int, int], tuple[int, int]]
) -> pa.RecordBatch:
    """Give keys of one row group, which a batch is, as DuckDB can compare them, with their lines."""
    file, group, place, *keys = batch.columns
    at, first = starts[file[0].as_py(), group[0].as_py()] if len(file) else (0, 0)
    lines = [pa.repeat(pa.scalar(at, pa.int32()), len(file)), pc.add(place, first)]
    return pa.record_batch([*lines, *(_one(comparable(pa.chunked_array([key]))) for key in keys)], schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _remembering(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (MerganserError, OSError, pa.ArrowException) as error:
        failed.append(error)
        raise
