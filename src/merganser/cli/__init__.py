"""The command line, `merganser`; needs the extra `cli`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from merganser.printable import to_printable

if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from merganser.cli.app import app  # noqa: PLC0415  to name a missing package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "merganser":
            raise
        sys.exit(f"The command line needs the package {error.name!r}. Install it with: pip install 'merganser[cli]'.")
    except KeyboardInterrupt:
        sys.exit("Error: Interrupted. Nothing was changed.")
    if "--debug" not in sys.argv:
        sys.excepthook = _report_unexpected
    app(prog_name="merganser")


def _report_unexpected(error_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Print an error that no command expects; the process ends with 1."""
    message = to_printable(f"{error_type.__name__}: {error}")
    sys.stderr.write(f"Error: {message}\nThis error is unexpected; --debug shows the traceback.\n")
