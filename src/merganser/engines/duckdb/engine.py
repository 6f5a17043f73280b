"""The DuckDB engine: what to do with each row is decided in SQL, the rows themselves stay in Arrow.

DuckDB sees the canonical keys of the source, as a view of Arrow memory, and those of the target, as Parquet files. It
counts, prunes, joins and merges them, and may spill; then the shared kernels overwrite rows of the target's files.
Only keys pass through DuckDB, so no other column can lose its type there.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.spool import spool
from merganser.core.columnar.take import TARGET_CHUNK_ROWS, align_chunks, take
from merganser.core.model.casts import conform, conform_schema
from merganser.core.model.engine import SAMPLE_SIZE, SourceFacts
from merganser.core.model.keys import (
    SOURCE_ROW,
    NullSafeKeys,
    list_key_names,
    list_key_types,
    to_canonical_keys,
    to_canonical_type,
    to_comparable,
    to_comparable_type,
)
from merganser.core.rows.match_actions import find_excluded_rows
from merganser.core.rows.matches import Matches
from merganser.core.rows.ordered_rows import fold_keys, fold_spec
from merganser.core.rows.table_source import LocalEngine, OpenedRows, TableSource, drop_delete_rows, find_null_columns
from merganser.core.sources.source import stream_source
from merganser.engines.duckdb.connection import query, query_row, register_view, stream
from merganser.engines.duckdb.key_scan import KeyScan, make_join_condition, scan_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import ScanFile, SourceSpec
    from merganser.core.model.strategy import Rule
    from merganser.engines.duckdb.instance import Instance

# Row groups are tested against every 4096th, then every 64th source row, unless that gives too few rows.
_SAMPLE_STEPS = (4096, 64)
_MIN_SAMPLE_ROWS = 64
# Source rows of one MERGE.
_ROWS_PER_MERGE = 1 << 20
INSERT, UPDATE = "INSERT", "UPDATE"


class DuckDBEngine(LocalEngine):
    """`merganser.core.model.engine.Engine` in SQL, in an instance of the engine's own."""

    name = "duckdb"

    def __init__(self, instance: Instance, choose: Callable[[], bool], announce: Callable[[bool], None]) -> None:
        """Work in an instance; `choose` decides at the first rows whether MERGE is used, and `announce` reports it."""
        self.instance = instance
        self._choose = choose
        self.announce = announce

    @cached_property
    def uses_merge(self) -> bool:
        return self._choose()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self.instance.connection

    def open(self, source: Any) -> OpenedStream:
        # A relation streams through its own connection: ours would not see that one's temporary tables.
        is_relation = isinstance(source, duckdb.DuckDBPyRelation)
        return OpenedStream(self, stream(source) if is_relation else stream_source(source))

    def register(self, name: str, table: pa.Table) -> str:
        view = _make_unique_name(name)
        self.connection.register(view, table)
        return view


class OpenedStream(OpenedRows):
    """A source in memory, or a stream."""

    def __init__(self, engine: DuckDBEngine, rows: pa.Table | pa.RecordBatchReader) -> None:
        super().__init__(rows)
        self._engine = engine

    def conform(self, spec: SourceSpec) -> DuckDBSource:
        if isinstance(self.rows, pa.Table):
            return DuckDBSource(self._engine, align_chunks(conform(self.rows, spec.schema)), spec)
        tables = (conform(pa.Table.from_batches([batch]), spec.schema) for batch in self.rows)
        rows = spool((batch for table in tables for batch in table.to_batches()), conform_schema(spec.schema))
        return DuckDBSource(self._engine, rows, spec)


