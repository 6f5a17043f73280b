"""Records that no row matches: they are kept, deleted or changed, in the transaction of the merge."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graph_oracle import Oracle, assert_unchanged, list_nodes, read_graph, to_comparable

from merganser.errors import GraphError, GraphSchemaError, InvalidArgumentError, UniqueConstraintError
from merganser.graph import Endpoint, GraphDatabase, GraphSchema, NodeType
from merganser.graph.sqlite import lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.graph.conftest import Clock

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

Row = dict[str, Any]
AS_ROWS = {"dicts": list, "table": pa.Table.from_pylist}
as_rows = pytest.mark.parametrize("rows", AS_ROWS.values(), ids=AS_ROWS)
indexed = pytest.mark.parametrize("index", [True, False], ids=["index", "scan"])


@pytest.fixture
def hosts(db: GraphDatabase) -> GraphDatabase:
    """Three hosts of two feeds, one with a service, and another type."""
    for name, feed in (("a", "x"), ("b", "x"), ("c", "y")):
        db.create_node("Host", {"name": name, "source": feed, "active": True})
    db.create_node("Service", {"name": "a"})
    db.create_edge(2, "RUNS", 4, {"port": 80})
    return db


def names(db: GraphDatabase, type_: str = "Host") -> list[str]:
    return [node["name"] for node in list_nodes(db, type_)]


# G19
@as_rows
@indexed
def test_missing_nodes_are_deleted(hosts: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool) -> None:
    if index:
        hosts.create_property_index("Host", "name", unique=True)
    given = rows([{"name": "b"}, {"name": "d"}, {"name": "d"}])
    done = hosts.bulk_merge_nodes("Host", given, match_on="name", missing="delete")
    assert (done.created, done.matched, done.missing, done.missing_ids) == (1, 2, 2, (1, 3))
    assert names(hosts) == ["b", "d"]
    assert names(hosts, "Service") == ["a"]
    again = hosts.bulk_merge_nodes("Host", given, match_on="name", missing="delete")
    assert (again.created, again.matched, again.missing) == (0, 3, 0)


# G19
@as_rows
def test_missing_nodes_get_properties(hosts: GraphDatabase, rows: Callable[[list[Row]], Any]) -> None:
    missing = {"active": False, "source": None}
    for expected in ((1, 3), ()):
        done = hosts.bulk_merge_nodes("Host", rows([{"name": "b"}]), match_on="name", missing=missing)
        assert (done.missing, done.missing_ids) == (len(expected), expected)
        assert list_nodes(hosts, "Host") == [
            {"name": "a", "active": False},
            {"name": "b", "source": "x", "active": True},
            {"name": "c", "active": False},
        ]


# G19
def test_records_that_are_missing_and_unchanged_keep_their_times(clock: Clock, hosts: GraphDatabase) -> None:
    hosts.bulk_merge_nodes("Host", [], match_on="name", missing={"active": False})
    before = [node.updated_at for node in hosts.nodes("Host")]
    clock.milliseconds += 1000
    hosts.bulk_merge_nodes("Host", [], match_on="name", missing={"active": False})
    assert [node.updated_at for node in hosts.nodes("Host")] == before


# G20
@as_rows
@indexed
def test_a_scope_limits_what_is_missing(hosts: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool) -> None:
    if index:
        hosts.create_property_index("Host", "name")
    given = rows([{"name": "b"}, {"name": "d"}])
    scope = {"source": "x"}
    done = hosts.bulk_merge_nodes("Host", given, match_on="name", missing="delete", scope=scope)
    assert (done.created, done.matched, done.missing_ids) == (1, 1, (1,))
    # The new host is in the scope, so that the next merge without it deletes it.
    assert [(node["name"], node["source"]) for node in list_nodes(hosts, "Host")] == [
        ("b", "x"),
        ("c", "y"),
        ("d", "x"),
    ]
    named = rows([{"name": "b", "source": "x"}])
    assert hosts.bulk_merge_nodes("Host", named, match_on="name", missing="delete", scope=scope).missing == 1
    assert names(hosts) == ["b", "c"]


# G20
@as_rows
@pytest.mark.parametrize("value", ["y", None], ids=["other", "NULL"])
def test_rows_outside_the_scope_are_refused(
    hosts: GraphDatabase, rows: Callable[[list[Row]], Any], value: str | None
) -> None:
    given = rows([{"name": "b", "source": "x"}, {"name": "d", "source": value}])
    with assert_unchanged(hosts), pytest.raises(InvalidArgumentError, match="row 1 is outside the scope: its 'source'"):
        hosts.bulk_merge_nodes("Host", given, match_on="name", missing="delete", scope={"source": "x"})


# G21
def test_missing_nodes_with_edges_are_refused_detached_or_kept(hosts: GraphDatabase) -> None:
    given: dict[str, Any] = {"match_on": "name", "missing": "delete"}
    with (
        assert_unchanged(hosts),
        pytest.raises(GraphError, match=r"1 node to be deleted has edges: 2\. Pass detach=True"),
    ):
        hosts.bulk_merge_nodes("Host", [{"name": "a"}], **given)
    with assert_unchanged(hosts), pytest.raises(GraphError, match="1 node to be deleted has edges: 4"):
        hosts.bulk_merge_nodes("Service", [], **given)
    kept = hosts.bulk_merge_nodes("Host", [{"name": "a"}], detach="keep", **given)
    assert (kept.missing_ids, kept.kept, kept.detached) == ((3,), 1, 0)
    assert names(hosts) == ["a", "b"]
    done = hosts.bulk_merge_nodes("Host", [{"name": "a"}], detach=True, **given)
    assert (done.missing_ids, done.kept, done.detached) == ((2,), 0, 1)
    assert (names(hosts), hosts.edges().count(), names(hosts, "Service")) == (["a"], 0, ["a"])


# G19, G20
@as_rows
def test_missing_edges_are_changed_or_deleted(hosts: GraphDatabase, rows: Callable[[list[Row]], Any]) -> None:
    hosts.create_edge(1, "RUNS", 4, {"port": 22, "feed": "x"})
    hosts.create_edge(1, "RUNS", 4, {"port": 80, "feed": "x"})
    hosts.create_edge(1, "SEES", 2, {"feed": "x"})
    given = rows([{"from_id": 1, "to_id": 4, "port": 22}, {"from_id": 3, "to_id": 4, "port": 22}])
    done = hosts.bulk_merge_edges("RUNS", given, match_on="port", missing={"up": False}, scope={"feed": "x"})
    assert (done.created, done.matched, done.missing_ids) == (1, 1, (3,))
    done = hosts.bulk_merge_edges("RUNS", given, match_on="port", missing="delete")
    assert (done.created, done.matched, done.missing_ids) == (0, 2, (1, 3))
    assert list(read_graph(hosts).edges.values()) == [
        ("RUNS", 1, 4, {"port": 22, "feed": "x"}),
        ("SEES", 1, 2, {"feed": "x"}),
        ("RUNS", 3, 4, {"port": 22, "feed": "x"}),
    ]


# G19
@as_rows
def test_rows_between_nodes_of_some_types_cover_only_the_edges_there(
    hosts: GraphDatabase, rows: Callable[[list[Row]], Any]
) -> None:
    hosts.create_edge(4, "RUNS", 1)
    host, service = Endpoint("Host", {"name": "host"}), Endpoint("Service", {"name": "service"})
    given = rows([{"host": "a", "service": "a"}])
    done = hosts.bulk_merge_edges("RUNS", given, from_node=host, to_node=service, missing="delete")
    assert (done.created, done.missing_ids) == (1, (1,))
    assert [edge[1:3] for edge in read_graph(hosts).edges.values()] == [(4, 1), (1, 4)]
    done = hosts.bulk_merge_edges("RUNS", [{"a": 4, "b": 1}], from_node="a", to_node="b", missing="delete")
    assert (done.matched, done.missing_ids) == (1, (3,))


# G19
def test_an_edge_that_points_the_other_way_is_not_missing(hosts: GraphDatabase) -> None:
    done = hosts.bulk_merge_edges("RUNS", [{"from_id": 4, "to_id": 2}], direction="both", missing="delete")
    assert (done.matched, done.missing) == (1, 0)


# G19
def test_a_failure_undoes_the_merge_and_what_it_deleted(db: GraphDatabase) -> None:
    db.create_property_index("Host", "slot", unique=True)
    for name in ("a", "b", "c"):
        db.create_node("Host", {"name": name})
    with assert_unchanged(db), pytest.raises(UniqueConstraintError, match="'slot': 1"):
        db.bulk_merge_nodes("Host", [{"name": "a", "new": 1}, {"name": "d"}], match_on="name", missing={"slot": 1})
    # A name that SQLite has no path to.
    done = db.bulk_merge_nodes("Host", [{"name": "a"}], match_on="name", missing={'"': 1})
    assert done.missing_ids == (2, 3)
    assert list_nodes(db) == [{"name": "a"}, {"name": "b", '"': 1}, {"name": "c", '"': 1}]


# G19, G18
def test_the_schema_applies_to_what_missing_records_become() -> None:
    with GraphDatabase(":memory:", schema=GraphSchema(nodes={"Host": NodeType(required=["name"])})) as db:
        db.create_node("Host", {"name": "a"})
        with assert_unchanged(db), pytest.raises(InvalidArgumentError, match="missing sets the match property 'name'"):
            db.bulk_merge_nodes("Host", [{"name": "b"}], match_on="name", missing={"name": None})
        with assert_unchanged(db), pytest.raises(GraphSchemaError, match="name"):
            db.bulk_merge_nodes("Host", [{"name": "b", "k": 1}], match_on="k", missing={"name": None})


# G19
def test_rows_may_come_from_a_generator_that_merges_others(hosts: GraphDatabase) -> None:
    def rows() -> Any:
        hosts.bulk_merge_nodes("Service", [{"name": "s"}], match_on="name", missing="delete", detach=True)
        yield {"name": "b"}

    assert hosts.bulk_merge_nodes("Host", rows(), match_on="name", missing="delete").missing_ids == (1, 3)
    assert names(hosts, "Service") == ["s"]


# G19, G20, G21
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "drop"}, "missing is 'drop'; give 'keep', 'delete'"),
        ({"missing": {}}, "missing is {}"),
        ({"scope": {"source": "x"}}, "missing='keep' keeps all"),
        ({"missing": "delete", "scope": {}}, "scope is empty"),
        ({"missing": "delete", "scope": {"source": None}}, "scope has None for 'source'"),
        ({"missing": "delete", "scope": {"source": ["x"]}}, "for 'source'; give a string"),
        ({"missing": "delete", "detach": "all"}, "detach is 'all'; give True, False or 'keep'"),
        ({"missing": "delete", "detach": 1}, "detach is 1"),
        ({"detach": True}, "detach applies to nodes that missing='delete' deletes"),
    ],
)
def test_options_that_make_no_sense_are_refused(hosts: GraphDatabase, options: Row, message: str) -> None:
    with assert_unchanged(hosts), pytest.raises(InvalidArgumentError, match=message):
        hosts.bulk_merge_nodes("Host", [{"name": "b"}], match_on="name", **options)


# G22
@as_rows
@indexed
def test_rows_whose_nodes_are_missing_are_skipped(
    hosts: GraphDatabase, rows: Callable[[list[Row]], Any], index: bool
) -> None:
    if index:
        hosts.create_property_index("Host", "name")
        hosts.create_property_index("Service", "name")
    ends: Row = {"from_node": Endpoint("Host", {"name": "h"}), "to_node": Endpoint("Service", {"name": "s"})}
    wanted = [("a", "a"), ("z", "a"), ("a", "z"), ("c", "a"), *(("a", f"x{n}") for n in range(12))]
    given = rows([{"h": host, "s": service} for host, service in wanted])
    with assert_unchanged(hosts), pytest.raises(GraphError, match="14 rows cannot be merged: row 1: no Host") as caught:
        hosts.bulk_merge_edges("USES", given, **ends)
    assert str(caught.value).count("row ") == 10
    assert "; and 4 more. Merge the nodes before" in str(caught.value)
    done = hosts.bulk_merge_edges("USES", given, on_missing_node="skip", **ends)
    assert (done.created, done.matched, done.skipped) == (2, 0, 14)
    assert done.skipped_rows[:2] == (
        "row 1: no Host node has {'name': 'z'}",
        "row 2: no Service node has {'name': 'z'}",
    )
    assert len(done.skipped_rows) == 10
    done = hosts.bulk_merge_edges("USES", given, on_missing_node="create", **ends)
    assert (done.created, done.matched, done.skipped, done.nodes_created) == (14, 2, 0, 14)
    assert names(hosts) == ["a", "b", "c", "z"]
    assert hosts.bulk_merge_edges("USES", given, **ends).matched == 16


# G22
def test_ids_of_nodes_that_do_not_exist_are_skipped_but_not_created(hosts: GraphDatabase) -> None:
    given = [{"from_id": 1, "to_id": 99}, {"from_id": 1, "to_id": 2}, {"from_id": 98, "to_id": 99}]
    with assert_unchanged(hosts), pytest.raises(InvalidArgumentError, match="cannot create the nodes of the column"):
        hosts.bulk_merge_edges("USES", given, on_missing_node="create")
    with assert_unchanged(hosts), pytest.raises(InvalidArgumentError, match="on_missing_node is 'drop'"):
        hosts.bulk_merge_edges("USES", given, on_missing_node="drop")  # type: ignore[arg-type]
    done = hosts.bulk_merge_edges("USES", given, on_missing_node="skip")
    assert (done.created, done.skipped) == (1, 2)
    assert done.skipped_rows == (
        "row 0: column 'to_id': there is no node with the id 99",
        "row 2: column 'from_id': there is no node with the id 98",
    )


# G22, G18
def test_the_schema_applies_to_nodes_that_are_created_for_edges() -> None:
    with GraphDatabase(":memory:", schema=GraphSchema(nodes={"Host": NodeType(required=["port"])})) as db:
        end = Endpoint("Host", {"name": "h"})
        with assert_unchanged(db), pytest.raises(GraphSchemaError, match=r"row 0: .*port"):
            db.bulk_merge_edges("SEES", [{"h": "a"}], from_node=end, to_node=end, on_missing_node="create")


# G23
def test_queries_delete_and_update_what_they_find(hosts: GraphDatabase) -> None:
    query = hosts.nodes("Host").where({"source": "x"})
    with assert_unchanged(hosts), pytest.raises(GraphError, match="has edges: 2"):
        query.delete()
    assert query.update({"active": False, "name": "n"}) == 2
    assert query.update({"active": False}) == 0
    assert hosts.nodes("Host").order_by("name", descending=True).limit(1).update({"last": True}) == 1
    assert [node.get("last") for node in list_nodes(hosts, "Host")] == [True, None, None]
    assert query.delete(detach="keep") == 1
    assert hosts.edges("RUNS").where("port", ">", 80).delete() == 0
    assert hosts.edges("RUNS").where("port", "=", 80).update({"port": None}) == 1
    assert hosts.edges("RUNS").delete() == 1
    assert query.delete() == 1
    assert names(hosts) == ["c"]
    assert hosts.nodes().delete(detach=True) == 2


# G23
def test_records_are_found_by_their_times(clock: Clock, hosts: GraphDatabase) -> None:
    start = clock.milliseconds
    hosts.update_node(1, {"active": True, "updated_at": "never"})
    clock.milliseconds = start + 5000
    hosts.update_node(2, {"active": False})
    hosts.create_node("Host", {"name": "d"})
    moment = datetime.fromtimestamp((start + 5000) / 1000, UTC)
    assert [node.id for node in hosts.nodes("Host").where("updated_at", "<", moment)] == [1, 3]
    assert [node.id for node in hosts.nodes("Host").where("updated_at", "=", moment)] == [2, 5]
    assert [node.id for node in hosts.nodes("Host").where("created_at", ">=", moment)] == [5]
    assert [node.id for node in hosts.nodes("Host").where({"updated_at": "never"})] == [1]
    assert hosts.nodes("Host").where("updated_at", "<", moment).delete() == 2


keys = st.sampled_from(["a", "b", "c", 1, True, 0.5])
feeds = st.sampled_from(["x", "y"])
policies = st.sampled_from(["keep", "delete", {"gone": True}, {"gone": True, "v": None}])
steps = st.one_of(
    st.fixed_dictionaries(
        {
            "rows": st.lists(st.fixed_dictionaries({"k": keys, "v": st.integers(0, 2)}), max_size=5),
            "missing": policies,
            "feed": st.none() | feeds,
            "detach": st.sampled_from([True, "keep"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "rows": st.lists(st.fixed_dictionaries({"a": keys, "b": keys, "v": st.integers(0, 2)}), max_size=5),
            "missing": policies,
            "feed": st.none() | feeds,
            "on_missing_node": st.sampled_from(["skip", "create"]),
        }
    ),
)


def sync(model: Oracle, kind: str, step: Row, merged: set[int]) -> None:
    """Do to the model what happens to the records that no row matched."""
    records: dict[int, Any] = model.nodes if kind == "nodes" else model.edges
    if step["missing"] == "keep":
        return
    for found in sorted(records.keys() - merged, reverse=True):
        properties = records[found][-1]
        if step["feed"] not in {None, properties.get("feed")}:
            continue
        connected = kind == "nodes" and any(found in edge[1:3] for edge in model.edges.values())
        if step["missing"] != "delete":
            (model.update_node if kind == "nodes" else model.update_edge)(found, step["missing"])
        elif kind == "edges":
            del records[found]
        elif not connected or step["detach"] is True:
            model.delete_node(found)


def find(model: Oracle, key: Any) -> int | None:
    found = [one for one, (_, old) in model.nodes.items() if to_comparable(old["k"]) == to_comparable(key)]
    return found[0] if found else None


def do_on_model(model: Oracle, step: Row) -> None:
    merged: set[int] = set()
    feed = {} if step["feed"] is None else {"feed": step["feed"]}
    for row in step["rows"]:
        if "k" in row:
            model.merge_node("N", {"k": row["k"]}, {"v": row["v"], **feed}, {"v": row["v"]})
            merged.add(find(model, row["k"]) or 0)
            continue
        ends = []
        for key in (row["a"], row["b"]):
            if find(model, key) is None and step["on_missing_node"] == "create":
                model.create_node("N", {"k": key})
            ends.append(find(model, key))
        if None not in ends:
            pair = (ends[0] or 0, ends[1] or 0)
            model.merge_edge(pair, "E", {}, {"v": row["v"], **feed}, {"v": row["v"]})
            merged |= {one for one, edge in model.edges.items() if edge[1:3] == pair}
    sync(model, "nodes" if "detach" in step else "edges", step, merged)


def do_on_database(db: GraphDatabase, step: Row, rows: Any) -> None:
    options = {"missing": step["missing"], "on_match": "v", "touch": False}
    if step["missing"] != "keep" and step["feed"] is not None:
        options["scope"] = {"feed": step["feed"]}
    elif step["feed"] is not None:
        rows = [{**row, "feed": step["feed"]} for row in step["rows"]]
    if "detach" in step:
        detach = step["detach"] if step["missing"] == "delete" else False
        db.bulk_merge_nodes("N", rows, match_on="k", detach=detach, **options)
    else:
        given: Row = {"from_node": Endpoint("N", {"k": "a"}), "to_node": Endpoint("N", {"k": "b"})}
        db.bulk_merge_edges("E", rows, on_missing_node=step["on_missing_node"], **given, **options)


def comparable(graph: Oracle) -> list[Any]:
    """Return a graph without ids."""
    keys = {found: to_comparable(old["k"]) for found, (_, old) in graph.nodes.items()}
    nodes = [to_comparable(dict(sorted(old.items()))) for _, old in graph.nodes.values()]
    edges = [
        (keys[start], keys[end], to_comparable(dict(sorted(old.items()))))
        for _, start, end, old in graph.edges.values()
    ]
    return [sorted(nodes, key=repr), sorted(edges, key=repr)]


# G19, G20, G21, G22
@pytest.mark.slow
@settings(max_examples=200)
@given(history=st.lists(steps, max_size=8), index=st.booleans(), table=st.booleans())
def test_any_history_of_syncs_agrees_with_a_model_of_dicts(history: list[Row], index: bool, table: bool) -> None:
    model = Oracle()
    with GraphDatabase(":memory:") as db, mock.patch.multiple(lookup, BATCH=3, COLUMN_ROWS=2):
        if index:
            db.create_property_index("N", "k", unique=True)
        for step in history:
            rows = step["rows"]
            if table and rows and len({type(row.get("k", row.get("a"))) for row in rows}) == 1 and "k" in rows[0]:
                rows = pa.Table.from_pylist(rows)
            do_on_model(model, step)
            do_on_database(db, step, rows)
            assert comparable(read_graph(db)) == comparable(model)
