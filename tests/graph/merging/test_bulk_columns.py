"""Arrow data is merged by column, with the same result as its rows: every stored byte, every count, every error."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graph_oracle import assert_unchanged, dump, read_graph

from merganser.core.columnar.take import to_array
from merganser.errors import MerganserError, MergeConflictError
from merganser.graph import BulkResult, Endpoint, GraphDatabase
from merganser.graph.merging import bulk, bulk_edges, bulk_options
from merganser.graph.sqlite import lookup, write
from merganser.graph.values import normalize_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]

STRINGS = ["", "a", '"', "\\", "\\u0000", "\x00", "a\nb", "\x7f", "é", "東京", "😀"]
MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 1, 2, 3, 4, 5), datetime(2026, 7, 1, 0, 0, 0, 7)]  # noqa: DTZ001
DAYS = [date(1, 1, 1), date(2026, 1, 2), date(9999, 12, 31)]
# Values of an Arrow type, also as they are in rows.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): STRINGS,
    pa.large_string(): STRINGS,
    pa.dictionary(pa.int32(), pa.string()): STRINGS,
    pa.int64(): [0, 1, -7, 2**53 + 1, -(2**63)],
    pa.uint8(): [0, 1, 255],
    pa.float64(): [1.0, -0.0, 0.1, 1e22, 1e-7, 123456789012345680.0, 0.5, 2.0],
    pa.bool_(): [True, False],
    pa.date32(): DAYS,
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    pa.time64("us"): [time(0, 0), time(1, 2, 3), time(1, 2, 3, 4)],
    pa.list_(pa.int64()): [[], [1, None]],
    pa.struct([("x", pa.float64()), ("y", pa.string())]): [{"x": 1.0, "y": '"'}, {"x": None, "y": "é"}],
    pa.decimal128(5, 2): [Decimal("1.50")],
    pa.null(): [None],
}
# Few keys, so that many of them meet; some types have equal keys, such as 1 and 1.0.
KEYS: dict[pa.DataType, list[Any]] = {
    pa.string(): ["1", "a", "\x00", "\\u0000", '"', "é", "true", "2026-01-02"],
    pa.large_string(): ["1", "a", ""],
    pa.int64(): [0, 1, 2, 3, 2**53 + 1],
    pa.float64(): [0.0, -0.0, 1.0, 2.0, 3.0],
    pa.bool_(): [True, False],
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    pa.list_(pa.int64()): [[1], [2]],
}
NAMES = ["a", "b.c", "é", '"']


@st.composite
def tables(draw: st.DrawFn, keys: dict[pa.DataType, list[Any]], *key_columns: str) -> tuple[pa.Table, list[Row]]:
    """Draw a table, in chunks, and its rows; mostly with distinct keys, and seldom with a NULL among them."""
    kinds = {name: draw(st.sampled_from(list(keys))) for name in key_columns}
    is_unique, has_null = draw(st.integers(0, 3)) > 0, draw(st.integers(0, 19)) == 0
    drawn = st.tuples(*(st.sampled_from([*keys[kind], None] if has_null else keys[kind]) for kind in kinds.values()))
    found = draw(st.lists(drawn, max_size=9, unique_by=repr if is_unique else None))
    columns = {name: [key[place] for key in found] for place, name in enumerate(key_columns)}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        kinds[name] = draw(st.sampled_from(list(VALUES)))
        value = st.sampled_from(VALUES[kinds[name]])
        columns[name] = draw(st.lists(value | st.none(), min_size=len(found), max_size=len(found)))
    names = draw(st.permutations(list(columns)))
    table = pa.table({name: pa.array(columns[name], kinds[name]) for name in names})
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
    cut = draw(st.integers(0, len(found)))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]), rows


def overwritten(table: pa.Table) -> st.SearchStrategy[dict[str, str]]:
    """Draw which column overwrites which property: mostly those of the same name."""
    names = [name for name in table.column_names if name in NAMES]
    own = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
    other = st.dictionaries(st.sampled_from(NAMES[:3]), st.sampled_from(table.column_names), max_size=2)
    return own.map(lambda columns: {name: name for name in columns}) | other


@contextmanager
def small_batches() -> Iterator[None]:
    with mock.patch.object(lookup, "BATCH", 2), mock.patch.object(lookup, "ARROW_BATCH", 4):
        yield


def run(merge: Callable[[GraphDatabase, Any], object], db: GraphDatabase, rows: Any, moment: int) -> object:
    """Merge at some moment; return the result, or the error."""
    with mock.patch.object(write, "current_milliseconds", return_value=moment):
        try:
            return merge(db, rows)
        except MerganserError as error:
            return type(error), str(error)


def assert_same(steps: list[tuple[Callable[[GraphDatabase, Any], object], Any, Any]]) -> None:
    """Merge tables into one graph and their rows into another, which then have the same bytes."""
    with GraphDatabase(":memory:") as by_column, GraphDatabase(":memory:") as by_row, small_batches():
        for db in (by_column, by_row):
            db.create_property_index("N", "k")
            db.create_property_index("N", ["k", "b.c"], table="edges")
        for moment, (merge, table, rows) in enumerate(steps):
            assert run(merge, by_column, table, moment) == run(merge, by_row, rows, moment)
            assert dump(by_column) == dump(by_row)


def node_merge(
    on_create: dict[str, str], on_match: dict[str, str], *, touch: bool
) -> Callable[[GraphDatabase, Any], object]:
    def merge(db: GraphDatabase, rows: Any) -> object:
        changes = bulk_options.RowChanges(on_create=on_create, on_match=on_match, touch=touch)
        return bulk.BulkNodes(db._store, "N", ("k",), changes).run(rows)

    return merge


@settings(max_examples=100)
@given(data=st.data(), touch=st.booleans())
def test_nodes_of_a_table_are_those_of_its_rows(data: st.DataObject, touch: bool) -> None:
    """G4, G5, G8, G13."""
    steps = []
    for table, rows in data.draw(st.lists(tables(KEYS, "k"), min_size=1, max_size=3)):
        columns = data.draw(overwritten(table)), data.draw(overwritten(table))
        steps.append((node_merge(*columns, touch=touch), table, rows))
    assert_same(steps)


@given(drawn=tables(KEYS, "k", "l"))
def test_keys_of_columns_are_those_of_rows(drawn: tuple[pa.Table, list[Row]]) -> None:
    """G5, G13."""
    table, rows = drawn
    found = lookup.find_column_keys([(to_array(table.column(name)), table.schema.field(name)) for name in ("k", "l")])
    if found is not None:
        normalized = [normalize_properties({"k": row["k"], "l": row["l"]}, "row") for row in rows]
        assert found == lookup.extract_keys(normalized, {"k": "k", "l": "l"}, 0)


def edge_merge(
    ends: tuple[Any, Any], match: tuple[str, ...], on_match: dict[str, str], *, touch: bool, is_undirected: bool
) -> Callable[[GraphDatabase, Any], object]:
    def merge(db: GraphDatabase, rows: Any) -> object:
        work = bulk_edges.BulkEdges(db._store, "E", match, bulk_options.RowChanges(on_match=on_match, touch=touch))
        work.set_endpoints(*ends, is_undirected=is_undirected)
        return work.run(rows)

    return merge


ENDS: tuple[dict[pa.DataType, list[Any]], ...] = (
    {pa.int64(): [1, 2, 3, 4]},
    {pa.string(): ["a", "b", '"'], pa.int64(): [1, 2]},
)


@settings(max_examples=100)
@given(
    data=st.data(),
    touch=st.booleans(),
    by_id=st.booleans(),
    is_undirected=st.integers(0, 4).map(lambda n: n == 0),
    is_matched=st.booleans(),
)
def test_edges_of_a_table_are_those_of_its_rows(
    data: st.DataObject, touch: bool, by_id: bool, is_undirected: bool, is_matched: bool
) -> None:
    """G2, G4, G5, G8, G13."""
    # Sometimes a node is missing.
    nodes: list[Row] = [{"k": key} for key in ["a", "b", '"', 1, 2][: data.draw(st.integers(4, 5))]]
    ends: tuple[Any, Any] = ("from", "to") if by_id else (Endpoint("N", {"k": "from"}), Endpoint("N", {"k": "to"}))
    match = ("m",) if is_matched else ()
    steps: list[Any] = [(lambda db, _: [db.create_node("N", node).id for node in nodes], None, None)]
    for table, rows in data.draw(st.lists(tables(ENDS[not by_id], "from", "to", *match), min_size=1, max_size=3)):
        on_match = data.draw(overwritten(table))
        merge = edge_merge(ends, match, on_match, touch=touch, is_undirected=is_undirected)
        steps.append((merge, table, rows))
    assert_same(steps)


@pytest.fixture
def by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to merge rows."""
    monkeypatch.setattr(bulk.BulkNodes, "merge_rows", lambda *_, **__: pytest.fail("the rows were merged as such"))