class DuckDBSource(TableSource):
    """`merganser.core.model.engine.ConformedSource` whose keys DuckDB sees."""

    def __init__(self, engine: DuckDBEngine, rows: pa.Table, spec: SourceSpec) -> None:
        super().__init__(rows, spec)
        self._engine = engine
        self._views: dict[tuple[tuple[str, ...], bool], str] = {}
        self._has_repeated_keys = False

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._engine.connection

    def deduplicate(self, order_by: Sequence[str]) -> DuckDBSource:
        # Rows of one key do not differ in it.
        keys = self.spec.keys
        others = [name for name in order_by if name not in keys]
        # To group rows, NULL equals NULL anyway.
        columns = [*keys, *others] if others else keys
        view, names = self._ensure_view(columns), list_key_names(columns)
        key_names, order_names = names[: len(names) - len(others)], names[len(names) - len(others) :]
        types = [to_canonical_type(self.rows.schema.field(name).type) for name in others]
        order = [f"{_make_order_key(*one)} DESC NULLS LAST" for one in zip(order_names, types, strict=True)]
        latest = query(
            self._connection,
            f"SELECT {SOURCE_ROW} FROM {view} QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(key_names)} ORDER BY {', '.join([*order, f'{SOURCE_ROW} DESC'])}) = 1",
        )
        numbers = np.sort(latest.column(0).to_numpy())
        tables = (
            take(self.rows, numbers[start : start + TARGET_CHUNK_ROWS])
            for start in range(0, len(numbers), TARGET_CHUNK_ROWS)
        )
        rows = spool((batch for table in tables for batch in table.to_batches()), self.rows.schema)
        return DuckDBSource(self._engine, rows, self.spec)

    def fold_keys(self, *, is_ordered: bool) -> DuckDBSource:
        spec = fold_spec(self.spec)
        rows = spool(fold_keys(self.rows, self.spec, is_ordered=is_ordered), spec.schema)
        return DuckDBSource(self._engine, rows, spec)

    def collect_facts(self, bounds: pa.Table | None) -> SourceFacts:
        # Chosen before any row is read, so that a MERGE which is not available is refused whatever the rows.
        _ = self._engine.uses_merge
        rows, keys, policy, columns = self.rows, self.spec.keys, self.spec.policy, self.spec.partition_columns
        partitions = rows.select(list(columns))
        if columns:
            partitions = drop_delete_rows(partitions, rows, policy)
            partitions = take(partitions, self._find_first_rows(partitions))
        null_keys, nan_keys = self._count_null_keys() if keys else ({}, {})
        candidates = np.zeros(0, np.bool_)
        refused = nan_keys if isinstance(keys, NullSafeKeys) else null_keys
        if bounds is not None and rows.num_rows and not refused:
            candidates = self.find_candidates(bounds)
        return SourceFacts(
            rows=rows.num_rows,
            excluded_rows=int(find_excluded_rows(rows, policy).sum()),
            null_keys=null_keys,
            nan_keys=nan_keys,
            columns_with_nulls=find_null_columns(rows, policy),
            partitions=partitions,
            candidates=candidates,
        )

    def find_duplicate_keys(self) -> tuple[int, pa.Table]:
        keys = self.spec.keys
        view, names = self._ensure_view(keys), ", ".join(list_key_names(keys))
        groups = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {names} HAVING count(*) > 1"
        count, sample = query_row(self._connection, f"SELECT count(*), min(first, {SAMPLE_SIZE}) FROM ({groups})")
        self._has_repeated_keys = count > 0
        return count, take(self.rows.select(list(keys)), np.array(sample or [], np.int64))

    def find_candidates(self, bounds: pa.Table) -> npt.NDArray[np.bool_]:
        """Make a mask of the row groups, in the order of the bounds, that might hold a source key."""
        view, numbers = self._ensure_view(self.spec.keys), range(len(list_key_names(self.spec.keys)))
        extremes = ", ".join(f"min(key_{at}), max(key_{at})" for at in numbers)
        hull = query_row(self._connection, f"SELECT {extremes} FROM {view}")
        columns = {"number": pa.chunked_array([np.arange(bounds.num_rows)])}
        for name, extreme in zip(bounds.column_names[2:], hull, strict=True):
            # Where a bound is unknown, the source's own is as good.
            bound = to_comparable(bounds.column(name))
            columns[name] = pc.fill_null(bound, pa.scalar(extreme, bound.type))
        groups, answer = pa.table(columns), np.ones(bounds.num_rows, np.bool_)
        for at in numbers:
            lowest, highest = (pa.scalar(one, columns[f"min_{at}"].type) for one in hull[2 * at : 2 * at + 2])
            answer &= pc.less_equal(columns[f"min_{at}"], highest).to_numpy()
            answer &= pc.greater_equal(columns[f"max_{at}"], lowest).to_numpy()
        for at in numbers:
            # The bounds hold a key if the lowest key that is not below them does not exceed them.
            join = f"ASOF JOIN {{}} ON min_{at} <= key_{at} WHERE key_{at} <= max_{at}"
            answer &= self._filter_groups(groups, answer, join)
        if len(numbers) > 1:
            # One row has to fit every column.
            fits = " AND ".join(f"key_{at} >= min_{at} AND key_{at} <= max_{at}" for at in numbers)
            answer = self._filter_groups(groups, answer, f"JOIN {{}} ON {fits}")
        return answer

    def _filter_groups(self, groups: pa.Table, possible: npt.NDArray[np.bool_], join: str) -> npt.NDArray[np.bool_]:
        """Mask the possible row groups that a join with source keys keeps; samples come first, as they keep most."""
        view, kept = self._ensure_view(self.spec.keys), np.zeros(len(possible), np.bool_)
        for step in [*(step for step in _SAMPLE_STEPS if self.rows.num_rows >= step * _MIN_SAMPLE_ROWS), 1]:
            some = view if step == 1 else f"(SELECT * FROM {view} WHERE {SOURCE_ROW} % {step} = 0)"
            left = possible & ~kept
            if left.any():
                with register_view(self._connection, groups.filter(pa.array(left))) as given:
                    found = self._connection.execute(f"SELECT DISTINCT number FROM {given} {join.format(some)}")
                    kept[found.fetchnumpy()["number"]] = True
        return kept

    def find_matches(self, files: Sequence[ScanFile]) -> Matches:
        rule, keys, engine = self.spec.policy.rule, self.spec.keys, self._engine
        try:
            matched = self._create_matched_table(files, use_duckdb=True)
        except (duckdb.FatalException, duckdb.InternalException):
            # Some broken files invalidate the instance; our own reader only reports that they are broken.
            engine.instance.renew()
            self._views.clear()
            matched = self._create_matched_table(files, use_duckdb=False)
        engine.announce(engine.uses_merge)
        # A MERGE takes any one of the source rows with the same key.
        merges = engine.uses_merge and not self._has_repeated_keys
        make_statement = _make_merge_statement if merges else _make_union_statement
        views = _split_source(self._ensure_view(keys), self.rows.num_rows) if rule.touches or rule.inserts else []
        offsets = _RowOffsets.of(files)
        results = (query(self._connection, make_statement(matched, view, keys, rule)) for view in views)
        found = _collect_matches(results, offsets)
        if not rule.touches:
            # Matched rows that stay as they are still count as matched.
            stay = query(self._connection, f"SELECT file, line FROM {matched} WHERE file IS NOT NULL")
            positions = offsets.to_positions(np.sort(offsets.to_global(*_to_arrays(stay))))
            found = Matches.from_positions(*positions, positions[2], found.new)
        self._connection.execute(f"DROP TABLE {matched}")
        return found

    def _create_matched_table(self, files: Sequence[ScanFile], *, use_duckdb: bool) -> str:
        """Create the table of target rows that have a source key; the merge adds their source row."""
        view, matched = self._ensure_view(self.spec.keys), _make_unique_name("matched")
        names = ", ".join(list_key_names(self.spec.keys))
        self._connection.execute(
            f"CREATE TEMP TABLE {matched} AS SELECT 0::INTEGER AS file, 0::BIGINT AS line, {names}, {SOURCE_ROW} "
            f"FROM {view} LIMIT 0"
        )
        scan = KeyScan(
            connection=self._connection,
            matched=matched,
            source=view,
            keys=self.spec.keys,
            schema=self.rows.schema,
            files=files,
        )
        scan_keys(scan, self.spec.store, use_duckdb=use_duckdb)
        return matched

    def _count_null_keys(self) -> tuple[dict[str, int], dict[str, int]]:
        """Count the keys of each column that are NULL or NaN, and those that are NaN, where there are any."""
        keys = self.spec.keys
        view, names = self._ensure_view(keys), list_key_names(keys)
        conditions = []
        for bit, (key, name) in enumerate(zip(keys, names, strict=False)):
            is_float = pa.types.is_floating(self.rows.schema.field(key).type)
            is_nan = f"isnan({name})" if is_float else "FALSE"
            is_null = f"({names[-1]} & {1 << bit}) <> 0" if isinstance(keys, NullSafeKeys) else f"{name} IS NULL"
            conditions += [f"{is_null} OR {is_nan}", is_nan]
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in conditions)
        found = query_row(self._connection, f"SELECT {counts} FROM {view}")
        nulls, nans = (
            {key: rows for key, rows in zip(keys, side, strict=True) if rows} for side in (found[::2], found[1::2])
        )
        return nulls, nans

    def _find_first_rows(self, table: pa.Table) -> npt.NDArray[np.int64]:
        columns = table.column_names
        view, names = self._create_view(table, columns), ", ".join(list_key_names(columns))
        first = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {names} ORDER BY first"
        return _to_arrays(query(self._connection, first))[0]

    def _ensure_view(self, columns: Sequence[str]) -> str:
        """Register the canonical form of some columns, beside the number of each row, once."""
        key = tuple(columns), isinstance(columns, NullSafeKeys)
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = self._create_view(self.rows.select(list(columns)), columns)
        return known

    def _create_view(self, table: pa.Table, columns: Sequence[str]) -> str:
        types = map(to_comparable_type, list_key_types(table.schema, columns))
        schema = pa.schema([*zip(list_key_names(columns), types, strict=True), (SOURCE_ROW, pa.int64())])
        return self._engine.register("source_view", spool(_number_rows(table, columns, schema), schema))


