"""The scenarios of DuckDB's MERGE, in the order of their document (D1 to D7).

Where DuckDB has no MERGE, the tests of the fallback run and those of MERGE itself are left out.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from tests.support import assert_unchanged, list_data_files, put, read_rows, snapshot

from merganser import DatasetMergeError, DuckDBDatasetIO
from merganser.core import PathValidator
from merganser.engines.duckdb import connection as client
from merganser.engines.duckdb import connection as version_module
from merganser.engines.duckdb import engine as engine_module
from merganser.engines.duckdb.connection import FIRST_WITH_MERGE, detect_version, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_MERGE = parse_version(duckdb.__version__) >= FIRST_WITH_MERGE
needs_merge = pytest.mark.skipif(not HAS_MERGE, reason="this DuckDB has no MERGE")
AUTO = "Using DuckDB MERGE for merge operation (auto-detected)"
ASKED = "Using DuckDB MERGE (explicitly requested)"
FALLBACK = "Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)"
FALLBACK_ASKED = "Using UNION ALL (explicitly requested)"
LINES = {AUTO, ASKED, FALLBACK, FALLBACK_ASKED}
OLD = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
NEW = pa.table({"id": [2, 3, 4], "v": ["B", "C", "D"]})


@pytest.fixture
def path(lake: str) -> str:
    put(f"{lake}/t/a.parquet", OLD.slice(0, 2))
    put(f"{lake}/t/b.parquet", OLD.slice(2))
    return f"{lake}/t"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that decide what to do with each row."""
    seen: list[str] = []
    query = client.query

    def spy(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
        seen.append(sql)
        return query(connection, sql)

    monkeypatch.setattr(engine_module, "query", spy)
    return seen


@pytest.fixture
def old_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_module, "detect_version", lambda _: (1, 3, 2))


def list_log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message in LINES]


def merge(path: str, strategy: Any = "upsert", **options: Any) -> tuple[int, int, int]:
    result = DuckDBDatasetIO().merge(NEW, path, strategy, "id", **options)
    return result.inserted, result.updated, result.deleted


def values(path: str) -> dict[int, str]:
    return {row["id"]: row["v"] for row in read_rows(DuckDBDatasetIO(), path)}


MERGED = {1: "a", 2: "B", 3: "C", 4: "D"}


