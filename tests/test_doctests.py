"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

import merganser

if TYPE_CHECKING:
    from pathlib import Path

MODULES = [
    "merganser",
    *(found.name for found in pkgutil.walk_packages(merganser.__path__, "merganser.") if "__main__" not in found.name),
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.failed == 0
