"""Random work on a graph and on its oracle of dicts: after every step both are the same."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.graph.graph_oracle import OnPurposeError, Oracle, RefusedError, list_nodes, read_graph, to_comparable

from merganser.errors import MergeConflictError, UniqueConstraintError
from merganser.graph import BulkResult, Endpoint, GraphDatabase
from merganser.graph.sqlite import lookup

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.filterwarnings("ignore:MERGE on")

Properties = dict[str, Any]
types = st.sampled_from(["A", "a", "it's"])
names = st.sampled_from(["a", "b", "a.b", "", "'", '"', "\x00"])
keys = st.sampled_from([1, 1.0, True, "1", [1], 0.5, "\x00"])
values = keys | st.none() | st.sampled_from([{"x": [None]}, 2**53, 2**53 + 1, "a\x00", 1e300, ["x", [True]]])
properties = st.dictionaries(names, values, max_size=3)
# Few keys, so that many of them meet.
matches = st.dictionaries(st.sampled_from(["a", "b", '"']), keys, min_size=1, max_size=2)
rows = st.lists(st.builds(lambda key, row: {**row, "a": key}, keys, properties), max_size=6)
overwrite_columns = names.filter(lambda name: name != "a")
# Which column overwrites which property: the one of the same name, as in a list, or any.
columns = st.lists(overwrite_columns, max_size=2, unique=True).map(
    lambda own: {name: name for name in own}
) | st.dictionaries(overwrite_columns, names, max_size=2)
places = st.integers(0, 9)
directions: st.SearchStrategy[Any] = st.sampled_from(["out", "both"])


def others(given: Properties, *apart: str) -> Properties:
    return {name: value for name, value in given.items() if name not in apart}


def pick(given: Properties, wanted: dict[str, str]) -> Properties:
    return {name: given[column] for name, column in wanted.items() if column in given}


@dataclass(frozen=True)
class BulkOptions:
    """What rows write to records: the columns for properties, or all columns on a match, and a condition."""

    on_create: dict[str, str]
    on_match: dict[str, str] | None
    condition: Properties

    @property
    def arguments(self) -> dict[str, Any]:
        given = {"on_create": self.on_create, "condition": self.condition}
        return {**given, "on_match": "*" if self.on_match is None else self.on_match}

    @property
    def apart(self) -> set[str]:
        """The columns that only set properties of other names."""
        named = [*self.on_create.items(), *(self.on_match or {}).items()]
        own = {"a", *(name for name, column in named if name == column)}
        return {column for _, column in named} - own | {"from_id", "to_id"}

    def leave_out_unknown(self, rows: list[Properties]) -> BulkOptions:
        """Leave out the columns that no row has, which are refused."""
        known = {column for row in rows for column in row}
        on_create, on_match = (
            given and {name: column for name, column in given.items() if column in known}
            for given in (self.on_create, self.on_match)
        )
        return BulkOptions(on_create or {}, on_match, self.condition)

    def pick_new(self, row: Properties) -> Properties:
        return {**others(row, *self.apart), **pick(row, self.on_create)}

    def pick_updates(self, row: Properties) -> Properties:
        return others(row, "a", *self.apart) if self.on_match is None else pick(row, self.on_match)


bulk_options = st.builds(
    BulkOptions,
    on_create=columns,
    on_match=columns | st.none(),
    condition=st.just({}) | st.dictionaries(overwrite_columns, keys, max_size=1),
)


def counted(created: list[bool]) -> BulkResult:
    return BulkResult(sum(created), len(created) - sum(created))


def sort_properties(record: tuple[Any, ...]) -> str:
    return repr(sorted(record[-1].items()))


def comparable(graph: Oracle) -> object:
    return (
        {key: (type_, to_comparable(old)) for key, (type_, old) in graph.nodes.items()},
        {key: (*record[:3], to_comparable(record[3])) for key, record in graph.edges.items()},
    )


class Work(RuleBasedStateMachine):
    """A graph and its oracle; transactions begin, end and fail between the other steps."""

    def __init__(self) -> None:
        super().__init__()
        self.db = GraphDatabase(":memory:")
        self.oracle = Oracle()
        self.open: list[tuple[AbstractContextManager[None], Oracle]] = []
        self.times: dict[int, tuple[int, int]] = {}
        self.before = self.oracle
        self.batch = mock.patch.multiple(lookup, BATCH=2, COLUMN_ROWS=1)
        self.batch.start()

    def teardown(self) -> None:
        self.batch.stop()
        while self.open:
            self.fail()
        self.db.close()

    @initialize(
        plain=st.sets(st.tuples(types, st.sampled_from(["a", "b"]))),
        unique=st.sets(st.tuples(types, st.sampled_from(["a", "b", "a.b"])), max_size=2),
    )
    def index(self, plain: set[tuple[str, str]], unique: set[tuple[str, str]]) -> None:
        for type_, name in sorted(plain):
            self.db.create_property_index(type_, name)
        for type_, name in sorted(unique):
            self.db.create_property_index(type_, name, unique=True)
        self.oracle.unique = unique

    def both(self, on_db: Callable[[], object], on_oracle: Callable[[], object]) -> None:
        """Do the same to the graph and to the oracle, and compare what comes of it."""
        expected: object
        self.oracle.changed.clear()
        self.before = deepcopy(self.oracle)
        try:
            with self.oracle.undo_on_error():
                expected = on_oracle()
        except RefusedError as error:
            expected = str(error)
        found: object
        try:
            found = on_db()
        except MergeConflictError:
            found = "conflict"
        except UniqueConstraintError:
            found = "unique"
        assert found == expected
        self.oracle.adopt(self.db)

    def count_changed(self, done: BulkResult) -> BulkResult:
        """Compare the number of changed records: those that a row changed, but for some that a later row restored."""
        least = sum(
            sort_properties(record) != sort_properties(after[found])
            for after, before in ((self.oracle.nodes, self.before.nodes), (self.oracle.edges, self.before.edges))
            for found, record in before.items()
        )
        assert least <= done.changed <= sum(found > 0 for found in self.oracle.changed)
        return replace(done, changed=0)

    def node(self, place: int) -> int:
        return list(self.oracle.nodes)[place % len(self.oracle.nodes)]

    def edge(self, place: int) -> int:
        return list(self.oracle.edges)[place % len(self.oracle.edges)]

    @rule(type_=types, match=matches, new=properties, over=properties)
    def merge_node(self, type_: str, match: Properties, new: Properties, over: Properties) -> None:
        new, over = others(new, *match), others(over, *match)
        self.both(
            lambda: self.db.merge_node(type_, match, new, on_match=over).created,
            lambda: self.oracle.merge_node(type_, match, new, over),
        )

    @precondition(lambda self: self.oracle.nodes)
    @rule(type_=types, match=matches | st.just({}), new=properties, over=properties, a=places, b=places, way=directions)
    def merge_edge(
        self, type_: str, match: Properties, new: Properties, over: Properties, a: int, b: int, way: Any
    ) -> None:
        new, over, ends = others(new, *match), others(over, *match), (self.node(a), self.node(b))
        self.both(
            lambda: self.db.merge_edge(ends[0], type_, ends[1], new, match=match, on_match=over, direction=way).created,
            lambda: self.oracle.merge_edge(ends, type_, match, new, over, way),
        )

    @rule(type_=types, rows=rows, bulk=bulk_options)
    def bulk_nodes(self, type_: str, rows: list[Properties], bulk: BulkOptions) -> None:
        bulk = bulk.leave_out_unknown(rows)

        def merge() -> list[bool]:
            return [
                self.oracle.merge_node(
                    type_, {"a": row["a"]}, bulk.pick_new(row), bulk.pick_updates(row), bulk.condition
                )
                for row in rows
            ]

        self.both(
            lambda: self.count_changed(self.db.bulk_merge_nodes(type_, iter(rows), match_on="a", **bulk.arguments)),
            lambda: counted(merge()),
        )

    @precondition(lambda self: self.oracle.nodes)
    @rule(type_=types, rows=rows, bulk=bulk_options, a=places, way=directions)
    def bulk_edges(self, type_: str, rows: list[Properties], bulk: BulkOptions, a: int, way: Any) -> None:
        bulk = bulk.leave_out_unknown(rows)
        given = [{**row, "from_id": self.node(a), "to_id": self.node(place)} for place, row in enumerate(rows)]

        def merge() -> list[bool]:
            return [
                self.oracle.merge_edge(
                    (row["from_id"], row["to_id"]),
                    type_,
                    {"a": row["a"]},
                    bulk.pick_new(row),
                    bulk.pick_updates(row),
                    way,
                    bulk.condition,
                )
                for row in given
            ]

        self.both(
            lambda: self.count_changed(
                self.db.bulk_merge_edges(type_, given, match_on="a", direction=way, **bulk.arguments)
            ),
            lambda: counted(merge()),
        )

    @rule(type_=types, new=properties)
    def create_node(self, type_: str, new: Properties) -> None:
        self.both(
            lambda: to_comparable(self.db.create_node(type_, new).properties),
            lambda: to_comparable(self.oracle.create_node(type_, new)),
        )

    @precondition(lambda self: self.oracle.nodes)
    @rule(type_=types, new=properties, a=places, b=places)
    def create_edge(self, type_: str, new: Properties, a: int, b: int) -> None:
        ends = (self.node(a), self.node(b))
        self.db.create_edge(ends[0], type_, ends[1], new)
        self.oracle.create_edge(ends, type_, new)
        self.oracle.adopt(self.db)

    @precondition(lambda self: self.oracle.nodes)
    @rule(new=properties, a=places)
    def update_node(self, new: Properties, a: int) -> None:
        node = self.node(a)
        self.both(
            lambda: to_comparable(self.db.update_node(node, new).properties),
            lambda: to_comparable(self.oracle.update_node(node, new)),
        )

    @precondition(lambda self: self.oracle.edges)
    @rule(new=properties, a=places)
    def update_edge(self, new: Properties, a: int) -> None:
        edge = self.edge(a)
        self.db.update_edge(edge, new)
        self.oracle.update_edge(edge, new)

    @precondition(lambda self: self.oracle.nodes)
    @rule(a=places)
    def delete_node(self, a: int) -> None:
        node = self.node(a)
        self.db.delete_node(node)
        self.oracle.delete_node(node)

    @precondition(lambda self: self.oracle.edges)
    @rule(a=places)
    def delete_edge(self, a: int) -> None:
        edge = self.edge(a)
        self.db.delete_edge(edge)
        del self.oracle.edges[edge]

    @precondition(lambda self: len(self.open) < 3)
    @rule()
    def begin(self) -> None:
        transaction = self.db.transaction()
        transaction.__enter__()
        self.open.append((transaction, deepcopy(self.oracle)))

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        transaction, _ = self.open.pop()
        transaction.__exit__(None, None, None)

    @precondition(lambda self: self.open)
    @rule()
    def fail(self) -> None:
        transaction, before = self.open.pop()
        # An exception that a block does not swallow goes on.
        assert not transaction.__exit__(OnPurposeError, OnPurposeError(), None)
        self.oracle = before

    @invariant()
    def the_graph_is_the_oracles(self) -> None:
        """G1, G2, G11, G13."""
        assert comparable(read_graph(self.db)) == comparable(self.oracle)
        assert self.db.connection.in_transaction == bool(self.open)

    @precondition(lambda self: not self.open)
    @invariant()
    def times_only_grow(self) -> None:
        """G8."""
        found = self.db.connection.execute("SELECT id, created_at, updated_at FROM nodes").fetchall()
        for node, created, updated in found:
            before = self.times.get(node, (created, created))
            assert before[0] == created
            assert updated >= max(before[1], created)
        self.times = {node: (created, updated) for node, created, updated in found}


@pytest.mark.slow
def test_any_operations_agree_with_the_oracle() -> None:
    """G1, G2, G3, G4, G5, G6, G8, G10, G11, G13, G24."""
    from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415 - pytest would collect it as a test

    run_state_machine_as_test(Work, settings=settings(max_examples=80, stateful_step_count=25))


text = st.text(max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(text | numbers | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@settings(max_examples=150)
@given(name=text, found=st.lists(anything, min_size=1, max_size=8), indexed=st.booleans())
def test_any_name_and_value_can_be_queried(name: str, found: list[Any], indexed: bool) -> None:
    """G5, G6."""
    with GraphDatabase(":memory:") as db:
        if indexed and not set(name) & {'"', "\\", *map(chr, range(32))}:
            db.create_property_index("T", name)
        seen: list[object] = []
        for value in found:
            new = to_comparable(value) not in seen
            assert db.merge_node("T", {name: value}).created == new
            seen += [to_comparable(value)] if new else []
        assert [to_comparable(old[name]) for old in list_nodes(db)] == seen


def small_batches(size: int) -> AbstractContextManager[object]:
    """Merge few rows at once, by column where their values allow it."""
    return mock.patch.multiple(lookup, BATCH=size, COLUMN_ROWS=2)


@settings(max_examples=100)
@given(found=st.lists(anything, max_size=8), size=st.integers(1, 4), unique=st.booleans())
def test_a_bulk_merge_equals_merging_row_by_row(found: list[Any], size: int, unique: bool) -> None:
    """G5, G13."""
    with GraphDatabase(":memory:") as one, GraphDatabase(":memory:") as many, small_batches(size):
        for db in (one, many):
            db.create_property_index("TableT", "k", unique=unique)
        created = [one.merge_node("T", {"k": key}, {"n": n}, on_match={"n": n}).created for n, key in enumerate(found)]
        rows = ({"k": key, "n": n} for n, key in enumerate(found))
        assert many.bulk_merge_nodes("T", rows, match_on="k", on_match="n") == counted(created)
        assert comparable(read_graph(many)) == comparable(read_graph(one))
        ends = Endpoint("T", {"k": "key"})
        edges = [{"key": key} for key in found]
        assert many.bulk_merge_edges("E", edges, from_node=ends, to_node=ends) == counted(created)
