"""docs/pipeline.md has every key, and its example is a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from merganser.cli.pipeline import run
from merganser.pipeline.config.tables import MERGE_OPTIONS, Check, Dataset, Edge, Graph, Node, Pipeline, Source
from merganser.pipeline.config.toml_file import PARAMETERS, load
from merganser.pipeline.config.when import When

if TYPE_CHECKING:
    from merganser.pipeline.config.table import Table

TEXT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[0]
TABLES: dict[str, type[Table]] = {
    "pipeline": Pipeline,
    "source": Source,
    "check": Check,
    "dataset": Dataset,
    "dataset.when": When,
    "graph": Graph,
    "graph.node": Node,
    "graph.edge": Edge,
}


def keys(table: str) -> set[str]:
    """The keys of a table; of a pipeline without the tables that have a section of their own."""
    names = set(TABLES[table].list_keys()) - {"merge"}
    return (names - set(TABLES)) | {PARAMETERS} if table == "pipeline" else names


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_documented_and_no_other(table: str) -> None:
    section = re.split(r"^##", TEXT.split(f"\n### {table}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == keys(table)


def test_every_argument_is_documented() -> None:
    section = TEXT.split("\n## The command\n")[1].split("\n## ")[0]
    given = {option.opts[0] for option in run.params if isinstance(option, click.Option)}
    assert set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) == given


def test_the_example_is_a_configuration_with_every_key(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(EXAMPLE, "utf-8")
    found = load(tmp_path / "jobs.toml", {"date": "2026-01-05"})
    assert found.source[0].path == (str(tmp_path / "feed/2026-01-05/*.json"),)
    for table in TABLES:
        given = set(re.findall(r"^(\w+) =", "".join(_sections(table)), re.MULTILINE))
        given -= set(MERGE_OPTIONS) - keys(table)
        assert given == keys(table) - {"node", "edge", "when"}


def _sections(table: str) -> list[str]:
    parts = re.split(r"^(\[+[\w.]+\]+)$", EXAMPLE, flags=re.MULTILINE)
    return [body for head, body in zip(parts[1::2], parts[2::2], strict=True) if head.strip("[]") == table]
