"""The key scan in SQL: which rows of the target have a source key, and where they are."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import to_array
from merganser.core.model.keys import (
    NullSafeKeys,
    list_key_names,
    list_key_types,
    make_fill,
    to_canonical,
    to_canonical_type,
    to_comparable,
    to_comparable_type,
)
from merganser.core.rows.key_scan import make_key_schema, read_key_batches
from merganser.engines.duckdb.connection import register_view
from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from merganser.core.model.engine import ScanFile
    from merganser.core.storage.store import Store

# DuckDB reads these in a path as a pattern, even if a file has that very name.
_GLOB_CHARACTERS = frozenset("*?[")
# DuckDB plans many alternatives slowly, and each file that it reads in part takes a statement of its own.
_MAX_RUNS = 20
_MAX_PARTIAL_FILES = 8
# Errors that another reader would not avoid. Lack of memory is not one: a broken page may ask for any amount.
_INSTANCE_ERRORS = (duckdb.InterruptException, duckdb.FatalException, duckdb.InternalException)
# Columns that DuckDB adds to those of a file, unless the file has them.
_VIRTUAL_COLUMNS = frozenset({"filename", "file_index", "file_row_number"})


def scan_keys(scan: KeyScan, store: Store, *, use_duckdb: bool) -> None:
    """Insert the line and key of every target row that has a source key into the table `scan.matched`.

    Its `file` is the index in `scan.files`, its `line` is counted from the first of the file. DuckDB reads the files
    that it reads as we do. All others, and those it fails on, our own reader streams into it; that one also reports
    which file is at fault. Without `use_duckdb`, our reader reads all of them.
    """
    files = scan.files
    readable = [at for at, file in enumerate(files) if use_duckdb and scan.is_readable_by_duckdb(file)]
    statements = _group_files(files, readable)
    ours = sorted(set(range(len(files))).difference(*statements))
    with _mount_store(scan.connection, store) as spell_path:
        for numbers in statements:
            try:
                scan.scan_with_duckdb(numbers, [spell_path(files[at].path) for at in numbers])
            except _INSTANCE_ERRORS:
                raise
            except duckdb.Error:
                ours += numbers
    if ours:
        scan.scan_with_arrow(store, ours)


def _mount_store(connection: duckdb.DuckDBPyConnection, store: Store) -> AbstractContextManager[Callable[[str], str]]:
    """Let DuckDB read a store; yields the function that converts a path for DuckDB."""
    if store.is_local:
        return nullcontext(lambda path: path)
    from merganser.engines.duckdb.filesystem import register_store  # noqa: PLC0415  it imports fsspec

    return register_store(connection, store)


def _make_key_expression(data_type: pa.DataType, column: str) -> str | None:
    """Make the SQL for the canonical form of a column, as in `model.keys.to_canonical`; None if there is none.

    Instants, times and UUIDs have none: DuckDB reads some of them in other units or with less precision. Bytes have
    none either: DuckDB reads those of an ENUM column as strings.
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
    """Group the files that one statement can read: entire files with the same constants, or part of one."""
    entire: dict[frozenset[str], list[int]] = defaultdict(list)
    partial = []
    for at in numbers:
        if files[at].has_all_groups:
            entire[frozenset(files[at].constants)].append(at)
        elif len(_merge_spans(files[at].spans)) <= _MAX_RUNS:
            partial.append([at])
    return [*entire.values(), *(partial if len(partial) <= _MAX_PARTIAL_FILES else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyScan:
    """Files whose keys are joined with the view `source`; matches go to the table `matched`."""

    connection: duckdb.DuckDBPyConnection
    matched: str
    source: str
    keys: Sequence[str]
    schema: pa.Schema
    files: Sequence[ScanFile]

    def is_readable_by_duckdb(self, file: ScanFile) -> bool:
        """Whether DuckDB reads keys as we do: it ignores case in names, and some statistics make it read NULL."""
        names = [name.lower() for name in self.schema.names]
        read = [name for name in self.keys if name not in file.constants]
        return (
            file.has_bounds
            and (file.shape is None or all(map(file.shape.copies, read)))
            and not _GLOB_CHARACTERS & set(file.path)
            and not _VIRTUAL_COLUMNS & set(names)
            and all(names.count(name.lower()) == 1 for name in read)
            and all(_make_key_expression(self.schema.field(name).type, "") is not None for name in read)
        )

    def scan_with_duckdb(self, numbers: Sequence[int], paths: Sequence[str]) -> None:
        """Let DuckDB read any number of entire files, or some row groups of one."""
        first = self.files[numbers[0]]
        columns = self._make_key_columns(first)
        line = "parquet.file_row_number"
        lines = [f"{line} >= {start} AND {line} < {end}" for start, end in _merge_spans(first.spans)]
        with register_view(self.connection, self._make_constants_table(numbers)) as constants:
            self._insert(
                f"""
                SELECT target.file, target.line, {self._list_key_names("target")}
                FROM (
                    SELECT constants.file, {line} AS line, {", ".join(columns)}
                    FROM read_parquet(?, hive_partitioning = false, union_by_name = false, binary_as_string = false)
                        AS parquet
                    JOIN {constants} AS constants USING (file_index)
                    WHERE {"TRUE" if first.has_all_groups else " OR ".join(f"({some})" for some in lines)}
                ) AS target
                SEMI JOIN {self.source} AS source ON {make_join_condition(self.keys)}
                """,
                [list(paths)],
            )

    def scan_with_arrow(self, store: Store, numbers: Sequence[int]) -> None:
        files = [self.files[at] for at in numbers]
        starts: dict[tuple[int, int], tuple[int, int]] = {
            (file.number, group): (at, first)
            for at, file in zip(numbers, files, strict=True)
            for group, (first, _) in zip(file.groups, file.spans, strict=True)
        }
        types = list_key_types(self.schema, self.keys)
        failed: list[Exception] = []
        batches = _capture_error(read_key_batches(store, files, self.keys, make_key_schema(types)), failed)
        fields = zip(list_key_names(self.keys), map(to_comparable_type, types), strict=True)
        schema = pa.schema([("file", pa.int32()), ("line", pa.int64()), *fields])
        converted = (_to_comparable_batch(batch, schema, starts) for batch in batches)
        reader = pa.RecordBatchReader.from_batches(schema, converted)
        try:
            with register_view(self.connection, reader) as target:
                self._insert(
                    f"""
                    SELECT file, line, {self._list_key_names("target")}
                    FROM {target} AS target SEMI JOIN {self.source} AS source ON {make_join_condition(self.keys)}
                    """
                )
        except duckdb.Error as error:
            # DuckDB reports our reader's error in its own words.
            raise failed[0] if failed else error from None

    def _insert(self, rows: str, parameters: Sequence[object] = ()) -> None:
        self.connection.execute(f"INSERT INTO {self.matched} BY NAME {rows}", list(parameters))

    def _make_key_columns(self, file: ScanFile) -> list[str]:
        """Make the SQL for the canonical columns of the keys of a file."""
        values = [self._make_key_value(number, key in file.constants) for number, key in enumerate(self.keys)]
        if isinstance(self.keys, NullSafeKeys):
            marks = " | ".join(f"(({value} IS NULL)::BIGINT << {bit})" for bit, value in enumerate(values))
            values = [*(f"coalesce({value}, constants.fill_{at})" for at, value in enumerate(values)), marks]
        return [f"{value} AS {name}" for value, name in zip(values, list_key_names(self.keys), strict=True)]

    def _make_key_value(self, number: int, is_constant: bool) -> str | None:  # noqa: FBT001
        if is_constant:
            return f"constants.constant_{number}"
        name = self.keys[number]
        return _make_key_expression(self.schema.field(name).type, 'parquet."' + name.replace('"', '""') + '"')

    def _make_constants_table(self, numbers: Sequence[int]) -> pa.Table:
        """List files as DuckDB numbers them, with the key columns that are constant in them, in canonical form."""
        # DuckDB's own number for a file is unsigned.
        columns = {"file_index": pa.array(range(len(numbers)), pa.uint64()), "file": pa.array(numbers, pa.int32())}
        for number, key in enumerate(self.keys):
            if key in self.files[numbers[0]].constants:
                values = [self.files[at].constants[key] for at in numbers]
                columns[f"constant_{number}"] = to_comparable(to_canonical(pa.chunked_array(values)))
            if isinstance(self.keys, NullSafeKeys):
                fill = pa.repeat(make_fill(to_canonical_type(self.schema.field(key).type)), len(numbers))
                columns[f"fill_{number}"] = to_comparable(pa.chunked_array([fill]))
        return pa.table(columns)

    def _list_key_names(self, table: str) -> str:
        return ", ".join(f"{table}.{name}" for name in list_key_names(self.keys))


def make_join_condition(keys: Sequence[str]) -> str:
    """Make the SQL condition that the keys of `target` and `source` are equal."""
    return " AND ".join(f"target.{name} = source.{name}" for name in list_key_names(keys))


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    runs = [spans[0]]
    for first, after in spans[1:]:
        runs[-1:] = [(runs[-1][0], after)] if first == runs[-1][1] else [runs[-1], (first, after)]
    return runs


def _to_comparable_batch(
    batch: pa.RecordBatch, schema: pa.Schema, starts: Mapping[tuple[int, int], tuple[int, int]]
) -> pa.RecordBatch:
    """Convert a batch, the keys of one row group, to what DuckDB can compare, with their lines."""
    file, group, position, *keys = batch.columns
    at, first = starts[file[0].as_py(), group[0].as_py()] if len(file) else (0, 0)
    lines = [pa.repeat(pa.scalar(at, pa.int32()), len(file)), pc.add(position, first)]
    return pa.record_batch([*lines, *(to_array(to_comparable(pa.chunked_array([key]))) for key in keys)], schema=schema)


def _capture_error(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (MerganserError, OSError, pa.ArrowException) as error:
        failed.append(error)
        raise
