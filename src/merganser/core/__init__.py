"""The semantics, the plan and the commit of a merge, once, for every engine. Imports no engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from merganser.public_names import find_module, read_names

# Public names stand in __init__.pyi.


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    globals()[name] = found = getattr(import_module(find_module(__name__, name)), name)
    return found


def __dir__() -> list[str]:
    return sorted(read_names(__name__))