JOBS = pa.table({"url": ["/1", "/2"], "title": ['"', None], "salary": [1.0, 1e22], "day": [date(2026, 1, 2), None]})


@pytest.mark.usefixtures("by_column")
@pytest.mark.parametrize("touch", [True, False])
def test_a_table_is_merged_without_its_rows(db: GraphDatabase, touch: bool) -> None:
    """G13."""
    db.create_property_index("Job", "url")
    db.create_property_index("Company", "name")
    on_match = ["title", "salary"]
    for expected in (BulkResult(2, 0), BulkResult(0, 2)):
        assert db.bulk_merge_nodes("Job", JOBS, match_on="url", on_match=on_match, touch=touch) == expected
    companies = pa.table({"name": ["A"]})
    assert db.bulk_merge_nodes("Company", companies.to_reader(), match_on="name") == BulkResult(1, 0)
    edges = pa.table({"job": ["/1", "/2"], "company": ["A", "A"], "n": [1, None]})
    job, company = Endpoint("Job", {"url": "job"}), Endpoint("Company", {"name": "company"})
    for expected in (BulkResult(2, 0), BulkResult(0, 2)):
        found = db.bulk_merge_edges("E", edges, from_node=job, to_node=company, on_match="n", touch=touch)
        assert found == expected
    ids = pa.table({"from_id": [1, 2], "to_id": [3, 3], "n": [2, 2]})
    assert db.bulk_merge_edges("E", ids, on_match="n", touch=touch) == BulkResult(0, 2, changed=2)
    found_edges = db.connection.execute("SELECT from_id, to_id, properties FROM edges").fetchall()
    assert found_edges == [(1, 3, '{"n":2}'), (2, 3, '{"n":2}')]


