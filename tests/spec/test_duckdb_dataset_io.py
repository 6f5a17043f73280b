"""The DuckDB dataset IO: the caller's connection is unchanged, and older functions do the same merge (D6, D8)."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files, put, read_rows, wrap_verb

from merganser import DatasetMergeError, DuckDBDatasetIO, DuckDBParquetHandler, MergeResult, WriteResult
from merganser.engines.duckdb import engine as engine_module
from merganser.engines.duckdb import instance
from merganser.engines.duckdb import key_scan as scan_module
from merganser.engines.duckdb.connection import detect_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
NEW = pa.table({"id": [2, 3, 4], "v": ["B", "C", "D"]})
STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]


@pytest.fixture
def path(lake: str) -> str:
    put(f"{lake}/t/a.parquet", OLD.slice(0, 2))
    put(f"{lake}/t/b.parquet", OLD.slice(2))
    put(f"{lake}/t/c.parquet", pa.table({"id": [90], "v": ["z"]}))
    return f"{lake}/t"


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A caller's connection in the middle of its own work: a transaction, tables, a view, settings."""
    with duckdb.connect(config={"threads": 2}) as found:
        found.execute("CREATE TABLE kept AS SELECT 1 AS a")
        found.execute("CREATE TEMP TABLE here AS SELECT 5 AS id, 'E' AS v")
        found.execute("CREATE VIEW seen AS SELECT a FROM kept")
        found.execute("SET memory_limit = '1GB'")
        found.execute("BEGIN TRANSACTION")
        found.execute("INSERT INTO kept VALUES (2)")
        yield found


def state(connection: duckdb.DuckDBPyConnection) -> list[Any]:
    """Everything of a connection that a merge could change."""
    queries = (
        "SELECT database_name, table_name, temporary, estimated_size FROM duckdb_tables() ORDER BY ALL",
        "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
        "SELECT name, value FROM duckdb_settings() ORDER BY ALL",
        "SELECT database_name FROM duckdb_databases() ORDER BY ALL",
        "SELECT a FROM kept ORDER BY a",
    )
    return [connection.execute(query).fetchall() for query in queries] + [connection.list_filesystems()]


