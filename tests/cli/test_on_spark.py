"""The command line, on Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.support import open_spark, read_rows

from merganser.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("spark")
def test_merge_and_plan_and_write_on_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("id,name\n2,c\n3,d\n")
    target = str(tmp_path / "t")

    def answer(command: str, source: str, *options: str) -> Any:
        done = CliRunner().invoke(
            app, [command, str(tmp_path / source), target, "--engine", "spark", "--json", *options]
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert answer("write", "a.csv")["row_count"] == 2
    assert answer("plan", "b.csv", "--key", "id")["updated"] == 1
    told = answer("merge", "b.csv", "--key", "id")
    assert (told["inserted"], told["updated"], told["target_count_after"]) == (1, 1, 3)
    assert [(row["id"], row["name"]) for row in read_rows(open_spark(), target)] == [(1, "a"), (2, "c"), (3, "d")]
