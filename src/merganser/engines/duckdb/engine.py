"""The DuckDB engine: what to do with each row is decided in SQL, the rows themselves stay in Arrow.

DuckDB sees the canonical keys of the source, as a view of Arrow memory, and those of the target, as Parquet files. It
counts, prunes, joins and merges them, and may spill; then the shared kernels lay source rows over the target's files.
So no column but a key ever passes through DuckDB, and none can lose its type there.
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
    name_key_columns,
    to_canonical_keys,
    to_canonical_type,
    to_comparable,
    to_comparable_type,
)
from merganser.core.rows.match_actions import assign_actions, find_delete_rows
from merganser.core.rows.matches import Matches
from merganser.core.rows.table_engine import TableEngine, drop_delete_rows, find_columns_with_nulls
from merganser.core.sources.source import stream_source
from merganser.engines.duckdb.connection import query, query_row, register_view, stream
from merganser.engines.duckdb.key_scan import scan_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.model.engine import MatchCounts, ScanFile
    from merganser.core.model.strategy import MergePolicy, Rule
    from merganser.core.storage.staging import Staging
    from merganser.core.storage.store import Store
    from merganser.engines.duckdb.instance import Instance

# When row groups are tested against the source, these make a round of every so many rows, unless it has too few.
_SAMPLE_STEPS = (4096, 64)
_MIN_SAMPLE_ROWS = 64
# Source rows of one MERGE.
_ROWS_PER_MERGE = 1 << 20
INSERT, UPDATE = "INSERT", "UPDATE"


class DuckDBEngine(TableEngine):
    """The verbs of `merganser.core.model.engine.Engine` in SQL, in an instance of the engine's own."""

    name = "duckdb"

    def __init__(self, instance: Instance, choose: Callable[[], bool], announce: Callable[[bool], None]) -> None:
        """Work in an instance; `choose` says, when the work begins, whether with MERGE.

        `announce` is told of that choice when a statement is run by it.
        """
        self._instance = instance
        self._choose = choose
        self._announce = announce
        self._views: dict[tuple[int, tuple[str, ...]], tuple[pa.Table, str]] = {}

    @cached_property
    def _uses_merge(self) -> bool:
        return self._choose()

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._instance.connection

    def open(self, source: Any) -> pa.Table | pa.RecordBatchReader:
        # A relation streams through its own connection: ours would not see that one's temporary tables.
        return stream(source) if isinstance(source, duckdb.DuckDBPyRelation) else stream_source(source)

    def conform(
        self,
        handle: pa.Table | pa.RecordBatchReader,
        schema: pa.Schema,
        staging: Staging | None = None,  # noqa: ARG002  spooled
    ) -> pa.Table:
        if isinstance(handle, pa.Table):
            return align_chunks(conform(handle, schema))
        pieces = (conform(pa.Table.from_batches([batch]), schema) for batch in handle)
        return spool((batch for piece in pieces for batch in piece.to_batches()), conform_schema(schema))

    def deduplicate(self, handle: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> pa.Table:
        # Rows of one key do not differ in it.
        columns = [*keys, *(name for name in order_by if name not in keys)]
        view, names = self._ensure_view(handle, columns), name_key_columns(len(columns))
        kinds = [to_canonical_type(handle.schema.field(name).type) for name in columns[len(keys) :]]
        order = [
            f"{_make_order_expression(*one)} DESC NULLS LAST" for one in zip(names[len(keys) :], kinds, strict=True)
        ]
        latest = query(
            self._connection,
            f"SELECT {SOURCE_ROW} FROM {view} QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(names[: len(keys)])} ORDER BY {', '.join([*order, f'{SOURCE_ROW} DESC'])}) = 1",
        )
        rows = np.sort(latest.column(0).to_numpy())
        pieces = (
            take(handle, rows[start : start + TARGET_CHUNK_ROWS]) for start in range(0, len(rows), TARGET_CHUNK_ROWS)
        )
        return spool((batch for piece in pieces for batch in piece.to_batches()), handle.schema)

    def collect_facts(
        self,
        handle: pa.Table,
        keys: Sequence[str],
        partition_columns: Sequence[str],
        bounds: pa.Table | None,
        policy: MergePolicy,
    ) -> SourceFacts:
        # Chosen before any row is looked at, so that a wish which cannot be met is refused whatever the rows.
        _ = self._uses_merge
        partitions = handle.select(list(partition_columns))
        if partition_columns:
            placed = drop_delete_rows(partitions, handle, policy)
            partitions = take(placed, self._find_first_rows(placed, partition_columns))
        null_keys, twice, sample = self._analyze_keys(handle, keys) if keys else ({}, 0, handle.select([]))
        deletes, with_nulls = int(find_delete_rows(handle, policy).sum()), find_columns_with_nulls(handle, policy)
        candidates = np.zeros(0, np.bool_)
        if bounds is not None and handle.num_rows and not null_keys:
            candidates = self.find_candidates(handle, keys, bounds)
        return SourceFacts(handle.num_rows, deletes, null_keys, twice, sample, with_nulls, partitions, candidates)

    def find_candidates(self, handle: pa.Table, keys: Sequence[str], bounds: pa.Table) -> npt.NDArray[np.bool_]:
        """Say of each row of the bounds whether its row group might hold a source key."""
        view, numbers = self._ensure_view(handle, keys), range(len(keys))
        ends = ", ".join(f"min(key_{at}), max(key_{at})" for at in numbers)
        hull = query_row(self._connection, f"SELECT {ends} FROM {view}")
        columns = {"number": pa.chunked_array([np.arange(bounds.num_rows)])}
        for name, end in zip(bounds.column_names[2:], hull, strict=True):
            # Where a bound is unknown, the source's own is as good.
            bound = to_comparable(bounds.column(name))
            columns[name] = pc.fill_null(bound, pa.scalar(end, bound.type))
        groups, answer = pa.table(columns), np.ones(bounds.num_rows, np.bool_)
        for at in numbers:
            lowest, highest = (pa.scalar(end, columns[f"min_{at}"].type) for end in hull[2 * at : 2 * at + 2])
            answer &= pc.less_equal(columns[f"min_{at}"], highest).to_numpy()
            answer &= pc.greater_equal(columns[f"max_{at}"], lowest).to_numpy()
        for at in numbers:
            # The lowest key that is not below the bounds tells whether any lies inside.
            answer &= self._filter_groups(
                handle, keys, groups, answer, f"ASOF JOIN {{}} ON min_{at} <= key_{at} WHERE key_{at} <= max_{at}"
            )
        if len(keys) > 1:
            # One row has to fit every column.
            fits = " AND ".join(f"key_{at} >= min_{at} AND key_{at} <= max_{at}" for at in numbers)
            answer = self._filter_groups(handle, keys, groups, answer, f"JOIN {{}} ON {fits}")
        return answer

    def _filter_groups(
        self, handle: pa.Table, keys: Sequence[str], groups: pa.Table, possible: npt.NDArray[np.bool_], join: str
    ) -> npt.NDArray[np.bool_]:
        """Say of each possible row group whether a join with the source's keys keeps it.

        Every so many rows are tried first: most row groups are found soon, and what is left is joined with all rows.
        """
        view, kept = self._ensure_view(handle, keys), np.zeros(len(possible), np.bool_)
        for step in [*(step for step in _SAMPLE_STEPS if handle.num_rows >= step * _MIN_SAMPLE_ROWS), 1]:
            some = view if step == 1 else f"(SELECT * FROM {view} WHERE {SOURCE_ROW} % {step} = 0)"
            left = possible & ~kept
            if left.any():
                with register_view(self._connection, groups.filter(pa.array(left))) as given:
                    found = self._connection.execute(f"SELECT DISTINCT number FROM {given} {join.format(some)}")
                    kept[found.fetchnumpy()["number"]] = True
        return kept

    def match(
        self,
        handle: pa.Table,
        keys: Sequence[str],
        store: Store,
        files: Sequence[ScanFile],
        partitions: pa.Table,
        policy: MergePolicy,
    ) -> tuple[Matches, MatchCounts]:
        rule = policy.rule
        try:
            matched = self._create_matched_table(handle, keys, store, files, use_duckdb=True)
        except (duckdb.FatalException, duckdb.InternalException):
            # Some broken files take the whole instance along; our own reader only says that they are broken.
            self._instance.renew()
            self._views.clear()
            matched = self._create_matched_table(handle, keys, store, files, use_duckdb=False)
        self._announce(self._uses_merge)
        way = _make_merge_statement if self._uses_merge else _make_union_statement
        parts = _split_source(self._ensure_view(handle, keys), handle.num_rows)
        lines = _RowOffsets.of(files)
        found = _collect_matches(
            (query(self._connection, way(matched, part, len(keys), rule)) for part in parts), lines
        )
        if not rule.touches:
            # Rows that stay as they are, but not as if they were unknown.
            stay = query(self._connection, f"SELECT file, line FROM {matched} WHERE file IS NOT NULL")
            places = lines.to_positions(np.sort(lines.to_global(*_to_arrays(stay))))
            found = Matches.from_positions(*places, places[2], found.new)
        self._connection.execute(f"DROP TABLE {matched}")
        return assign_actions(handle, found, keys, store, files, partitions, policy)

    def _create_matched_table(
        self, handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile], *, use_duckdb: bool
    ) -> str:
        """Make the table of target rows that have a source key; their own source row comes with the merge."""
        view, matched = self._ensure_view(handle, keys), _make_unique_name("matched")
        names = ", ".join(name_key_columns(len(keys)))
        self._connection.execute(
            f"CREATE TEMP TABLE {matched} AS SELECT 0::INTEGER AS file, 0::BIGINT AS line, {names}, {SOURCE_ROW} "
            f"FROM {view} LIMIT 0"
        )
        scan_keys(self._connection, matched, view, store, files, keys, handle.schema, use_duckdb=use_duckdb)
        return matched

    def _analyze_keys(self, handle: pa.Table, keys: Sequence[str]) -> tuple[dict[str, int], int, pa.Table]:
        view, names = self._ensure_view(handle, keys), name_key_columns(len(keys))
        kinds = [to_canonical_type(handle.schema.field(key).type) for key in keys]
        bad = [
            f"{name} IS NULL OR isnan({name})" if pa.types.is_floating(kind) else f"{name} IS NULL"
            for name, kind in zip(names, kinds, strict=True)
        ]
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in bad)
        nulls = query_row(self._connection, f"SELECT {counts} FROM {view}")
        groups = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {', '.join(names)} HAVING count(*) > 1"
        count, sample = query_row(self._connection, f"SELECT count(*), min(first, {SAMPLE_SIZE}) FROM ({groups})")
        null_keys = {key: rows for key, rows in zip(keys, nulls, strict=True) if rows}
        return null_keys, count, take(handle.select(list(keys)), np.array(sample or [], np.int64))

    def _find_first_rows(self, handle: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
        """Find the first row of each combination of values, in row order."""
        view, names = self._ensure_view(handle, columns), ", ".join(name_key_columns(len(columns)))
        first = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {names} ORDER BY first"
        return _to_arrays(query(self._connection, first))[0]

    def _ensure_view(self, handle: pa.Table, columns: Sequence[str]) -> str:
        """Register the canonical form of some columns, beside the number of each row, once."""
        known = self._views.get((id(handle), tuple(columns)))
        if known is None:
            kinds = [to_comparable_type(to_canonical_type(handle.schema.field(name).type)) for name in columns]
            schema = pa.schema([*zip(name_key_columns(len(columns)), kinds, strict=True), (SOURCE_ROW, pa.int64())])
            table = spool(_number_rows(handle, columns, schema), schema)
            known = handle, self._register("source_view", table)
            self._views[id(handle), tuple(columns)] = known
        return known[1]

    def _register(self, name: str, table: pa.Table) -> str:
        view = _make_unique_name(name)
        self._connection.register(view, table)
        return view


def _make_order_expression(name: str, data_type: pa.DataType) -> str:
    """Give what DuckDB is to order by: to the sort of old ones, bytes that end in zeros are equal to shorter ones."""
    return f"hex({name})" if pa.types.is_large_binary(data_type) else name


def _split_source(view: str, rows: int) -> list[str]:
    """Cut a long source in parts: until a MERGE ends, DuckDB holds all that it changes in memory."""
    if rows <= _ROWS_PER_MERGE:
        return [view]
    starts = range(0, rows, _ROWS_PER_MERGE)
    return [f"(FROM {view} WHERE {SOURCE_ROW} >= {at} AND {SOURCE_ROW} < {at + _ROWS_PER_MERGE})" for at in starts]


def _make_merge_statement(matched: str, view: str, keys: int, rule: Rule) -> str:
    """MERGE the source into the matched rows: a match learns its source row, the others come in without a place."""
    return f"""
        MERGE INTO {matched} AS target USING {view} AS source ON ({_make_join_condition(keys)})
        {f"WHEN MATCHED THEN UPDATE SET {SOURCE_ROW} = source.{SOURCE_ROW}" if rule.touches else ""}
        {"WHEN NOT MATCHED THEN INSERT BY NAME" if rule.inserts else ""}
        RETURNING merge_action, file, line, target.{SOURCE_ROW}
        """


def _make_union_statement(matched: str, view: str, keys: int, rule: Rule) -> str:
    """Say the same as MERGE without it."""
    updates = f"""
        SELECT '{UPDATE}' AS merge_action, file, line, source.{SOURCE_ROW}
        FROM {matched} AS target JOIN {view} AS source ON ({_make_join_condition(keys)})
        """
    inserts = f"""
        SELECT '{INSERT}' AS merge_action, NULL::INTEGER AS file, NULL::BIGINT AS line, source.{SOURCE_ROW}
        FROM {view} AS source WHERE NOT EXISTS (SELECT 1 FROM {matched} AS target WHERE {_make_join_condition(keys)})
        """
    return " UNION ALL ".join([updates] * rule.touches + [inserts] * rule.inserts)


def _make_join_condition(keys: int) -> str:
    return " AND ".join(f"target.{name} = source.{name}" for name in name_key_columns(keys))


@dataclass(frozen=True, slots=True)
class _RowOffsets:
    """The lines of files, laid end to end: the first of each file, and of each row group with its file and number."""

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
        """Count lines through all files."""
        return self.file_start[file] + line

    def to_positions(
        self, through: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Give file, row group and position of lines counted through all files."""
        # Of row groups that begin at one line all but the last are empty.
        at = np.searchsorted(self.group_start, through, side="right") - 1
        return self.file[at], self.row_group[at], through - self.group_start[at]


def _collect_matches(results: Iterable[pa.Table], lines: _RowOffsets) -> Matches:
    """Put what MERGE returned in the order of the files, and the new rows in that of the source."""
    through, rows, new = [], [], []
    for part in results:
        updated = pc.equal(part.column("merge_action"), UPDATE)
        file, line, row = _to_arrays(part.filter(updated).drop_columns("merge_action"))
        through.append(lines.to_global(file, line))
        rows.append(row)
        new.append(part.column(SOURCE_ROW).filter(pc.invert(updated)).to_numpy())
    place = np.concatenate(through)
    order = np.argsort(place, kind="stable")
    return Matches.from_positions(
        *lines.to_positions(place[order]), np.concatenate(rows)[order], np.sort(np.concatenate(new))
    )


def _number_rows(handle: pa.Table, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in handle.select(list(columns)).to_batches():
        keys = to_canonical_keys(pa.Table.from_batches([batch]), columns).columns
        numbers = np.arange(start, start + batch.num_rows)
        yield from pa.table([*map(to_comparable, keys), numbers], schema=schema).to_batches()
        start += batch.num_rows


def _to_arrays(table: pa.Table) -> list[npt.NDArray[Any]]:
    return [column.to_numpy() for column in table.columns]


def _make_unique_name(name: str) -> str:
    return f"{name}_{uuid.uuid4().hex}"
