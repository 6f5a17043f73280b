"""The map in docs/behaviours.md is complete and correct: every number has a row, every test exists and quotes it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "behaviours.md"
GROUPS = {
    "K": 10,
    "T": 6,
    "S": 6,
    "H": 6,
    "P": 8,
    "W": 6,
    "O": 3,
    "C": 7,
    "R": 5,
    "D": 8,
    "X": 9,
    "G": 24,
    "M": 11,
    "E": 7,
    "Q": 8,
    "V": 7,
    "L": 7,
    "F": 1,
    "N": 4,
}
NUMBERS = [f"{letter}{number}" for letter, last in GROUPS.items() for number in range(1, last + 1)]
SCENARIOS = [
    "Partition pruning reduces candidate files",
    "Statistics pruning excludes non-overlapping files",
    "Missing or inexact stats treated as unknown membership",
    "Update replaces full rows",
    "Reject partition movement on update",
    "Append writes new parquet files only",
    "Overwrite replaces parquet data files",
    "Append returns written file metadata",
    "Insert appends only new keys",
    "Update preserves unaffected rows",
    "Composite keys work for upsert",
    "Conservative pruning + key-scan confirmation",
    "Upsert returns metadata for rewritten and inserted files",
    "Parquet metadata is the default metadata source",
    "Update rewrites only affected files",
    '`write_parquet_dataset(rewrite_mode="incremental")` delegates to `merge`',
    "User calls merge with DuckDB >= 1.4.0 (auto-detect)",
    "User calls merge with DuckDB >= 1.4.0 (explicit request)",
    "User calls merge with DuckDB < 1.4.0 (auto-detect fallback)",
    "User calls merge with DuckDB < 1.4.0 (explicit fallback)",
    "MERGE INSERT strategy execution",
    "MERGE UPDATE strategy execution",
    "MERGE UPSERT strategy execution",
    "Multi-column key handling with MERGE",
    "RETURNING clause audit trail",
    "DuckDB version detection succeeds",
    "DuckDB version detection fails gracefully",
    "MERGE support check",
    "Explicit MERGE request with incompatible DuckDB",
    "Explicit fallback request",
    "Auto-detect mode (default)",
    "Register PyArrow Table as temporary view",
    "Clean up temporary views after merge",
    "Build MERGE with parquet_scan() in INTO clause",
    "Validate and escape file paths",
    "MERGE output to staging file",
    "Integration with incremental rewrite workflow",
    "Count MERGE actions via RETURNING",
    "Temporary table cleanup after counting",
    "MERGE syntax error",
    "Version detection error",
    "Invalid use_merge parameter",
]
REQUIREMENTS = [
    "Hive paths of many forms",
    "Footers with and without statistics",
    "Partition pruning by one column and by several",
    "Edge cases of the membership check",
    "NULL in keys",
    "Partition values that would change",
    "Staging and replacing files",
    "Cleaning up after success and after failure",
    "A node is created if it does not exist",
    "A node is matched if it exists",
    "`on_create` only on create, `on_match` only on match",
    "Several matches of a node",
    "A missing index is warned about",
    "An edge is created, or matched",
    "Indexes are created, unique, listed and dropped",
    "A bulk import with merge, twice",
    "Merges at the same time",
    "Merges with and without an index",
    "Matches of several properties",
    "A schema with merge",
    "More than ten thousand rows at once",
    "A merge beside find-or-create by hand",
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def table(title: str) -> dict[str, list[tuple[str, str]]]:
    """Read one section's table: first cell to the tests named in its row."""
    text = PAGE.read_text("utf-8")
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            first = line.split(" | ", 1)[0].removeprefix("| ").strip()
            found[first] = NAMED.findall(line)
    return found


@cache
def functions_of(path: str) -> dict[str, str]:
    """Every test function of a file, with the comments above it, its docstring and the first lines of its body."""
    source = (ROOT / path).read_text("utf-8")
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            top = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            start = top
            while start and lines[start - 1].lstrip().startswith("#"):
                start -= 1
            head = lines[node.lineno - 1 : node.body[0].lineno + 2]
            comments = [line.partition("#")[2] for line in [*lines[start:top], *head]]
            found[node.name] = "\n".join([*comments, ast.get_docstring(node) or ""])
    return found


def test_every_number_has_a_row() -> None:
    rows = table("Numbers")
    assert [first for first in rows if first != "number"] == NUMBERS


def test_every_scenario_and_requirement_has_a_row() -> None:
    assert [first for first in table("Scenarios") if first != "scenario"] == SCENARIOS
    assert [first for first in table("Testing requirements") if first != "requirement"] == REQUIREMENTS


@pytest.mark.parametrize("title", ["Numbers", "Scenarios", "Testing requirements"])
def test_every_row_names_tests_that_exist(title: str) -> None:
    for first, named in list(table(title).items())[1:]:
        assert named, f"{first} names no test"
        for path, name in named:
            assert (ROOT / path).is_file(), path
            assert name in functions_of(path), f"{first}: there is no {path}::{name}"


@pytest.mark.parametrize("number", NUMBERS)
def test_every_test_named_for_a_number_quotes_it(number: str) -> None:
    for path, name in table("Numbers")[number]:
        assert re.search(rf"\b{number}\b", functions_of(path)[name]), f"{path}::{name} does not quote {number}"


def test_every_number_that_a_test_quotes_is_known() -> None:
    letters = "".join(GROUPS)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, text in functions_of(str(path.relative_to(ROOT))).items():
            quoted = re.findall(rf"^\s*((?:[{letters}]\d+[,. ]*)+)$", text, re.MULTILINE)
            for number in re.findall(r"[A-Z]\d+", " ".join(quoted)):
                assert number in NUMBERS or number[0] not in GROUPS, f"{path.name}::{name} quotes {number}"