class Interrupted:
    """What can go wrong in the middle of a merge."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


ERRORS = [RuntimeError("broken"), KeyboardInterrupt(), duckdb.OutOfMemoryException("too much")]


# D6
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_leaves_the_connection_as_it_was(
    connection: duckdb.DuckDBPyConnection, path: str, strategy: Any
) -> None:
    before = state(connection)
    io = DuckDBDatasetIO(connection)
    io.plan(NEW, path, strategy, "id")
    io.merge(NEW, path, strategy, "id", audit=True)
    assert state(connection) == before
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT a FROM kept").fetchall() == [(1,)]


# D6
@pytest.mark.parametrize("verb", ["conform", "collect_facts", "find_candidates", "match", "stage"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_merge_that_fails_leaves_the_connection_as_it_was(
    connection: duckdb.DuckDBPyConnection,
    path: str,
    verb: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state(connection)
    io = DuckDBDatasetIO(connection)
    wrap_verb(io, verb, lambda _: Interrupted(error), monkeypatch)
    expected = DatasetMergeError if isinstance(error, duckdb.Error) else type(error)
    with assert_unchanged(path), pytest.raises(expected):
        io.merge(NEW, path, "upsert", "id")
    assert state(connection) == before
    connection.execute("ROLLBACK")
    monkeypatch.undo()
    assert io.merge(NEW, path, "upsert", "id").updated == 2


# D6, K3
def test_a_refused_merge_leaves_the_connection_as_it_was(connection: duckdb.DuckDBPyConnection, path: str) -> None:
    before = state(connection)
    with assert_unchanged(path), pytest.raises(ValueError, match="NULL"):
        DuckDBDatasetIO(connection).merge(pa.table({"id": [None, 2], "v": ["x", "y"]}), path, "upsert", "id")
    assert state(connection) == before


# D6
def test_a_result_that_is_being_read_can_be_read_to_its_end(path: str) -> None:
    with duckdb.connect() as connection:
        pending = connection.execute("SELECT range FROM range(100000)")
        assert pending.fetchmany(2) == [(0,), (1,)]
        DuckDBDatasetIO(connection).merge(NEW, path, "upsert", "id")
        assert len(pending.fetchall()) == 99998


TABLES = "SELECT table_name FROM duckdb_tables()"
VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
VERBS = ["conform", "deduplicate", "collect_facts", "find_candidates", "match", "stage"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[instance._OpenInstance]]:
    """Every instance that calls open, each with the cursor that the first call in it works on."""
    seen: list[instance._OpenInstance] = []
    connect = instance._connect

    def spy(limits: instance.Limits) -> instance._OpenInstance:
        seen.append(connect(limits))
        return seen[-1]

    monkeypatch.setattr(instance, "_connect", spy)
    monkeypatch.setattr(instance, "_idle", defaultdict(list))
    yield seen
    for one in seen:
        one.database.close()


def is_closed(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("SELECT 1")
    except duckdb.ConnectionException:
        return True
    return False


# D6: rows that a statement is done with do not stay in memory while files are rewritten
@pytest.mark.parametrize("use_merge", [None, False])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "delete"])
def test_an_engine_method_leaves_only_the_source_in_its_instance(
    path: str, strategy: Any, use_merge: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = DuckDBDatasetIO()
    left: dict[str, list[Any]] = {}
    shown: list[str] = []

    engines: list[engine_module.DuckDBEngine] = []
    open_source = engine_module.DuckDBEngine.open

    def remember(self: engine_module.DuckDBEngine, source: Any) -> Any:
        engines.append(self)
        return open_source(self, source)

    def spied(verb: str, original: Callable[..., Any]) -> Any:
        def spy(*arguments: Any) -> Any:
            answer = original(*arguments)
            connection = engines[-1].connection
            views = [name for (name,) in connection.execute(VIEWS).fetchall()]
            shown.extend(views)
            strange = [name for name in views if not name.startswith("source_view_")]
            left[verb] = strange + connection.execute(TABLES).fetchall()
            return answer

        return spy

    monkeypatch.setattr(engine_module.DuckDBEngine, "open", remember)
    for verb in VERBS:
        wrap_verb(io, verb, partial(spied, verb), monkeypatch)
    source = pa.concat_tables([NEW, NEW]) if strategy == "deduplicate" else NEW
    for keys in ("id", ["id", "v"]):
        io.merge(source, path, strategy, keys, use_merge=use_merge)
    assert left.keys() >= {"conform", "collect_facts", "find_candidates", "match"}
    assert not any(left.values()), left
    assert shown


# D6
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_connection_that_did_the_work_is_closed(
    path: str, strategy: Any, opened: list[instance._OpenInstance], temporary: Path
) -> None:
    for number in range(2):
        DuckDBDatasetIO().merge(NEW, path, strategy, "id", audit=True)
        # The instance is used again, by another connection to it.
        ((kept,),) = instance._idle.values()
        (first,) = opened
        assert kept.database is first.database, number
        assert is_closed(first.cursor)
        for connection in (kept.cursor, kept.database):
            assert connection.execute(TABLES).fetchall() == []
            assert connection.execute(VIEWS).fetchall() == []
    assert os.listdir(temporary) == []


# D6
@pytest.mark.parametrize("verb", [*VERBS, "scan_keys", "_collect_matches"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_instance_in_which_a_merge_failed_is_closed(
    path: str, verb: str, error: BaseException, opened: list[instance._OpenInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    io = DuckDBDatasetIO()
    if verb in VERBS:
        wrap_verb(io, verb, lambda _: Interrupted(error), monkeypatch)
    else:
        monkeypatch.setattr(engine_module, verb, Interrupted(error))
    source = pa.concat_tables([NEW, NEW])
    with assert_unchanged(path), pytest.raises(DatasetMergeError if isinstance(error, duckdb.Error) else type(error)):
        io.merge(source, path, "deduplicate", "id")
    (failed,) = opened
    assert is_closed(failed.cursor)
    assert is_closed(failed.database)
    assert not any(instance._idle.values())


# D6: what an instance has spilled goes with it
def test_an_instance_that_has_spilled_is_closed(
    path: str, opened: list[instance._OpenInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    io = DuckDBDatasetIO()
    match = engine_module.DuckDBSource.match

    def spill(self: Any, *arguments: Any) -> Any:
        os.mkdir(opened[0].spill_folder)
        return match(self, *arguments)

    monkeypatch.setattr(engine_module.DuckDBSource, "match", spill)
    io.merge(NEW, path, "upsert", "id")
    (used,) = opened
    os.rmdir(used.spill_folder)
    assert is_closed(used.cursor)
    assert is_closed(used.database)
    assert not any(instance._idle.values())


# D6
def test_an_instance_that_a_file_has_broken_is_closed(
    path: str, opened: list[instance._OpenInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_module.scan_keys

    def broken(*arguments: Any, use_duckdb: bool) -> None:
        if use_duckdb:
            raise duckdb.FatalException("broken")
        scan(*arguments, use_duckdb=use_duckdb)

    monkeypatch.setattr(engine_module, "scan_keys", broken)
    assert DuckDBDatasetIO().merge(NEW, path, "upsert", "id").updated == 2
    first, second = opened
    assert is_closed(first.cursor)
    assert is_closed(first.database)
    assert is_closed(second.cursor)
    assert not is_closed(second.database)


# D6
@pytest.mark.parametrize("fails", [False, True])
def test_no_filesystem_stays_registered(
    fails: bool, opened: list[instance._OpenInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"memory://{uuid.uuid4().hex}/t"
    io = DuckDBDatasetIO()
    io.write_dataset(OLD, path)
    seen: list[str] = []
    by_duckdb = scan_module.KeyScan.scan_with_duckdb

    def spy(self: Any, *arguments: Any) -> None:
        seen.extend(self.connection.list_filesystems())
        by_duckdb(self, *arguments)
        if fails:
            raise OSError("broken")

    match = engine_module.DuckDBSource.match

    def after(self: Any, *arguments: Any) -> Any:
        try:
            return match(self, *arguments)
        finally:
            registered.append(self._connection.list_filesystems())

    registered: list[list[str]] = []
    monkeypatch.setattr(scan_module.KeyScan, "scan_with_duckdb", spy)
    monkeypatch.setattr(engine_module.DuckDBSource, "match", after)
    with pytest.raises(OSError, match="broken") if fails else nullcontext():
        io.merge(NEW, path, "upsert", "id")
    assert seen
    assert registered == [[]]
    assert len(opened) == 1


class Lending:
    """A connection that remembers the cursors that it gives."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.given: list[duckdb.DuckDBPyConnection] = []

    def cursor(self) -> duckdb.DuckDBPyConnection:
        self.given.append(self.connection.cursor())
        return self.given[-1]


