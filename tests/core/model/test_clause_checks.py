"""What is known of clauses before anything is read: what they are in SQL, and what they may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from merganser.core.model.clause_checks import check_expression
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
