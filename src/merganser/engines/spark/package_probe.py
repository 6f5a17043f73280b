"""What an executor answers about its packages. It is sent there by value, so it imports nothing of this package."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHIPPED = "shipped"


class Versions(TypedDict):
    """A Python and the versions of its packages; None is missing."""

    python: str
    packages: Mapping[str, str | None]


def find_versions() -> Versions:
    """Find the versions of the packages that tasks use."""
    packages: dict[str, str | None] = {"merganser": None}
    if find_spec("merganser") is not None:
        try:
            packages["merganser"] = version("merganser")
        except PackageNotFoundError:
            packages["merganser"] = SHIPPED
    for name in ("pyarrow", "numpy", "fsspec"):
        try:
            packages[name] = import_module(name).__version__
        except ModuleNotFoundError:
            packages[name] = None
    return {"python": sys.executable, "packages": packages}


def probe_packages(batches: Iterator[Any]) -> Iterator[Any]:
    """Answer each task with the versions that it found, as JSON."""
    pa = import_module("pyarrow")
    for _ in batches:
        yield pa.record_batch([pa.array([json.dumps(find_versions())])], names=["versions"])
