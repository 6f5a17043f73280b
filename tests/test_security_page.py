"""SECURITY.md lists every place where the source could run what it reads."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "merganser"
# What turns data into objects or code; `json` and `tomllib` make plain values only.
BUILTINS = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "xml", "lxml", "ctypes", "runpy"}
CALLS = {"import_module", "load_extension", "enable_load_extension", "read_pickle"}


def is_loader(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in MODULES or any(alias.name in CALLS for alias in node.names)
    if isinstance(node, ast.keyword):
        return node.arg == "allow_pickle" or (node.arg == "shell" and not isinstance(node.value, ast.Constant))
    if isinstance(node, ast.Attribute):
        return node.attr in CALLS
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS


def loaders() -> set[str]:
    """The modules that have one, by their paths below the package."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(is_loader(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }


# M11
def test_every_loader_is_named_and_no_other_module() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = [part for row in rows for part in row.split(" | ")[0].split("`") if part.endswith(".py")]
    assert sorted(named) == sorted(loaders())


# M11
def test_pickles_are_read_from_columns_of_our_own_only() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pickle.loads", "pickle.load", "pickle.Unpickler"}
    }
    assert found == {
        "engines/spark/jobs.py: pickle.loads(result)",
        "engines/spark/exchange.py: pickle.loads(packet.as_py())",
    }
