"""The DuckDB engine: what to do with each row is decided in SQL, the rows themselves stay in Arrow.

DuckDB sees the canonical keys of the source, as a view of Arrow memory, and those of the target, as Parquet files. It
counts, prunes, joins and merges them, and may spill; then the shared kernels lay source rows over the target's files.
So no column but a key ever passes through DuckDB, and none can lose its type there.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.engine import SAMPLE, MatchCounts, SourceFacts
from merganser.core.keys import SOURCE_ROW, canonical_keys, canonical_type, key_names
from merganser.core.rows import EVEN, evened, take
from merganser.core.schema import conform, conformed
from merganser.core.source import stream_source
from merganser.core.spool import spool
from merganser.core.tables import Matches, TableEngine, count_groups, moved_rows
from merganser.engines.duckdb.client import one_row, query, registered, stream
from merganser.engines.duckdb.keys import comparable, comparable_type
from merganser.engines.duckdb.scan import scan_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from merganser.core.engine import ScanFile
    from merganser.core.storage import Store
    from merganser.core.strategy import Rule
    from merganser.engines.duckdb.instance import Instance

# How much sparser one round of rows is than the next when row groups are tested against them.
_STEP = 64
# Source rows of one MERGE.
_AT_ONCE = 1 << 20
INSERT, UPDATE = "INSERT", "UPDATE"


class DuckDBEngine(TableEngine):
    """The verbs of `merganser.core.engine.Engine` in SQL, in an instance of the engine's own."""

    name = "duckdb"

    def __init__(self, instance: Instance, choose: Callable[[], bool]) -> None:
        """Work in an instance; `choose` says, when the work begins, whether with MERGE."""
        self._instance = instance
        self._choose = choose
        self._views: dict[tuple[int, tuple[str, ...]], tuple[pa.Table, str]] = {}

    @cached_property
    def _merges(self) -> bool:
        return self._choose()

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._instance.connection

    def open(self, source: Any) -> pa.Table | pa.RecordBatchReader:
        # A relation streams through its own connection: ours would not see that one's temporary tables.
        return stream(source) if isinstance(source, duckdb.DuckDBPyRelation) else stream_source(source)

    def conform(self, handle: pa.Table | pa.RecordBatchReader, schema: pa.Schema) -> pa.Table:
        if isinstance(handle, pa.Table):
            return evened(conform(handle, schema))
        pieces = (conform(pa.Table.from_batches([batch]), schema) for batch in handle)
        return spool((batch for piece in pieces for batch in piece.to_batches()), conformed(schema))

    def deduplicate(self, handle: pa.Table, keys: Sequence[str], order_by: Sequence[str]) -> pa.Table:
        # Rows of one key do not differ in it.
        columns = [*keys, *(name for name in order_by if name not in keys)]
        view, names = self._view(handle, columns), key_names(len(columns))
        order = [f"{name} DESC NULLS LAST" for name in [*names[len(keys) :], SOURCE_ROW]]
        latest = query(
            self._connection,
            f"SELECT {SOURCE_ROW} FROM {view} QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(names[: len(keys)])} ORDER BY {', '.join(order)}) = 1",
        )
        rows = np.sort(latest.column(0).to_numpy())
        pieces = (take(handle, rows[start : start + EVEN]) for start in range(0, len(rows), EVEN))
        return spool((batch for piece in pieces for batch in piece.to_batches()), handle.schema)

    def facts(self, handle: pa.Table, keys: Sequence[str], partition_columns: Sequence[str]) -> SourceFacts:
        # Chosen before any row is looked at, so that a wish which cannot be met is refused whatever the rows.
        _ = self._merges
        partitions = handle.select(list(partition_columns))
        if partition_columns:
            partitions = take(partitions, self._first_rows(handle, partition_columns))
        null_keys, twice, sample = self._key_facts(handle, keys) if keys else ({}, 0, handle.select([]))
        with_nulls = frozenset(name for name in handle.column_names if handle.column(name).null_count)
        return SourceFacts(handle.num_rows, null_keys, twice, sample, with_nulls, partitions)

    def candidates(self, handle: pa.Table, keys: Sequence[str], bounds: pa.Table) -> npt.NDArray[np.bool_]:
        view, numbers = self._view(handle, keys), range(len(keys))
        ends = ", ".join(f"min(key_{at}), max(key_{at})" for at in numbers)
        hull = one_row(self._connection, f"SELECT {ends} FROM {view}")
        columns = {"number": pa.chunked_array([np.arange(bounds.num_rows)])}
        for name, end in zip(bounds.column_names[2:], hull, strict=True):
            # Where a bound is unknown, the source's own is as good.
            bound = comparable(bounds.column(name))
            columns[name] = pc.fill_null(bound, pa.scalar(end, bound.type))
        groups, answer = pa.table(columns), np.ones(bounds.num_rows, np.bool_)
        for at in numbers:
            lowest, highest = (pa.scalar(end, columns[f"min_{at}"].type) for end in hull[2 * at : 2 * at + 2])
            answer &= pc.less_equal(columns[f"min_{at}"], highest).to_numpy()
            answer &= pc.greater_equal(columns[f"max_{at}"], lowest).to_numpy()
        for at in numbers:
            # The lowest key that is not below the bounds tells whether any lies inside.
            inside = f"ASOF JOIN {view} ON min_{at} <= key_{at} WHERE key_{at} <= max_{at}"
            answer &= self._joined(groups.filter(pa.array(answer)), inside, len(answer))
        if len(keys) == 1:
            return answer
        # One row has to fit every column. Every so many of them are tried first: most row groups fit one soon, and a
        # range join of all rows would give every pair that fits.
        fits = " AND ".join(f"key_{at} >= min_{at} AND key_{at} <= max_{at}" for at in numbers)
        possible, answer = answer, np.zeros(bounds.num_rows, np.bool_)
        for step in (_STEP**2, _STEP, 1):
            some = f"(SELECT * FROM {view} WHERE {SOURCE_ROW} % {step} = 0)"
            answer |= self._joined(groups.filter(pa.array(possible & ~answer)), f"JOIN {some} ON {fits}", len(answer))
        return answer

    def _joined(self, groups: pa.Table, join: str, count: int) -> npt.NDArray[np.bool_]:
        """Say of each of `count` row groups whether a join keeps it."""
        kept = np.zeros(count, np.bool_)
        if groups.num_rows:
            with registered(self._connection, groups) as given:
                found = self._connection.execute(f"SELECT DISTINCT number FROM {given} {join}").fetchnumpy()
            kept[found["number"]] = True
        return kept

    def match(
        self,
        handle: pa.Table,
        keys: Sequence[str],
        store: Store,
        files: Sequence[ScanFile],
        partitions: pa.Table,
        rule: Rule,
    ) -> tuple[Matches, MatchCounts]:
        try:
            matched = self._scanned(handle, keys, store, files, by_duckdb=True)
        except (duckdb.FatalException, duckdb.InternalException):
            # Some broken files take the whole instance along; our own reader only says that they are broken.
            self._instance.renew()
            self._views.clear()
            matched = self._scanned(handle, keys, store, files, by_duckdb=False)
        way = _merge_statement if self._merges else _union_statement
        parts = _parts(self._view(handle, keys), handle.num_rows)
        matches = _matches(query(self._connection, way(matched, part, len(keys), rule)) for part in parts)
        counts = count_groups(matches.file, matches.row_group)
        if not rule.replaces:
            # Rows that stay as they are, but not as if they were unknown.
            count = f"SELECT file, row_group, count(*) FROM {matched} WHERE file IS NOT NULL GROUP BY ALL ORDER BY ALL"
            file, group, rows = _columns(query(self._connection, count))
            counts = file, group, rows
        self._connection.execute(f"DROP TABLE {matched}")
        moved, sample = moved_rows(matches, handle, keys, files, partitions)
        return matches, MatchCounts(*counts, len(matches.new), moved, sample)

    def _scanned(
        self, handle: pa.Table, keys: Sequence[str], store: Store, files: Sequence[ScanFile], *, by_duckdb: bool
    ) -> str:
        """Make the table of target rows that have a source key; their own source row comes with the merge."""
        view, matched = self._view(handle, keys), _unique("matched")
        names = ", ".join(key_names(len(keys)))
        self._connection.execute(
            f"CREATE TEMP TABLE {matched} AS SELECT 0::INTEGER AS file, 0::INTEGER AS row_group, 0::BIGINT AS place, "
            f"{names}, {SOURCE_ROW} FROM {view} LIMIT 0"
        )
        scan_keys(self._connection, matched, view, store, files, keys, handle.schema, by_duckdb=by_duckdb)
        return matched

    def _key_facts(self, handle: pa.Table, keys: Sequence[str]) -> tuple[dict[str, int], int, pa.Table]:
        view, names = self._view(handle, keys), key_names(len(keys))
        kinds = [canonical_type(handle.schema.field(key).type) for key in keys]
        bad = [
            f"{name} IS NULL OR isnan({name})" if pa.types.is_floating(kind) else f"{name} IS NULL"
            for name, kind in zip(names, kinds, strict=True)
        ]
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in bad)
        nulls = one_row(self._connection, f"SELECT {counts} FROM {view}")
        groups = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {', '.join(names)} HAVING count(*) > 1"
        count, sample = one_row(self._connection, f"SELECT count(*), min(first, {SAMPLE}) FROM ({groups})")
        null_keys = {key: rows for key, rows in zip(keys, nulls, strict=True) if rows}
        return null_keys, count, take(handle.select(list(keys)), np.array(sample or [], np.int64))

    def _first_rows(self, handle: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
        """Find the first row of each combination of values, in row order."""
        view, names = self._view(handle, columns), ", ".join(key_names(len(columns)))
        first = f"SELECT min({SOURCE_ROW}) AS first FROM {view} GROUP BY {names} ORDER BY first"
        return _columns(query(self._connection, first))[0]

    def _view(self, handle: pa.Table, columns: Sequence[str]) -> str:
        """Register the canonical form of some columns, beside the number of each row, once."""
        known = self._views.get((id(handle), tuple(columns)))
        if known is None:
            kinds = [comparable_type(canonical_type(handle.schema.field(name).type)) for name in columns]
            schema = pa.schema([*zip(key_names(len(columns)), kinds, strict=True), (SOURCE_ROW, pa.int64())])
            table = spool(_numbered(handle, columns, schema), schema)
            known = handle, self._register("source_view", table)
            self._views[id(handle), tuple(columns)] = known
        return known[1]

    def _register(self, name: str, table: pa.Table) -> str:
        view = _unique(name)
        self._connection.register(view, table)
        return view


def _parts(view: str, rows: int) -> list[str]:
    """Cut a long source in parts: until a MERGE ends, DuckDB holds all that it changes in memory."""
    if rows <= _AT_ONCE:
        return [view]
    starts = range(0, rows, _AT_ONCE)
    return [f"(FROM {view} WHERE {SOURCE_ROW} >= {at} AND {SOURCE_ROW} < {at + _AT_ONCE})" for at in starts]


def _merge_statement(matched: str, view: str, keys: int, rule: Rule) -> str:
    """MERGE the source into the matched rows: a match learns its source row, the others come in without a place."""
    return f"""
        MERGE INTO {matched} AS target USING {view} AS source ON ({_equal(keys)})
        {f"WHEN MATCHED THEN UPDATE SET {SOURCE_ROW} = source.{SOURCE_ROW}" if rule.replaces else ""}
        {"WHEN NOT MATCHED THEN INSERT BY NAME" if rule.inserts else ""}
        RETURNING merge_action, file, row_group, place, target.{SOURCE_ROW}
        """


def _union_statement(matched: str, view: str, keys: int, rule: Rule) -> str:
    """Say the same as MERGE without it."""
    updates = f"""
        SELECT '{UPDATE}' AS merge_action, file, row_group, place, source.{SOURCE_ROW}
        FROM {matched} AS target JOIN {view} AS source ON ({_equal(keys)})
        """
    inserts = f"""
        SELECT '{INSERT}' AS merge_action, NULL::INTEGER AS file, NULL::INTEGER AS row_group, NULL::BIGINT AS place,
            source.{SOURCE_ROW}
        FROM {view} AS source WHERE NOT EXISTS (SELECT 1 FROM {matched} AS target WHERE {_equal(keys)})
        """
    return " UNION ALL ".join([updates] * rule.replaces + [inserts] * rule.inserts)


def _equal(keys: int) -> str:
    return " AND ".join(f"target.{name} = source.{name}" for name in key_names(keys))


def _matches(decided: Iterable[pa.Table]) -> Matches:
    """Put what MERGE returned in the order of the files, and the new rows in that of the source."""
    updated, new = [], []
    for part in decided:
        action = part.column("merge_action")
        updated.append(part.filter(pc.equal(action, UPDATE)).drop_columns("merge_action"))
        new.append(part.filter(pc.equal(action, INSERT)).column(SOURCE_ROW).to_numpy())
    ordered = pa.concat_tables(updated).sort_by([(name, "ascending") for name in ("file", "row_group", "place")])
    file, group, place, row = _columns(ordered)
    return Matches(file, group, place, row, np.sort(np.concatenate(new)))


def _numbered(handle: pa.Table, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in handle.select(list(columns)).to_batches():
        keys = canonical_keys(pa.Table.from_batches([batch]), columns).columns
        numbers = np.arange(start, start + batch.num_rows)
        yield from pa.table([*map(comparable, keys), numbers], schema=schema).to_batches()
        start += batch.num_rows


def _columns(table: pa.Table) -> list[npt.NDArray[Any]]:
    return [column.to_numpy() for column in table.columns]


def _unique(name: str) -> str:
    return f"{name}_{uuid.uuid4().hex}"