# D6, D1
@pytest.mark.parametrize("ask", [instance.read_limits, detect_version])
def test_a_cursor_of_the_caller_is_closed(ask: Any) -> None:
    lending = Lending()
    assert ask(lending)
    (cursor,) = lending.given
    assert is_closed(cursor)
    assert not is_closed(lending.connection)


# D6
def test_a_relation_may_read_what_only_its_own_connection_sees(
    connection: duckdb.DuckDBPyConnection, path: str
) -> None:
    relation = connection.sql("SELECT id::BIGINT AS id, v FROM here")
    assert DuckDBDatasetIO(connection).merge(relation, path, "upsert", "id").inserted == 1
    assert DuckDBDatasetIO().merge(connection.table("here"), path, "upsert", "id").updated == 1
    assert {row["id"]: row["v"] for row in read_rows(DuckDBDatasetIO(), path)}[5] == "E"


# D7
def test_a_relation_that_fails_while_it_is_read_changes_nothing(path: str) -> None:
    with duckdb.connect() as connection:
        broken = "CASE WHEN range < 300000 THEN 'x' ELSE error('boom') END"
        relation = connection.sql(f"SELECT range AS id, {broken} AS v FROM range(400000)")  # noqa: S608
        with assert_unchanged(path), pytest.raises(DatasetMergeError, match=r"MERGE operation failed: .*boom"):
            DuckDBDatasetIO(connection).merge(relation, path, "upsert", "id")


