"""The command line, `merganser`; needs the extra `cli`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from merganser.printable import to_printable

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    if _can_skip_pandas(sys.argv[1:]):
        sys.meta_path.insert(0, _PandasBlocker())
    if "--debug" not in sys.argv:
        sys.excepthook = _report_unexpected
    app(prog_name="merganser")


class _PandasBlocker:
    """Hides pandas, which takes longer to load than a small merge takes.

    PyArrow loads it at the first value that it converts, to recognise objects of pandas; a command line has none.
    """

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("This command does without pandas.", name=name)


def _can_skip_pandas(arguments: Sequence[str]) -> bool:
    """Whether the command prints no rows, whose nanoseconds PyArrow shows by pandas, and does not need Spark."""
    is_quiet = bool(arguments) and arguments[0] in ("merge", "plan", "write")
    return is_quiet and not any("spark" in one or one.startswith("--audit") for one in arguments)


def _report_unexpected(error_type: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Print an error that no command expects; the process ends with 1."""
    message = to_printable(f"{error_type.__name__}: {error}")
    sys.stderr.write(f"Error: {message}\nThis error is unexpected; --debug shows the traceback.\n")
