"""Public names that are imported when they are first used.

The stub of a package, `__init__.pyi`, is the one list of them: type checkers read it, and so does this module.
"""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from typing import cast


@cache
def read_names(package: str) -> dict[str, str]:
    """Map the public names of a package to the modules that they are imported from.

    >>> read_names("merganser")["merge"]
    'merganser.api'
    """
    module = sys.modules[package]
    stub = os.path.join(os.path.dirname(cast("str", module.__file__)), "__init__.pyi")
    # By the loader, because a package that was shipped to an executor is a zip archive there.
    text = module.__spec__.loader.get_data(stub)  # type: ignore[union-attr]
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: cast("str", node.module) for node in imports for alias in node.names}


def find_module(package: str, name: str) -> str:
    """Return the module that a public name is imported from; without one, fail as Python does."""
    if name not in read_names(package):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return read_names(package)[name]