# D6
def test_the_limits_of_the_connection_hold(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    io = DuckDBDatasetIO(duckdb.connect(config={"memory_limit": "200MB", "threads": 1}))
    match = engine_module.DuckDBSource.match

    def spy(self: Any, *arguments: Any) -> Any:
        ask = "SELECT current_setting('memory_limit'), current_setting('threads')"
        seen.extend(self._connection.execute(ask).fetchall())
        return match(self, *arguments)

    monkeypatch.setattr(engine_module.DuckDBSource, "match", spy)
    io.merge(NEW, path, "upsert", "id")
    ((memory, threads),) = seen
    assert memory in {"190.7 MiB", "190.6 MiB"}
    assert threads == 1


# D6: what a merge spills goes beside what the connection itself would spill, in a folder of its own
@pytest.mark.parametrize("made", [True, False])
def test_spilled_rows_go_where_the_connection_says(lake: str, made: bool) -> None:
    wanted = f"{lake}/spill"
    if made:
        os.mkdir(wanted)
    limits = instance.read_limits(duckdb.connect(config={"temp_directory": wanted}))
    one, other = (instance._choose_spill_folder(limits.temp_directory) for _ in range(2))
    assert one != other
    assert os.path.dirname(one) == (wanted if made else lake)
    off = instance.read_limits(duckdb.connect(config={"temp_directory": ""}))
    assert instance._choose_spill_folder(off.temp_directory) == ""


# D6
def test_a_closed_connection_is_reported(path: str) -> None:
    connection = duckdb.connect()
    connection.close()
    with assert_unchanged(path), pytest.raises(DatasetMergeError, match=r"MERGE operation failed: .*closed"):
        DuckDBDatasetIO(connection).merge(NEW, path, "upsert", "id")
    with pytest.raises(DatasetMergeError, match="closed"):
        DuckDBDatasetIO(connection).read(path)


# D6
def test_a_read_only_connection_will_do(lake: str, path: str) -> None:
    duckdb.connect(f"{lake}/some.duckdb").close()
    before = Path(f"{lake}/some.duckdb").read_bytes()
    with duckdb.connect(f"{lake}/some.duckdb", read_only=True) as connection:
        io = DuckDBDatasetIO(connection)
        assert io.merge(NEW, path, "upsert", "id").updated == 2
        assert io.read(path).order("id").fetchall()[0] == (1, "a")
    assert Path(f"{lake}/some.duckdb").read_bytes() == before


# D6
@pytest.mark.parametrize("given", ["lake.duckdb", 7, duckdb])
def test_what_is_not_a_connection_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="must be a DuckDB connection"):
        DuckDBDatasetIO(given)


# D6, P6: a broken page may take a whole instance of DuckDB along, and with it all that is in memory
@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"\x15"])
def test_a_broken_page_is_named_and_does_not_affect_other_merges(
    lake: str, connection: duckdb.DuckDBPyConnection, filling: bytes
) -> None:
    file = put(f"{lake}/t/a.parquet", pa.table({"id": list(range(1000)), "v": ["x"] * 1000}))
    chunk = pq.read_metadata(file).row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with open(file, "r+b") as stream:
        stream.seek(start)
        stream.write(filling * chunk.total_compressed_size)
    before = state(connection)
    with assert_unchanged(f"{lake}/t"), pytest.raises(OSError, match=r"a\.parquet"):
        DuckDBDatasetIO(connection).merge(NEW, f"{lake}/t", "upsert", "id")
    assert state(connection) == before