def _make_order_key(name: str, data_type: pa.DataType) -> str:
    """Make the expression to order by: old versions sort bytes that end in zeros as equal to shorter ones."""
    return f"hex({name})" if pa.types.is_large_binary(data_type) else name


def _split_source(view: str, rows: int) -> list[str]:
    """Split a long source: until a MERGE ends, DuckDB holds all its changes in memory."""
    if rows <= _ROWS_PER_MERGE:
        return [view]
    starts = range(0, rows, _ROWS_PER_MERGE)
    return [f"(FROM {view} WHERE {SOURCE_ROW} >= {at} AND {SOURCE_ROW} < {at + _ROWS_PER_MERGE})" for at in starts]


def _make_merge_statement(matched: str, view: str, keys: Sequence[str], rule: Rule) -> str:
    """MERGE the source into the matched rows: a match gets its source row, others come without file and line."""
    return f"""
        MERGE INTO {matched} AS target USING {view} AS source ON ({make_join_condition(keys)})
        {f"WHEN MATCHED THEN UPDATE SET {SOURCE_ROW} = source.{SOURCE_ROW}" if rule.touches else ""}
        {"WHEN NOT MATCHED THEN INSERT BY NAME" if rule.inserts else ""}
        RETURNING merge_action, file, line, target.{SOURCE_ROW}
        """


