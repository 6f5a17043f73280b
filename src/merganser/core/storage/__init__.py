"""Files on a local disk or an object store: locations, locks and staging folders."""

from __future__ import annotations

import sys

from merganser.errors import MissingExtraError


def check_platform(name: str) -> None:
    """Refuse a system whose locks and processes differ: a dataset would have two writers at a time there."""
    if name == "win32":
        raise MissingExtraError(
            "merganser does not run on Windows, because its locks need a POSIX system. Run it on Linux or macOS, or in "
            "the Windows Subsystem for Linux."
        )


check_platform(sys.platform)
