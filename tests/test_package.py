"""The package as it is published: what the source distribution holds, and what the registry shows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is a source distribution")
def test_the_source_distribution_holds_all_that_its_tests_read(tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607  as on the path
    needed = {name for name in tracked.strip("\0").split("\0") if not name.startswith((".ci/", ".gitattributes"))}
    assert {"pyproject.toml", "tests/conftest.py", "docs/errors.md", "requirements/oldest.txt"} <= needed
    assert needed - held == set()
    assert not [name for name in held if name.startswith((".venv", ".tools", "site/"))]


def test_the_first_block_that_a_reader_sees_installs_the_package() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (first, *_) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert first.startswith("pip install merganser ")
    assert "requires Python 3.11 or newer" in text[: text.index(first)]