# D1, D2
@needs_merge
def test_auto_detected_merge(path: str, statements: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert merge(path) == (1, 2, 0)
    assert list_log_lines(caplog) == [AUTO]
    assert "MERGE INTO" in statements[-1]
    assert not any("UNION ALL" in sql or "NOT EXISTS" in sql for sql in statements)
    assert values(path) == MERGED


# D1, D2
@needs_merge
def test_merge_on_request(path: str, statements: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert merge(path, use_merge=True) == (1, 2, 0)
    assert list_log_lines(caplog) == [ASKED]
    assert "MERGE INTO" in statements[-1]
    assert not any("UNION ALL" in sql for sql in statements)


# D1, D2, D4
@pytest.mark.usefixtures("old_duckdb")
def test_an_old_duckdb_falls_back(path: str, statements: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert merge(path) == (1, 2, 0)
    assert list_log_lines(caplog) == [FALLBACK]
    assert "UNION ALL" in statements[-1]
    assert "NOT EXISTS" in statements[-1]
    assert not any("MERGE INTO" in sql for sql in statements)
    assert values(path) == MERGED


# D1, D2, D4
def test_the_fallback_on_request_asks_no_version(
    path: str, statements: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_: Any) -> tuple[int, int, int]:
        pytest.fail("the version was asked for")

    monkeypatch.setattr(version_module, "detect_version", asked)
    caplog.set_level(logging.INFO)
    assert merge(path, use_merge=False) == (1, 2, 0)
    assert list_log_lines(caplog) == [FALLBACK_ASKED]
    assert "UNION ALL" in statements[-1]
    assert not any("MERGE INTO" in sql for sql in statements)
    assert values(path) == MERGED


# D2: a merge that compares no row with the target runs neither, and claims neither
@pytest.mark.parametrize("use_merge", [None, pytest.param(True, marks=needs_merge), False])
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate", "delete"])
@pytest.mark.parametrize("first_id", [2, 50], ids=["matches", "none matches"])
def test_the_log_names_the_statement_that_was_run_and_no_other(
    path: str,
    strategy: Any,
    first_id: int,
    use_merge: bool | None,
    statements: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    source = pa.table({"id": [first_id, first_id + 1], "v": ["x", "y"]})
    DuckDBDatasetIO().merge(source, path, strategy, "id", use_merge=use_merge)
    run = [sql for sql in statements if "merge_action" in sql]
    assert len(run) == (first_id == 2)
    expected = {None: AUTO if HAS_MERGE else FALLBACK, True: ASKED, False: FALLBACK_ASKED}[use_merge]
    assert list_log_lines(caplog) == [expected] * len(run)
    assert all(("MERGE INTO" in sql) is ("DuckDB MERGE" in expected) for sql in run)


# D2
def test_no_statement_is_logged_of_a_first_load_a_write_or_a_plan(
    lake: str, path: str, statements: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    io = DuckDBDatasetIO()
    io.merge(NEW, f"{lake}/new", key_columns="id")
    io.write_dataset(NEW, path)
    io.write_parquet_dataset(NEW, path, mode="overwrite")
    io.read(path).fetchall()
    assert not [sql for sql in statements if "merge_action" in sql]
    # A plan merges nothing, though it asks what a merge would do.
    io.plan(NEW, path, key_columns="id")
    assert list_log_lines(caplog) == []


# D3, T2
@needs_merge
def test_insert_by_merge(path: str, statements: list[str]) -> None:
    before = snapshot(path)
    assert merge(path, "insert") == (1, 0, 0)
    decided = next(sql for sql in statements if "MERGE INTO" in sql)
    assert "WHEN NOT MATCHED THEN INSERT BY NAME" in decided
    assert "WHEN MATCHED" not in decided
    assert before.items() <= snapshot(path).items()
    assert values(path) == {1: "a", 2: "b", 3: "c", 4: "D"}


# D3, T2
@needs_merge
def test_update_by_merge(path: str, statements: list[str]) -> None:
    assert merge(path, "update") == (0, 2, 0)
    assert "WHEN MATCHED THEN UPDATE" in statements[-1]
    assert "WHEN NOT MATCHED" not in statements[-1]
    assert values(path) == {1: "a", 2: "B", 3: "C"}
    assert list_data_files(path) == ["a.parquet", "b.parquet"]


# D3
@needs_merge
def test_upsert_by_merge(path: str, statements: list[str]) -> None:
    assert merge(path, "upsert") == (1, 2, 0)
    matched, new = (statements[-1].index(f"WHEN {kind}MATCHED THEN") for kind in ("", "NOT "))
    assert matched < new < statements[-1].index("RETURNING merge_action")
    assert values(path) == MERGED


# D3, K10
@pytest.mark.parametrize("use_merge", [pytest.param(True, marks=needs_merge), False])
def test_a_key_of_several_columns_joins_on_all_of_them(lake: str, statements: list[str], use_merge: bool) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1, 1, 2], 'the "category"': ["x", "y", "x"], "v": [0, 0, 0]}))
    source = pa.table({"id": [1, 2], 'the "category"': ["y", "y"], "v": [1, 1]})
    result = DuckDBDatasetIO().merge(source, f"{lake}/t", "upsert", ["id", 'the "category"'], use_merge=use_merge)
    assert (result.inserted, result.updated) == (1, 1)
    assert "target.key_0 = source.key_0 AND target.key_1 = source.key_1" in statements[-1]


# D3, R5
@needs_merge
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_the_audit_comes_from_what_merge_returns(path: str, strategy: Any, statements: list[str]) -> None:
    result = DuckDBDatasetIO().merge(NEW, path, strategy, "id", audit=True)
    assert any("RETURNING merge_action" in sql for sql in statements)
    assert result.audit is not None
    actions = result.audit.column("merge_action").to_pylist()
    counts = [actions.count(action) for action in ("insert", "update", "delete")]
    assert counts == [result.inserted, result.updated, result.deleted]


# D3: the day that DuckDB takes these, the matched rows need no table of their own
@needs_merge
def test_duckdb_still_refuses_to_merge_into_a_file(lake: str) -> None:
    file = put(f"{lake}/a.parquet", OLD)
    connection = duckdb.connect()
    source = "(SELECT 2 AS id, 'B' AS v) AS source ON (target.id = source.id) WHEN MATCHED THEN UPDATE SET *"
    with pytest.raises(duckdb.Error):
        connection.execute(f"MERGE INTO parquet_scan('{file}') AS target USING {source}")


# D3
@needs_merge
def test_duckdb_still_refuses_to_copy_what_merge_returns(lake: str) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE target AS SELECT 2 AS id, 'b' AS v")
    statement = (
        "MERGE INTO target USING (SELECT 2 AS id, 'B' AS v) AS source ON (target.id = source.id) "
        "WHEN MATCHED THEN UPDATE SET * RETURNING merge_action, *"
    )
    assert connection.execute(statement).fetchall() == [("UPDATE", 2, "B")]
    with pytest.raises(duckdb.Error):
        connection.execute(f"COPY ({statement}) TO '{lake}/out.parquet'")


# D1
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.4.0", (1, 4, 0)),
        ("1.4.1", (1, 4, 1)),
        ("10.2.3", (10, 2, 3)),
        ("v1.5.0", (1, 5, 0)),
        ("1.6.0-dev123", (1, 6, 0)),
        ("v2.0.0", (2, 0, 0)),
    ],
)
def test_versions_are_three_numbers(text: str, found: tuple[int, int, int]) -> None:
    assert parse_version(text) == found


