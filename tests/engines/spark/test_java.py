"""Java that is missing or too old is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from merganser.engines.spark.java import check_java
from merganser.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME, still empty."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


def install(home: Path, version: str) -> None:
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.1"])
def test_a_java_that_is_new_enough_passes(home: Path, version: str) -> None:
    install(home, version)
    check_java()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_named(home: Path, version: str) -> None:
    install(home, version)
    with pytest.raises(
        MissingExtraError, match=rf"needs Java 17 or newer; .*{home}.*{version}.*apt-get install"
    ) as told:
        check_java()
    assert "\n" not in str(told.value)


def test_no_java_at_all_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtraError, match=r"JAVA_HOME is .*, which has no Java\. Install it"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(MissingExtraError, match=r"none on PATH and JAVA_HOME is not set\. Install it"):
        check_java()
