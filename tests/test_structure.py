"""The limits that keep the source readable: size, length, parameters, and the field's words in names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import merganser

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(merganser.__file__).parent
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
# Words that were private to this project, where the field has one (see the glossary in ARCHITECTURE.md).
PRIVATE_WORDS = {
    *("asking", "door", "doors", "elsewhere", "evened", "far", "fate", "fates", "gathered", "judge", "laid", "lasting"),
    *("near", "portions", "shown", "sieve", "sift", "sifted", "teller", "told", "untold", "wishes"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse_functions(path: Path) -> Iterator[tuple[Function, str]]:
    """Every function of a file with the name of its class, or an empty one."""
    tree = ast.parse(path.read_text("utf-8"))
    owners = {
        child: node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for child in node.body
        if isinstance(child, Function)
    }
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node, owners.get(node, "")


@cache
def find_public_functions() -> frozenset[tuple[str, str]]:
    """File and name of every function that users call: in an `__all__`, or a method of a class there or of its base."""
    found = set()
    for name in ("merganser", "merganser.core", "merganser.graph", "merganser.pipeline"):
        module = importlib.import_module(name)
        for public in (getattr(module, one) for one in module.__all__ if one != "__version__"):
            classes = inspect.getmro(public) if inspect.isclass(public) else ()
            methods = (member for one in classes for key, member in vars(one).items() if not key.startswith("_"))
            for member in (public, *methods):
                function = inspect.unwrap(getattr(member, "__func__", member))
                if inspect.isfunction(function):
                    found.add((function.__code__.co_filename, function.__qualname__))
    return frozenset(found)


def is_public(path: Path, function: Function, owner: str) -> bool:
    """Whether users call it, from Python or as a command."""
    commands = any("click." in ast.unparse(decorator) for decorator in function.decorator_list)
    qualified = f"{owner}.{function.name}" if owner else function.name
    return commands or (str(path), qualified) in find_public_functions()


FILES = sorted(SOURCE.rglob("*.py"))
by_file = pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])


@by_file
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MAX_FILE_LINES
    for function, owner in parse_functions(path):
        # The signature and docstring of a public function list every option.
        start = (
            function.body[min(1, len(function.body) - 1)].lineno
            if is_public(path, function, owner)
            else function.lineno
        )
        assert (function.end_lineno or 0) - start < MAX_FUNCTION_LINES, function.name


@by_file
def test_functions_of_our_own_take_few_parameters(path: Path) -> None:
    for function, owner in parse_functions(path):
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = [one.arg for one in given if one.arg not in {"self", "cls"}]
        assert len(names) <= MAX_PARAMETERS or is_public(path, function, owner), (function.name, names)


@by_file
def test_names_are_the_fields_words(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    defined = [node.name for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)]
    parts = [*path.relative_to(SOURCE).with_suffix("").parts, *defined]
    words = {word.lower() for name in parts for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}
    assert not words & PRIVATE_WORDS