def _make_union_statement(matched: str, view: str, keys: Sequence[str], rule: Rule) -> str:
    """Select the same rows as MERGE returns."""
    updates = f"""
        SELECT '{UPDATE}' AS merge_action, file, line, source.{SOURCE_ROW}
        FROM {matched} AS target JOIN {view} AS source ON ({make_join_condition(keys)})
        """
    inserts = f"""
        SELECT '{INSERT}' AS merge_action, NULL::INTEGER AS file, NULL::BIGINT AS line, source.{SOURCE_ROW}
        FROM {view} AS source WHERE NOT EXISTS (SELECT 1 FROM {matched} AS target WHERE {make_join_condition(keys)})
        """
    return " UNION ALL ".join([updates] * rule.touches + [inserts] * rule.inserts)


@dataclass(frozen=True, slots=True)
class _RowOffsets:
    """Global line numbers, counted through all files: the first of each file and of each of its row groups."""

    file_start: npt.NDArray[np.int64]
    group_start: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]

    @classmethod
    def of(cls, files: Sequence[ScanFile]) -> _RowOffsets:
        first = np.cumsum([0, *(file.spans[-1][1] for file in files)])
        start = [at + begin for at, file in zip(first.tolist(), files, strict=False) for begin, _ in file.spans]
        number = [file.number for file in files for _ in file.groups]
        group = [group for file in files for group in file.groups]
        return cls(first, np.array(start, np.int64), np.array(number, np.int32), np.array(group, np.int32))

    def to_global(self, file: npt.NDArray[np.int32], line: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convert lines of files to global ones."""
        return self.file_start[file] + line

    def to_positions(
        self, lines: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Convert global lines to file, row group and position."""
        # Of several row groups that begin at one line, all but the last are empty.
        at = np.searchsorted(self.group_start, lines, side="right") - 1
        return self.file[at], self.row_group[at], lines - self.group_start[at]


def _collect_matches(results: Iterable[pa.Table], offsets: _RowOffsets) -> Matches:
    """Sort the rows that MERGE returned in the order of the files, and the new rows in that of the source."""
    none = np.zeros(0, np.int64)
    lines, rows, new = [none], [none], [none]
    for result in results:
        updated = pc.equal(result.column("merge_action"), UPDATE)
        file, line, row = _to_arrays(result.filter(updated).drop_columns("merge_action"))
        lines.append(offsets.to_global(file, line))
        rows.append(row)
        new.append(result.column(SOURCE_ROW).filter(pc.invert(updated)).to_numpy())
    matched = np.concatenate(lines)
    order = np.argsort(matched, kind="stable")
    positions = offsets.to_positions(matched[order])
    return Matches.from_positions(*positions, np.concatenate(rows)[order], np.sort(np.concatenate(new)))


def _number_rows(table: pa.Table, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in table.to_batches():
        keys = to_canonical_keys(pa.Table.from_batches([batch]), columns).columns
        numbers = np.arange(start, start + batch.num_rows)
        yield from pa.table([*map(to_comparable, keys), numbers], schema=schema).to_batches()
        start += batch.num_rows


def _to_arrays(table: pa.Table) -> list[npt.NDArray[Any]]:
    return [column.to_numpy() for column in table.columns]


def _make_unique_name(name: str) -> str:
    return f"{name}_{uuid.uuid4().hex}"