@pytest.mark.usefixtures("by_column")
def test_a_null_removes_a_property(db: GraphDatabase) -> None:
    """G4, G13. Rows that set and remove different properties are updated together."""
    db.create_property_index("N", "k")
    names = ["a", "b"]
    db.bulk_merge_nodes("N", pa.table({"k": [1, 2, 3, 4], "a": [1, 1, 1, 1], "b": ["x"] * 4}), match_on="k")
    given = pa.table({"k": [4, 3, 2, 1], "a": [None, 2, None, 1], "b": ["x", None, None, "x"]})
    assert db.bulk_merge_nodes("N", given, match_on="k", on_match=names, touch=False) == BulkResult(0, 4, changed=3)
    found = [text for (text,) in db.connection.execute("SELECT properties FROM nodes ORDER BY id")]
    assert found == ['{"k":1,"a":1,"b":"x"}', '{"k":2}', '{"k":3,"a":2}', '{"k":4,"b":"x"}']


def test_only_records_that_change_are_written(db: GraphDatabase) -> None:
    """G8, G13."""
    db.create_property_index("N", "k")
    rows = pa.table({"k": range(20), "v": [1.0] * 20})
    db.bulk_merge_nodes("N", rows, match_on="k")
    with assert_unchanged(db):
        db.bulk_merge_nodes("N", rows, match_on="k", on_match="v", touch=False)
    changed = pa.table({"k": range(20), "v": [1.0] * 19 + [2.0]})
    before = db.connection.total_changes
    assert db.bulk_merge_nodes("N", changed, match_on="k", on_match="v", touch=False) == BulkResult(0, 20, changed=1)
    # The keys are staged in a temporary table, which is emptied before.
    assert db.connection.total_changes - before <= 41


