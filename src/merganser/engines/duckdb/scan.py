"""The key scan in SQL: which rows of the target have a source key, and where they stand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from merganser.core.errors import MerganserError
from merganser.core.keys import canonical, canonical_type, key_names
from merganser.core.scan import key_batches, key_schema
from merganser.engines.duckdb.client import registered
from merganser.engines.duckdb.files import readable_by
from merganser.engines.duckdb.keys import comparable, comparable_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.core.engine import ScanFile
    from merganser.core.storage import Store

# What DuckDB takes for a pattern in a path, even where a file has that very name.
_GLOB = frozenset("*?[")
_MOST_RUNS = 20
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
    """Put the place and key of every target row that has a source key into the table `matched`.

    DuckDB reads the files itself where it takes them for the same as we do. What is left, or what it stumbles over, our
    own reader streams into it; that one also says which file is at fault. Without `by_duckdb`, ours reads all of them.
    """
    scan = _Scan(connection, matched, source, keys, schema)
    alike = {file.number for file in files if by_duckdb and _read_alike(schema, file, keys)}
    ours = [file for file in files if file.number not in alike]
    with readable_by(connection, store) as spelled:
        for together in _together([file for file in files if file.number in alike]):
            try:
                scan.by_duckdb(together, [spelled(file.path) for file in together])
            except _NOT_OF_THE_FILE:
                raise
            except duckdb.Error:
                ours += together
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
    """Give the canonical form of a column in SQL, as `merganser.core.keys.canonical` makes it; None if there is none.

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


def _together(files: Sequence[ScanFile]) -> Iterator[list[ScanFile]]:
    """Group the files that one statement can read: whole ones whose paths tell the same key columns."""
    whole: dict[frozenset[str], list[ScanFile]] = defaultdict(list)
    for file in files:
        if file.whole:
            whole[frozenset(file.constants)].append(file)
        else:
            yield [file]
    yield from whole.values()


@dataclass(frozen=True, slots=True)
class _Scan:
    """Where matched keys go, and what they are matched with."""

    connection: duckdb.DuckDBPyConnection
    matched: str
    source: str
    keys: Sequence[str]
    schema: pa.Schema

    def by_duckdb(self, files: Sequence[ScanFile], paths: Sequence[str]) -> None:
        """Let DuckDB read files: any number of whole ones, or some row groups of one."""
        told = files[0].constants
        columns = [self._key(number, key in told) for number, key in enumerate(self.keys)]
        limit = "TRUE" if files[0].whole else _limit(files[0].spans)
        with (
            registered(self.connection, _groups(files)) as groups,
            registered(self.connection, _told(files, self.keys)) as values,
        ):
            self._insert(
                f"""
                SELECT span.file, span.row_group, target.line - span.first AS place, {self._names("target")}
                FROM (
                    SELECT file_index, file_row_number AS line, {", ".join(columns)}
                    FROM read_parquet(?, hive_partitioning = false, union_by_name = false, binary_as_string = false)
                    {f"JOIN {values} USING (file_index)" if told else ""}
                    WHERE {limit}
                ) AS target
                SEMI JOIN {self.source} AS source ON {self._equal()}
                ASOF JOIN {groups} AS span ON target.file_index = span.file_index AND target.line >= span.first
                WHERE target.line < span.after
                """,
                [list(paths)],
            )

    def by_arrow(self, store: Store, files: Sequence[ScanFile]) -> None:
        """Stream keys from our own reader into DuckDB."""
        kinds = [canonical_type(self.schema.field(key).type) for key in self.keys]
        failed: list[Exception] = []
        batches = _remembering(key_batches(store, files, self.keys, key_schema(kinds)), failed)
        shown = key_schema([comparable_type(kind) for kind in kinds])
        reader = pa.RecordBatchReader.from_batches(shown, (_shown(batch, shown) for batch in batches))
        try:
            with registered(self.connection, reader) as target:
                self._insert(
                    f"""
                    SELECT file, row_group, "position" AS place, {self._names("target")}
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
            return f"told_{number} AS key_{number}"
        name = self.keys[number]
        column = '"' + name.replace('"', '""') + '"'
        return f"{_expression(self.schema.field(name).type, column)} AS key_{number}"

    def _names(self, table: str) -> str:
        return ", ".join(f"{table}.{name}" for name in key_names(len(self.keys)))

    def _equal(self) -> str:
        return " AND ".join(f"target.{name} = source.{name}" for name in key_names(len(self.keys)))


def _limit(spans: Sequence[tuple[int, int]]) -> str:
    """Say which rows of a file to read, so that DuckDB leaves the other row groups out.

    It thinks long about many alternatives: rather than those, all rows from the first to the last.
    """
    runs = [spans[0]]
    for first, after in spans[1:]:
        runs[-1:] = [(runs[-1][0], after)] if first == runs[-1][1] else [runs[-1], (first, after)]
    if len(runs) > _MOST_RUNS:
        runs = [(runs[0][0], runs[-1][1])]
    return " OR ".join(f"(file_row_number >= {first} AND file_row_number < {after})" for first, after in runs)


def _groups(files: Sequence[ScanFile]) -> pa.Table:
    """List the row groups to look at, files by their place in the list that DuckDB is given.

    Those without rows are left out: one begins where the next does, and ASOF would take it.
    """
    rows = [
        (index, file.number, group, first, after)
        for index, file in enumerate(files)
        for group, (first, after) in zip(file.groups, file.spans, strict=True)
        if first < after
    ]
    names = ["file_index", "file", "row_group", "first", "after"]
    table = pa.table([pa.array(column) for column in np.array(rows, np.int64).reshape(-1, len(names)).T], names)
    # DuckDB's own number for a file is unsigned.
    return table.set_column(0, names[0], table.column(0).cast(pa.uint64()))


def _told(files: Sequence[ScanFile], keys: Sequence[str]) -> pa.Table:
    """List the key columns that paths tell, in canonical form."""
    columns = {"file_index": pa.array(range(len(files)), pa.uint64())}
    for number, key in enumerate(keys):
        if key in files[0].constants:
            told = pa.chunked_array([pa.repeat(file.constants[key], 1) for file in files])
            columns[f"told_{number}"] = comparable(canonical(told))
    return pa.table(columns)


def _shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [comparable(pa.chunked_array([column])) for column in batch.columns]
    return pa.table(columns, schema=schema).combine_chunks().to_batches()[0]


def _remembering(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (MerganserError, OSError, pa.ArrowException) as error:
        failed.append(error)
        raise
