"""What a run stages: rows once, with the columns of every step, and records in as many groups as they need."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.postings import load_demo, read_datasets, read_parquet_graph, read_sqlite_graph
from tests.support import open_spark, read_rows

from merganser.demo.feed import write_day
from merganser.engines.spark import grouping
from merganser.errors import ConfigurationError, MerganserError, PropertyValueError
from merganser.graph import GraphDatabase, ParquetGraph
from merganser.pipeline import Dataset, Edge, Ends, Graph, Node, Pipeline, Source, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
ROWS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("staging")
    write_day(str(made / "feed"), date(2026, 1, 5), ROWS)
    run(load_demo(made), spark=open_spark().spark, run_id="day")  # type: ignore[attr-defined]
    return made


def test_records_in_several_groups_are_the_same_records(
    spark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "FILE_BYTES", 10_000)
    write_day(str(tmp_path / "feed"), date(2026, 1, 5), ROWS)
    outcome = run(load_demo(tmp_path), spark=spark)
    assert outcome.unbalanced() == []
    assert read_datasets(tmp_path) == read_datasets(folder)
    assert read_parquet_graph(tmp_path) == read_sqlite_graph(folder) == read_parquet_graph(folder)
    # Nothing that was staged is left.
    assert not [path for path in (tmp_path / "state").rglob("*") if path.suffix in {".rows", ".groups"}]


def make_teams(folder: Path, **changed: Any) -> Pipeline:
    """People and their teams: two datasets, and a graph in both formats."""
    tables: dict[str, Any] = {
        "name": "teams",
        "state": str(folder / "state"),
        "source": [
            Source(name="people", path=str(folder / "feed"), format="json", schema="id INT, name STRING, team STRING")
        ],
        "dataset": [
            Dataset(name=name, source="people", path=str(folder / name), key_columns="id") for name in ("one", "two")
        ],
        "graph": Graph(
            path=str(folder / "graph"),
            sqlite=str(folder / "graph.db"),
            node=[
                Node(type="Person", source="people", match="id", base="name"),
                Node(type="Team", source="people", match={"name": "team"}),
            ],
            edge=[
                Edge(
                    type="IN",
                    source="people",
                    from_node=Ends(type="Person", match="id"),
                    to_node=Ends(type="Team", match={"name": "team"}),
                )
            ],
        ),
    }
    return Pipeline(**{**tables, **changed})


def write_people(folder: Path) -> None:
    (folder / "feed").mkdir()
    lines = [f'{{"id": {number}, "name": "n{number}", "team": "{number % 2}"}}' for number in range(6)]
    (folder / "feed/people.json").write_text("\n".join(lines), "utf-8")


def test_a_step_that_fails_leaves_the_others_whole(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "one").write_text("in the way", "utf-8")
    said: list[str] = []
    with pytest.raises(MerganserError, match="one"):
        run(make_teams(tmp_path), spark=spark, run_id="a", say=said.append)
    assert next(line for line in said if "not merged" in line).startswith("dataset one: not merged. ")
    assert len(read_rows(open_spark(), str(tmp_path / "two"))) == 6
    (tmp_path / "one").unlink()
    states = {step.name: step.state for step in run(make_teams(tmp_path), spark=spark, run_id="a").steps}
    assert {name for name, state in states.items() if state == "done"} == {"dataset one"}
    assert len(states) == 8
    assert len(read_rows(open_spark(), str(tmp_path / "one"))) == 6


def test_edges_are_not_merged_if_their_nodes_are_not(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "graph/nodes").mkdir(parents=True)
    (tmp_path / "graph/nodes/type=Team").write_text("in the way", "utf-8")
    said: list[str] = []
    with pytest.raises(MerganserError, match="type=Team"):
        run(make_teams(tmp_path), spark=spark, run_id="a", say=said.append)
    missing = [line for line in said if "not merged" in line]
    assert missing[0].startswith("Team of people, parquet: not merged. ")
    assert missing[1] == "Person-IN-Team of people, parquet: not merged. A step that it waits for has failed."
    assert len(missing) == 2
    assert not (tmp_path / "graph/edges").exists()


def test_other_columns_under_the_same_run_id_are_staged_anew(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "two").write_text("in the way", "utf-8")
    before = make_teams(tmp_path, graph=None)
    with pytest.raises(MerganserError, match="two"):
        run(before, spark=spark, run_id="a")
    (tmp_path / "two").unlink()
    changed = Dataset(
        name="two", source="people", path=str(tmp_path / "two"), key_columns="id", columns={"id": "id * 2", "x": "name"}
    )
    outcome = run(make_teams(tmp_path, graph=None, dataset=[before.dataset[0], changed]), spark=spark, run_id="a")
    assert [step.state for step in outcome.steps] == ["replayed", "done"]
    assert [row["id"] for row in read_rows(open_spark(), str(tmp_path / "two"))] == [0, 2, 4, 6, 8, 10]


def test_edges_to_nodes_that_no_step_merges_are_checked(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    graph = make_teams(tmp_path).graph
    assert graph is not None
    without = Graph(path=graph.path, sqlite=graph.sqlite, node=graph.node[:1], edge=graph.edge)
    with pytest.raises(MerganserError, match=r"Team nodes that do not exist: 2 keys"):
        run(make_teams(tmp_path, graph=without, dataset=[]), spark=spark)
    (edge,) = graph.edge
    skipping = Edge(type="IN", source="people", from_node=edge.from_node, to_node=edge.to_node, on_missing_node="skip")
    skips = Graph(path=graph.path, sqlite=graph.sqlite, node=graph.node[:1], edge=[skipping])
    outcome = run(make_teams(tmp_path, graph=skips, dataset=[]), spark=spark)
    assert [step.rows_skipped_null for step in outcome.steps if step.kind == "edges"] == [6, 6]


# G19, G20, G21
def test_a_run_deletes_and_changes_what_its_source_no_longer_has(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    before = make_teams(tmp_path, dataset=[]).graph
    assert before is not None
    (edge,) = before.edge
    person, team = before.node
    scope = {"feed": "it's"}
    gone: dict[str, Any] = {"missing": "delete", "scope": scope, "detach": True}
    node = [
        Node(type=person.type, source="people", match=person.match, **gone),
        Node(type=team.type, source="people", match=team.match, missing={"gone": True}),
    ]
    kept = Edge(type="IN", source="people", from_node=edge.from_node, to_node=edge.to_node, missing="delete")
    graph = Graph(path=before.path, sqlite=before.sqlite, node=node, edge=[kept])
    run(make_teams(tmp_path, graph=graph, dataset=[]), spark=spark)
    (feed,) = (tmp_path / "feed").iterdir()
    feed.write_text(feed.read_text("utf-8").splitlines()[0] + "\n", "utf-8")
    outcome = run(make_teams(tmp_path, graph=graph, dataset=[]), spark=spark)
    assert outcome.unbalanced() == []
    with GraphDatabase(str(before.sqlite)) as db:
        assert (db.nodes(person.type).count(), db.edges("IN").count()) == (1, 1)
        assert db.nodes(person.type).where(scope).count() == 1
        teams = db.nodes(team.type).where({"gone": True}).count()
    parquet = ParquetGraph(str(before.path), spark)
    assert parquet.nodes(person.type).count() == parquet.edges("IN").count() == 1
    assert parquet.nodes(team.type).where("gone").count() == teams == parquet.nodes(team.type).count() - 1


def test_an_expression_is_not_evaluated_for_a_row_that_failed(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "feed/bad.json").write_text('{"id": null, "name": "0", "team": "x"}\n', "utf-8")
    dataset = Dataset(
        name="one",
        source="people",
        path=str(tmp_path / "one"),
        key_columns="id",
        columns={"id": "id", "x": "if(id IS NULL, raise_error('evaluated'), 1)"},
    )
    outcome = run(make_teams(tmp_path, graph=None, dataset=[dataset]), spark=spark)
    assert (outcome.sources[0].rows_quarantined, outcome.steps[0].inserted) == (1, 6)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"columns": {"id": "id", "x": "row_number() OVER (ORDER BY id)"}}, "columns.x"),
        ({}, "base.x"),
    ],
)
def test_a_window_over_all_rows_is_refused(spark: Any, tmp_path: Path, changed: dict[str, Any], key: str) -> None:
    write_people(tmp_path)
    one = Dataset(name="one", source="people", path=str(tmp_path / "one"), key_columns="id", **changed)
    node = Node(type="A", source="people", match="id", base={"x": "max(name) over(partition by team)"})
    graph = None if changed else Graph(sqlite=str(tmp_path / "graph.db"), node=[node])
    with pytest.raises(ConfigurationError, match=rf"key '{key}'.*a window function would see rows that failed"):
        run(make_teams(tmp_path, graph=graph, dataset=[one]), spark=spark)
    assert [path.name for path in tmp_path.iterdir()] == ["feed"]


def test_rows_are_staged_again_after_their_files_are_lost(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "two").write_text("in the way", "utf-8")
    pipeline = make_teams(tmp_path, graph=None)
    with pytest.raises(MerganserError, match="two"):
        run(pipeline, spark=spark, run_id="a")
    (tmp_path / "two").unlink()
    lost = next((tmp_path / "state/runs/a/sources/people").glob("*.rows"))
    lost.unlink()
    assert [step.state for step in run(pipeline, spark=spark, run_id="a").steps] == ["replayed", "done"]
    assert len(read_rows(open_spark(), str(tmp_path / "two"))) == 6


def test_another_type_under_the_same_run_id_is_staged_anew(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    (tmp_path / "two").write_text("in the way", "utf-8")

    def make(type_: str) -> Pipeline:
        graph = Graph(sqlite=str(tmp_path / "graph.db"), node=[Node(type=type_, source="people", match="id")])
        return make_teams(tmp_path, graph=graph)

    with pytest.raises(MerganserError, match="two"):
        run(make("Person"), spark=spark, run_id="a")
    (tmp_path / "two").unlink()
    outcome = run(make("Human"), spark=spark, run_id="a")
    assert [step.inserted for step in outcome.steps] == [6, 6, 6]


def test_a_value_that_cannot_be_stored_stops_its_own_table_only(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    nodes = [
        Node(type="Bad", source="people", match="id", base={"x": "double('NaN')"}),
        Node(type="Good", source="people", match="id", base={"at": "map('a', id, 'b', 1)"}),
    ]
    said: list[str] = []
    pipeline = make_teams(tmp_path, dataset=[], graph=Graph(path=str(tmp_path / "graph"), node=nodes))
    with pytest.raises(PropertyValueError, match="base property 'x' of Bad is not a finite number in 6 rows"):
        run(pipeline, spark=spark, say=said.append)
    assert any(line.startswith("Good of people, parquet: 6 inserted") for line in said)
    assert [line.partition(":")[0] for line in said if "not merged" in line] == ["Bad of people, parquet"]


def test_rows_of_one_key_are_ordered_by_maps_too(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    lines = [f'{{"id": 1, "name": "{name}", "team": "x"}}' for name in "cab"]
    (tmp_path / "feed/people.json").write_text("\n".join(lines), "utf-8")
    node = Node(type="A", source="people", match="id", on_match={"m": "map(name, 1)"})
    graph = Graph(path=str(tmp_path / "graph"), sqlite=str(tmp_path / "graph.db"), node=[node])
    run(make_teams(tmp_path, dataset=[], graph=graph), spark=spark)
    with GraphDatabase(tmp_path / "graph.db") as database:
        assert [one.properties["m"] for one in database.nodes("A").exec()] == [{"c": 1}]


def test_a_state_folder_in_memory_is_refused(spark: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    with pytest.raises(ConfigurationError, match="no executor can reach it"):
        run(make_teams(tmp_path, state="memory://state", quarantine=str(tmp_path / "q"), graph=None), spark=spark)
