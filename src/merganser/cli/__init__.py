"""The command line, `merganser`; needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from merganser.cli.app import app  # noqa: PLC0415  so that what is missing can be named
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "merganser":
            raise
        sys.exit(f"The command line needs the package {error.name!r}. Install it with: pip install 'merganser[cli]'.")
    app(prog_name="merganser")
