"""A database that reaches nothing, wherever it is opened."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import pytest

from merganser.core.columnar.closed_database import connect_closed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "sql",
    ["FROM read_text('{file}')", "COPY (SELECT 1) TO '{file}'", "ATTACH '{file}'", "SET enable_external_access = true"],
)
def test_it_reaches_no_file_and_keeps_its_settings(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("secret")
    with connect_closed() as database, pytest.raises(duckdb.Error, match=r"disabled|locked"):
        database.execute(sql.format(file=file))
    assert file.read_text() == "secret"


def test_it_opens_where_the_working_directory_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd())\n"
        "from merganser.core.columnar.closed_database import connect_closed\n"
        "with connect_closed(threads=1) as database: print(database.sql('SELECT 1 + 1').fetchall())\n"
        "try: os.getcwd()\n"
        "except FileNotFoundError: print('still there')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "[(2,)]\nstill there\n"), done.stderr
