"""Clauses as data: what strategies stand for, and which clauses no row can reach."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from merganser.core.model.clauses import STRATEGY_CLAUSES, Clause, check_clauses, format_clause, select_clauses
from merganser.errors import InvalidArgumentError

PAGE = Path(__file__).parents[3] / "docs" / "merge-in-full.md"


# Q6
def test_the_table_in_the_docs_lists_the_clauses_of_each_strategy() -> None:
    lines = re.findall(r"^\| `(\w+)` \| (`WHEN .*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = {name: [text.strip("`") for text in cell.split("<br>")] for name, cell in lines}
    assert listed == {name: [*map(format_clause, clauses)] for name, clauses in STRATEGY_CLAUSES.items()}


# Q1
def test_clauses_end_with_the_first_that_always_holds() -> None:
    first, last = Clause(side="matched", action="delete", where="s.x"), Clause(side="matched", action="update")
    other = Clause(side="not_matched", action="insert")
    check_clauses([first, other, last])
    assert select_clauses([first, other, last], "matched") == [first, last]
    with pytest.raises(InvalidArgumentError, match="WHEN MATCHED stands behind one without a condition"):
        check_clauses([last, other, first])
