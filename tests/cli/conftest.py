"""The command line, run in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from merganser.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Run a command; it has to end with this exit code, and with no exception of its own."""

    def run(*arguments: str, code: int = 0, stdin: bytes = b"") -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        shown = f"{result.stdout}\n{result.stderr}"
        assert result.exit_code == code, f"{shown}\n{result.exception!r}"
        assert result.exception is None or isinstance(result.exception, SystemExit), shown
        assert "Traceback" not in shown
        return result

    return run


@pytest.fixture
def answer(cli: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command with --json, and read what it prints."""

    def run(*arguments: str, code: int = 0, stdin: bytes = b"") -> Any:
        return json.loads(cli(*arguments, "--json", code=code, stdin=stdin).stdout)

    return run
