"""What is known of clauses before anything is read: what they are in SQL, what they may use, what counts twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from merganser.core.model.clause_checks import check_expression, list_repeated_updates
from merganser.core.model.clauses import Clause, format_clause
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from merganser.core.model.clauses import Side


@pytest.mark.parametrize(
    ("clause", "text"),
    [
        ({"action": "delete", "where": "s.op = 'D'"}, "WHEN MATCHED AND s.op = 'D' THEN DELETE"),
        ({"action": "nothing"}, "WHEN MATCHED THEN DO NOTHING"),
        ({"action": "update"}, "WHEN MATCHED THEN UPDATE SET *"),
        ({"action": "update", "exclude": ("a", "the b")}, 'WHEN MATCHED THEN UPDATE SET * EXCEPT (a, "the b")'),
        ({"action": "update", "by_name": True}, "WHEN MATCHED THEN UPDATE BY NAME"),
        (
            {"action": "update", "values": {"a": "s.a", 'b"': "t.b + 1"}},
            'WHEN MATCHED THEN UPDATE SET a = s.a, "b""" = t.b + 1',
        ),
        ({"side": "not_matched", "action": "insert"}, "WHEN NOT MATCHED THEN INSERT *"),
        ({"side": "not_matched", "action": "insert", "by_name": True}, "WHEN NOT MATCHED THEN INSERT BY NAME"),
        (
            {"side": "not_matched", "action": "insert", "values": {"id": "s.id", "n": "1"}},
            "WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 1)",
        ),
        (
            {"side": "not_matched_by_source", "action": "delete", "where": "t.n > 1"},
            "WHEN NOT MATCHED BY SOURCE AND t.n > 1 THEN DELETE",
        ),
    ],
)
def test_a_clause_is_written_as_sql(clause: dict[str, Any], text: str) -> None:
    assert format_clause(Clause(**{"side": "matched", **clause})) == text


@pytest.mark.parametrize(
    ("side", "text", "message"),
    [
        ("matched", "s.qty >", "not an expression of SQL"),
        ("matched", "1; DROP TABLE x", "not an expression of SQL|not one expression"),
        ("matched", "(SELECT 1)", "a subquery"),
        ("matched", "sum(s.qty)", "not a function of one row"),
        ("not_matched", "t.qty > 1", "uses t.qty, but a row that is not matched has no target row. Use columns of s"),
        ("not_matched_by_source", "S.qty > t.qty", "uses s.qty, but .* not matched by the source .* Use columns of t"),
    ],
)
def test_an_expression_is_refused_before_anything_is_read(side: Side, text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_expression(text, side)


@pytest.mark.parametrize(
    ("side", "text"), [("matched", "qty > s.qty"), ("not_matched", "qty > 1"), ("not_matched_by_source", "qty > 1")]
)
def test_an_expression_may_leave_out_aliases(side: Side, text: str) -> None:
    check_expression(text, side)


def test_an_expression_is_checked_against_columns_that_are_known() -> None:
    check_expression("s.QTY > t.anything", "matched", ["id", "qty"])
    with pytest.raises(InvalidArgumentError, match=r"uses s\.qyt, but the source has no such column"):
        check_expression("s.qyt > 1", "not_matched", ["id", "qty"])


def update(values: dict[str, str] | None = None, **others: Any) -> Clause:
    return Clause(**{"side": "matched", "action": "update", "values": values, **others})


REPEATED = {
    "a counter": ([update({"n": "t.n + 1"})], ["n = t.n + 1"]),
    "a counter of rows that are missing": (
        [update({"n": "t.n + 1"}, side="not_matched_by_source")],
        ["n = t.n + 1"],
    ),
    "without an alias": ([update({"n": "N + s.n"})], ["n = N + s.n"]),
    "in another clause": ([update({"a": "t.n"}), update({"n": "s.n"})], ["a = t.n"]),
    "two columns that are swapped": ([update({"a": "t.b", "b": "t.a"})], ["a = t.b", "b = t.a"]),
    "beside an update of all columns": ([update({"a": "t.b || 'x'"}, where="s.p"), update()], ["a = t.b || 'x'"]),
    "inside of a choice": ([update({"n": "coalesce(t.n + s.n, s.n)"})], ["n = coalesce(t.n + s.n, s.n)"]),
}
ONCE = {
    "columns of the source": [update({"n": "s.n * 2"})],
    "the column itself": [update({"n": "t.N"})],
    "columns that nothing changes": [update({"total": "t.price * s.qty"})],
    "the key": [update({"n": "t.id * 2"}, where="s.p"), update()],
    "a column that an update of all excludes": [update({"n": "t.m * 2"}, where="s.p"), update(exclude=("M",))],
    "the old value where there is no new one": [update({"n": "coalesce(s.n, t.n)"})],
    "the larger value": [update({"n": "greatest(t.n, s.n)", "m": "LEAST(s.m, t.m)"})],
    "a condition": [update({"n": "s.n"}, where="t.n < s.n"), update({"m": "s.m"}, where="t.n = 1")],
    "an insert": [Clause(side="not_matched", action="insert", values={"n": "s.n + 1"})],
}


@pytest.mark.parametrize("case", REPEATED)
def test_updates_that_read_what_they_change_are_repeated(case: str) -> None:
    clauses, expected = REPEATED[case]
    assert list_repeated_updates(clauses, ["id"]) == expected


@pytest.mark.parametrize("case", ONCE)
def test_other_updates_have_the_same_result_twice(case: str) -> None:
    assert list_repeated_updates(ONCE[case], ["id"]) == []
