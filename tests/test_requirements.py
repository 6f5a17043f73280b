"""What is declared is what is tested: the oldest environment has the minimum of each requirement."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = TOML["project"]
EXTRAS = ("spark", "cli", "sql", "networkx")


def read_pins(name: str) -> dict[str, Version]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return {found[1]: Version(found[2]) for found in re.finditer(r"^([\w-]+)==([^\s;\\]+)", text, re.MULTILINE)}


def list_requirements() -> list[Requirement]:
    """List what is installed with the package, with its tested extras, and for tests."""
    texts = [*PROJECT["dependencies"], *TOML["dependency-groups"]["test"]]
    texts += [text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra]]
    return [Requirement(text) for text in texts]


def test_the_table_of_tested_versions_is_that_of_the_environments() -> None:
    page = ROOT / "docs" / "engines.md"
    replace_rows = runpy.run_path(str(ROOT / "scripts" / "tested_versions.py"))["replace_rows"]
    assert page.read_text("utf-8") == replace_rows(page.read_text("utf-8"))
    assert f"| PyArrow | {read_pins('oldest')['pyarrow']} | {read_pins('dev')['pyarrow']} |" in page.read_text("utf-8")


@pytest.mark.parametrize("requirement", list_requirements(), ids=str)
def test_the_oldest_environment_has_the_declared_minimum(requirement: Requirement) -> None:
    (minimum,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
    # The first release of a series that is declared by its beginning, such as 4 or 28.
    assert read_pins("oldest")[requirement.name].release[: len(minimum.release)] == minimum.release


def test_the_locked_environment_fits_what_is_declared() -> None:
    pins = read_pins("dev")
    assert [str(one) for one in list_requirements() if pins[one.name] not in one.specifier] == []