REFUSED: list[tuple[pa.Table, str]] = [
    (pa.table({"k": [1, 2, None]}), "row 2: the match column 'k' is NULL"),
    (pa.table({"k": [1, 2, 3], "v": [0.5, 1.0, float("nan")]}), "row 2 property 'v' is NaN"),
    (pa.table({"k": [1, 2, 3], "v": [None, b"x", b"y"]}), "row 1 property 'v' is of type bytes"),
    (pa.table({"k": [1, 5], "v": [None, "x"]}), "row 1: Multiple"),
    (pa.table({"v": [1]}), "no column 'k'"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_refused_row_of_a_table_changes_nothing(db: GraphDatabase, table: pa.Table, message: str) -> None:
    """G3, G4, G5, G13."""
    db.create_property_index("N", "k")
    db.create_node("N", {"k": 5})
    db.create_node("N", {"k": 5.0})
    with assert_unchanged(db), pytest.raises((ValueError, TypeError, MerganserError), match=message):
        db.bulk_merge_nodes("N", table, match_on="k", on_match=["v"] if "v" in table.column_names else [])


@pytest.mark.parametrize("by_id", [True, False])
def test_an_edge_without_its_node_changes_nothing(db: GraphDatabase, by_id: bool) -> None:
    """G2, G13."""
    db.create_property_index("N", "k")
    db.create_node("N", {"k": 1})
    table = pa.table({"from_id": [1, 1], "to_id": [1, 2]})
    ends: Any = (
        {} if by_id else {"from_node": Endpoint("N", {"k": "from_id"}), "to_node": Endpoint("N", {"k": "to_id"})}
    )
    with assert_unchanged(db), pytest.raises(LookupError, match="row 1"):
        db.bulk_merge_edges("E", table, **ends)


def test_a_string_that_is_not_utf8_is_refused(db: GraphDatabase) -> None:
    """G5, G13."""
    db.create_property_index("N", "k")
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xed\xa0\x80"]).buffers())
    db.create_node("N", {"k": 1})
    table = pa.table({"k": [1], "v": broken})
    with assert_unchanged(db), pytest.raises(ValueError, match="'v' has a value that cannot be stored"):
        db.bulk_merge_nodes("N", table, match_on="k")


def test_nodes_that_change_between_batches_are_looked_up_again(db: GraphDatabase) -> None:
    """G13. The rows come from a generator that writes to the graph itself."""
    db.create_property_index("N", "k")
    old = [db.create_node("N", {"k": key}).id for key in ("a", "b")]

    def rows() -> Iterator[dict[str, str]]:
        for number in range(4):
            if number == 2:
                db.delete_node(old[0])
                db.create_node("N", {"k": "a"})
            yield {"from": "a", "to": "b"}

    ends = Endpoint("N", {"k": "from"}), Endpoint("N", {"k": "to"})
    with mock.patch.multiple(lookup, BATCH=2, COLUMN_ROWS=1):
        done = db.bulk_merge_edges("E", rows(), from_node=ends[0], to_node=ends[1])
    assert (done.created, done.matched) == (2, 2)
    assert [edge[1:3] for edge in read_graph(db).edges.values()] == [(3, 2)]


def test_two_nodes_of_one_key_do_not_stand_for_a_missing_one(db: GraphDatabase) -> None:
    """G3, G13."""
    db.create_property_index("N", "k")
    for _ in range(2):
        db.create_node("N", {"k": "a"})
    end = Endpoint("N", {"k": "k"})
    with pytest.raises(MergeConflictError, match="row 0"):
        db.bulk_merge_edges("E", pa.table({"k": ["a", "z"]}), from_node=end, to_node=end)


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist], ids=["dicts", "table"])
def test_a_repeat_writes_few_pages(file: str, form: Any) -> None:
    """G8, G13. Properties and their index are not written if nothing changes, whatever sets `updated_at`."""
    rows = [{"k": f"{number * 7919 % 5000:05}", "title": f"Engineer {number}", "seen": 1} for number in range(5000)]
    with GraphDatabase(file) as db:
        db.create_property_index("N", "k", unique=True)
        for pages in (0.2, 0.1):
            db.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.bulk_merge_nodes("N", form(rows), match_on="k", on_match=["title", "seen"])
            assert 0 < os.path.getsize(f"{file}-wal") / 4120 / len(rows) < pages
        moments = {node.updated_at > node.created_at for node in db.nodes("N")}
    assert moments == {True}
