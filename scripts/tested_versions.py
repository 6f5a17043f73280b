"""Writes the table of tested versions into docs/engines.md, from the pins of the environments that the tests run in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "engines.md"
BEGIN = "| package | oldest | newest |\n|---|---|---|\n"
# What users choose the version of.
PACKAGES = {
    "duckdb": "DuckDB",
    "pyarrow": "PyArrow",
    "numpy": "NumPy",
    "fsspec": "fsspec",
    "filelock": "filelock",
    "pyspark": "PySpark",
    "pandas": "pandas",
    "polars": "Polars",
    "networkx": "networkx",
    "sqlglot": "sqlglot",
}


def read_pins(name: str) -> dict[str, str]:
    """Read the first pin of each package; others are for newer Pythons than the oldest."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    pins: dict[str, str] = {}
    for found in re.finditer(r"^([\w-]+)==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(found[1], found[2])
    return pins


def make_rows() -> str:
    """Make the rows of the table."""
    oldest, newest = read_pins("oldest"), read_pins("dev")
    return "".join(f"| {label} | {oldest[name]} | {newest[name]} |\n" for name, label in PACKAGES.items())


def replace_rows(page: str) -> str:
    """Replace the rows of the table on the page."""
    before, begin, after = page.partition(BEGIN)
    return before + begin + make_rows() + after[re.match(r"(?:\|.*\n)*", after).end() :]  # type: ignore[union-attr]


if __name__ == "__main__":
    PAGE.write_text(replace_rows(PAGE.read_text("utf-8")), "utf-8")