# D8
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_full_rewrites_every_file_with_the_same_result(lake: str, path: str, strategy: Any) -> None:
    other = f"{lake}/other"
    for name in list_data_files(path):
        put(f"{other}/{name}", pq.read_table(f"{path}/{name}"))
    io = DuckDBDatasetIO()
    merged = io.merge(NEW, path, strategy, "id")
    written = io.write_parquet_dataset(NEW, other, strategy, "id", rewrite_mode="full")
    assert isinstance(written, MergeResult)
    assert written.stats == merged.stats
    assert read_rows(io, other) == read_rows(io, path)
    assert written.preserved_files == []
    expected = ["a.parquet", "b.parquet"] + ["c.parquet"] * (strategy != "full_merge")
    assert [os.path.basename(file) for file in written.rewritten_files] == expected
    assert [os.path.basename(file) for file in written.removed_files] == ["c.parquet"] * (strategy == "full_merge")


# D8
def test_full_is_the_default_rewrite_mode(path: str) -> None:
    result = DuckDBDatasetIO().write_parquet_dataset(NEW.slice(0, 1), path, "update", "id")
    assert isinstance(result, MergeResult)
    assert len(result.rewritten_files) == 3


# D8
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_incremental_is_merge(lake: str, path: str, strategy: Any) -> None:
    other = f"{lake}/other"
    for name in list_data_files(path):
        put(f"{other}/{name}", pq.read_table(f"{path}/{name}"))
    io = DuckDBDatasetIO()
    merged = io.merge(NEW, path, strategy, "id", audit=True)
    written = io.write_parquet_dataset(NEW, other, strategy, ["id"], rewrite_mode="incremental", audit=True)
    assert isinstance(written, MergeResult)
    assert written.stats == merged.stats
    for kind in ("rewritten_files", "preserved_files", "removed_files"):
        ours, theirs = ([os.path.basename(file) for file in getattr(one, kind)] for one in (merged, written))
        assert ours == theirs
    assert written.audit == merged.audit
    assert read_rows(io, other) == read_rows(io, path)


# D8, O2
def test_without_a_strategy_it_is_a_write(path: str) -> None:
    io = DuckDBDatasetIO()
    added = io.write_parquet_dataset(NEW, path, max_rows_per_file=1)
    assert isinstance(added, WriteResult)
    assert (added.mode, len(added.files), len(list_data_files(path))) == ("append", 3, 6)
    replaced = io.write_parquet_dataset(NEW, path, mode="overwrite", partition_columns="v")
    assert isinstance(replaced, WriteResult)
    assert [row["id"] for row in read_rows(io, path)] == [2, 3, 4]


# D8
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewrite_mode": "some", "strategy": "update", "key_columns": "id"}, "Unknown rewrite_mode 'some'"),
        ({"key_columns": "id"}, "key_columns require a strategy"),
        ({"mode": "replace"}, "Unknown mode 'replace'"),
        ({"strategy": "update"}, "key_columns is empty"),
    ],
)
def test_invalid_writes_are_refused(path: str, options: Any, message: str) -> None:
    with assert_unchanged(path), pytest.raises(ValueError, match=message):
        DuckDBDatasetIO().write_parquet_dataset(NEW, path, **options)


# D8
@pytest.mark.parametrize("options", [{"audit": True}, {"strategy": "update", "key_columns": "id", "colour": "red"}])
def test_an_unknown_option_is_refused(path: str, options: Any) -> None:
    with assert_unchanged(path), pytest.raises(TypeError, match="unexpected keyword"):
        DuckDBDatasetIO().write_parquet_dataset(NEW, path, **options)