# D1
@pytest.mark.parametrize("text", ["", "garbage", "1.4", "one.four.zero", "1.x.0", "None", "-1.4.0", "1.4.0.1", "1..4"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        parse_version(text)


class Asked:
    """A connection that counts queries for its version, and answers or fails."""

    def __init__(self, answer: str | duckdb.Error) -> None:
        self.answer = answer
        self.queries: list[str] = []

    @contextmanager
    def cursor(self) -> Iterator[Asked]:
        yield self

    def execute(self, sql: str) -> Asked:
        self.queries.append(sql)
        if isinstance(self.answer, duckdb.Error):
            raise self.answer
        return self

    def fetchone(self) -> tuple[str] | None:
        return (str(self.answer),)


# D1
def test_the_version_is_asked_once_for_each_connection() -> None:
    connections: list[Any] = [Asked("v1.3.2"), Asked("10.0.0")]
    assert [detect_version(one) for one in connections * 3] == [(1, 3, 2), (10, 0, 0)] * 3
    assert [len(one.queries) for one in connections] == [1, 1]
    assert "pragma_version()" in connections[0].queries[0]


# D1
@pytest.mark.parametrize("answer", ["garbage", "", duckdb.InvalidInputException("no such pragma")])
def test_an_unknown_version_counts_as_too_old(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    connection: Any = Asked(answer)
    assert detect_version(connection) == (0, 0, 0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("Could not determine DuckDB version")
    assert version_module.should_use_merge(connection, None) is False


# D1: as tuples, 10.2 is after 1.4
@pytest.mark.parametrize(
    ("version", "merges"),
    [
        ((1, 4, 0), True),
        ((1, 4, 1), True),
        ((10, 2, 3), True),
        ((2, 0, 0), True),
        ((1, 3, 99), False),
        ((0, 0, 0), False),
    ],
)
def test_merge_is_supported_from_1_4_0_on(
    version: tuple[int, int, int], merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_module, "detect_version", lambda _: version)
    assert version_module.should_use_merge(duckdb.connect(), None) is merges


# D1
def test_a_failed_detection_falls_back(path: str, monkeypatch: pytest.MonkeyPatch, statements: list[str]) -> None:
    monkeypatch.setattr(version_module, "detect_version", lambda _: (0, 0, 0))
    assert merge(path) == (1, 2, 0)
    assert "UNION ALL" in statements[-1]


# D1
@pytest.mark.parametrize(("version", "shown"), [((1, 3, 2), "1.3.2"), ((0, 0, 0), "unknown")])
def test_a_required_merge_that_is_not_supported_is_refused(
    path: str, version: tuple[int, int, int], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_module, "detect_version", lambda _: version)
    with assert_unchanged(path), pytest.raises(DatasetMergeError) as caught:
        merge(path, use_merge=True)
    message = str(caught.value)
    text = f"DuckDB MERGE requested but not available. Required version: >= 1.4.0, Current: {shown}"
    assert message.startswith(text)
    assert "Upgrade" in message
    assert "use_merge=False" in message


# D1
def test_a_first_load_is_refused_as_well(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_module, "detect_version", lambda _: (1, 3, 2))
    with pytest.raises(DatasetMergeError, match="not available"):
        DuckDBDatasetIO().merge(NEW, f"{lake}/t", key_columns="id", use_merge=True)
    assert list_data_files(f"{lake}/t") == []


# D1
@pytest.mark.parametrize("value", ["yes", 1, 0, "auto", [], 1.0])
def test_use_merge_is_true_false_or_none(path: str, value: Any) -> None:
    with assert_unchanged(path), pytest.raises(ValueError, match="Invalid use_merge value") as caught:
        merge(path, use_merge=value)
    assert "Must be True, False, or None for auto-detect" in str(caught.value)
    assert repr(value) in str(caught.value)


# D3, D6
def test_a_table_is_registered_without_a_copy_and_gone_afterwards(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, pa.Table]] = []
    register = engine_module.DuckDBEngine.register

    def spy(self: Any, name: str, table: pa.Table) -> str:
        view = register(self, name, table)
        shown.append((view, table))
        return view

    monkeypatch.setattr(engine_module.DuckDBEngine, "register", spy)
    source = pa.table({"id": pa.array([2, 3, 4], pa.int64()), "v": ["B", "C", "D"]})
    connection = duckdb.connect()
    DuckDBDatasetIO(connection).merge(source, path, key_columns="id")
    (view, table), *more = shown
    assert view.startswith("source_view_")
    assert len({name for name, _ in shown}) == len(more) + 1
    # The key column is the very memory that the caller gave.
    assert table.column(0).chunk(0).buffers()[1].address == source.column(0).chunk(0).buffers()[1].address
    assert connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == []


# D3, K10
@pytest.mark.parametrize("name", ["select", 'a "quoted" one', "semi;colon", "key_0", "source_row", "file", "é", " "])
def test_any_column_name_is_carried(lake: str, name: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({name: [1, 2], "v;--": ["a", "b"]}))
    result = DuckDBDatasetIO().merge(pa.table({name: [2, 3], "v;--": ["B", "C"]}), f"{lake}/t", key_columns=name)
    assert (result.inserted, result.updated) == (1, 1)


BAD = [
    "it's",
    'a"b',
    "a;b",
    "a--b",
    "a/*b",
    "a*/b",
    "../t",
    "a/../b",
    "..",
    "a`b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x1bb",
    "a\u202eb",
    "a\u2066b",
    "a\u200bb",
    "a\ufeffb",
    "a\u00adb",
    "a\u2028b",
    "'; DROP TABLE t; --",
]
GOOD = [
    "plain",
    "two words",
    "day=2025-01-01",
    "a:b",
    "50%",
    "a+b",
    "user@host",
    "~tilde",
    "a,b",
    "under_score",
    "dash-ed",
    "v1.2.3",
    "a..b",
    "...",
    "Größe",
    "東京",
    "مدينة",
    "Ελλάδα",
    "(x)",
    "a&b",
    "#1",
    "!x",
    "{a}",
    "[b]",
    "$c",
    "a^b",
]


# D5
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verb", ["merge", "plan", "write_dataset", "read"])
def test_paths_that_could_change_a_statement_are_refused(
    lake: str, name: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, more = DuckDBDatasetIO(), {"key_columns": "id"} if verb in {"merge", "plan"} else {}
    arguments = [] if verb == "read" else [NEW]
    monkeypatch.chdir(lake)
    for path in (f"{lake}/{name}", name):
        with pytest.raises(ValueError, match="path"):
            getattr(io, verb)(*arguments, path, **more)
    assert snapshot(lake) == {}


# D5
@pytest.mark.parametrize("name", GOOD)
def test_other_paths_pass_and_work(lake: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    io = DuckDBDatasetIO()
    assert PathValidator.escape_for_sql(f"{lake}/{name}/t") == f"{lake}/{name}/t"
    io.write_dataset(OLD, f"{lake}/{name}/t")
    assert io.merge(NEW, f"{lake}/{name}/t", key_columns="id").updated == 2
    monkeypatch.chdir(lake)
    assert io.merge(NEW, f"{name}/t", key_columns="id").updated == 3
    assert io.read(f"{lake}/{name}/t").order("id").fetchall() == list(MERGED.items())


# D5: DuckDB takes a name for a pattern, even one that is bound and even where a file has it
@pytest.mark.parametrize("name", ["a*", "a?", "a[b]", "it's", "a;b", 'a"b', "a--b", "[!x]", "{a,b}"])
def test_files_of_any_name_are_read_as_themselves(lake: str, name: str) -> None:
    for number, stem in enumerate((name, "ab", "aX", "abc", "y")):
        put(f"{lake}/t/{stem}.parquet", pa.table({"id": [number], "v": [stem]}))
        put(f"{lake}/t/d={stem}/f.parquet", pa.table({"id": [number + 10], "v": [stem]}))
    ids = [*range(5), *range(10, 15)]
    io = DuckDBDatasetIO()
    plan = io.plan(
        pa.table({"id": ids, "v": ["new"] * 10, "d": pa.nulls(10, pa.string())}), f"{lake}/t", "insert", "id"
    )
    assert plan.inserted == 0
    assert {(file.rows, file.candidate_groups) for file in plan.files} == {(1, 1)}


# D3, C3
@pytest.mark.parametrize("use_merge", [pytest.param(True, marks=needs_merge), False])
def test_several_files_are_staged_and_replaced_together(path: str, use_merge: bool, lake: str) -> None:
    result = DuckDBDatasetIO().merge(NEW, path, "upsert", "id", use_merge=use_merge)
    assert len(result.rewritten_files) == 2
    assert values(path) == MERGED
    assert not [name for name in snapshot(f"{lake}/.t.merganser") if "staging" in name]


# D4
@needs_merge
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_one_merge_never_mixes_both_ways(path: str, strategy: Any, statements: list[str]) -> None:
    for use_merge in (True, False):
        statements.clear()
        merge(path, strategy, use_merge=use_merge)
        assert any("MERGE INTO" in sql for sql in statements) is use_merge
        assert any("UPDATE' AS" in sql or "NOT EXISTS" in sql for sql in statements) is not use_merge


# D3: all inserts, all updates, both; keys of one column and of two
@pytest.mark.parametrize("use_merge", [pytest.param(True, marks=needs_merge), False])
@pytest.mark.parametrize(("ids", "counts"), [([7, 8], (2, 0)), ([1, 2, 3], (0, 3)), ([3, 9], (1, 1)), ([], (0, 0))])
@pytest.mark.parametrize("keys", [["id"], ["id", "w"]])
def test_counts_are_exact(lake: str, ids: list[int], counts: tuple[int, int], keys: list[str], use_merge: bool) -> None:
    def table(given: list[int]) -> pa.Table:
        numbers = pa.array(given, pa.int64())
        return pa.table({"id": numbers, "w": numbers, "v": numbers})

    put(f"{lake}/t/a.parquet", table([1, 2, 3]))
    result = DuckDBDatasetIO().merge(table(ids), f"{lake}/t", "upsert", keys, use_merge=use_merge)
    assert (result.inserted, result.updated) == counts


# D7
@pytest.mark.parametrize("error", [duckdb.ParserException, duckdb.InvalidInputException, duckdb.OutOfMemoryException])
def test_an_error_of_duckdb_says_what_was_being_done(
    path: str, error: type[duckdb.Error], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> str:
        raise error("syntax error at or near MERGE")

    monkeypatch.setattr(engine_module, "_make_merge_statement", fail)
    monkeypatch.setattr(engine_module, "_make_union_statement", fail)
    with assert_unchanged(path), pytest.raises(DatasetMergeError) as caught:
        merge(path)
    assert str(caught.value).startswith("MERGE operation failed: syntax error at or near MERGE")
    for part in ("operation merge", "strategy upsert", "key columns id"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, error)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    for part in (error.__name__, "strategy upsert", path):
        assert part in record.message


# D7: DuckDB refuses the statement itself
def test_a_statement_that_duckdb_cannot_parse_is_reported_with_its_message(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_make_merge_statement", "_make_union_statement"):
        monkeypatch.setattr(engine_module, name, lambda *_: "MERGE EVERYTHING NOW")
    with (
        assert_unchanged(path),
        pytest.raises(DatasetMergeError, match=r"MERGE operation failed: .*[Ss]yntax") as caught,
    ):
        merge(path)
    assert isinstance(caught.value.__cause__, duckdb.ParserException)