# R4
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_parquet_handler_returns_the_counts(lake: str, path: str, strategy: Any) -> None:
    other = f"{lake}/other"
    for name in list_data_files(path):
        put(f"{other}/{name}", pq.read_table(f"{path}/{name}"))
    stats = DuckDBParquetHandler(duckdb.connect()).merge_parquet_dataset(NEW, other, "id", strategy)
    assert stats == DuckDBDatasetIO().merge(NEW, path, strategy, "id").stats
    assert read_rows(DuckDBDatasetIO(), other) == read_rows(DuckDBDatasetIO(), path)


# R4, T3
def test_the_parquet_handler_takes_its_documented_parameters(lake: str) -> None:
    source = pa.table({"id": [1, 1], "v": ["late", "early"], "at": [2, 1]})
    stats = DuckDBParquetHandler().merge_parquet_dataset(source, f"{lake}/t", ["id"], "deduplicate", ["at"], "zstd")
    assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 1}
    assert [row["v"] for row in read_rows(DuckDBDatasetIO(), f"{lake}/t")] == ["late"]
    (file,) = list_data_files(f"{lake}/t")
    assert pq.read_metadata(f"{lake}/t/{file}").row_group(0).column(0).compression == "ZSTD"


# D8
@pytest.mark.parametrize("rewrite_mode", ["full", "incremental"])
def test_the_parquet_handler_writes_like_the_dataset_io(lake: str, path: str, rewrite_mode: Any) -> None:
    other = f"{lake}/other"
    for name in list_data_files(path):
        put(f"{other}/{name}", pq.read_table(f"{path}/{name}"))
    with DuckDBParquetHandler() as handler:
        ours = handler.write_parquet_dataset(NEW, other, "upsert", "id", rewrite_mode=rewrite_mode, audit=True)
        theirs = DuckDBDatasetIO().write_parquet_dataset(
            NEW, path, "upsert", "id", rewrite_mode=rewrite_mode, audit=True
        )
        assert isinstance(ours, MergeResult)
        assert isinstance(theirs, MergeResult)
        assert (ours.stats, ours.audit) == (theirs.stats, theirs.audit)
        assert len(ours.rewritten_files) == (3 if rewrite_mode == "full" else 2)
        assert read_rows(DuckDBDatasetIO(), other) == read_rows(DuckDBDatasetIO(), path)
        written = handler.write_parquet_dataset(OLD, other, mode="overwrite", max_rows_per_file=1)
        assert isinstance(written, WriteResult)
        assert len(written.files) == 3
    with assert_unchanged(other), pytest.raises(ValueError, match="key_columns require a strategy"):
        handler.write_parquet_dataset(NEW, other, key_columns="id")


# D6
@pytest.mark.parametrize("fails", [False, True])
def test_the_parquet_handler_closes_only_what_it_opened(path: str, fails: bool) -> None:
    with duckdb.connect() as given:
        with (
            pytest.raises(RuntimeError, match="on purpose") if fails else nullcontext(),
            DuckDBParquetHandler(given) as handler,
        ):
            assert handler.merge_parquet_dataset(NEW, path, "id").updated == 2
            if fails:
                raise RuntimeError("on purpose")
        handler.close()
        assert given.execute("SELECT 1").fetchall() == [(1,)]
    with DuckDBParquetHandler() as handler:
        own = handler._io.connection
        assert not is_closed(own)
    assert is_closed(own)
    handler.close()


# D6
def test_a_dataset_io_closes_only_its_own_connection(path: str) -> None:
    with duckdb.connect() as given:
        lent, owning = DuckDBDatasetIO(given), DuckDBDatasetIO()
        connections = [io.connection for io in (lent, owning)]
        for io in (lent, owning):
            assert io.read(path).fetchall()
            io.close()
            io.close()
        assert [is_closed(connection) for connection in connections] == [False, True]
        # What was closed is opened again when it is needed.
        assert owning.read(path).fetchall()
        owning.close()
