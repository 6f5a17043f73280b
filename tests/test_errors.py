"""The error tree: its drawing is correct, every class is used, and each is also the builtin shown."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import merganser
from merganser import core, engines, errors
from merganser.errors import DatasetMergeError, GraphError, MerganserError

SOURCE = Path(merganser.__file__).parent
CLASSES: dict[str, type[MerganserError]] = {
    name: found for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, MerganserError)
}


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Read the docstring's tree: each class with its parent and the builtin named beside it."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)(\w+Error)\b\s*(\w+Error)?", line)
        if found is None:
            continue
        depth = len(found.group(1)) // 4
        parents = parents[:depth]
        tree[found.group(2)] = (parents[-1] if parents else None, found.group(3))
        parents.append(found.group(2))
    return tree


def test_the_drawing_is_the_real_tree() -> None:
    real = {}
    for name, found in CLASSES.items():
        ours = [base.__name__ for base in found.__bases__ if issubclass(base, MerganserError)]
        others = [base.__name__ for base in found.__bases__ if not issubclass(base, MerganserError)]
        builtin = next((name for name in others if name != "Exception"), None)
        real[name] = (ours[0] if ours else None, builtin)
    assert drawn() == real


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_ours_documented_and_says_so(name: str) -> None:
    found = CLASSES[name]
    assert issubclass(found, MerganserError)
    assert found.__doc__
    assert found.__module__ == "merganser.errors"
    assert getattr(core, name) is found


@pytest.mark.parametrize("name", [name for name, (_, builtin) in drawn().items() if builtin])
def test_callers_may_catch_the_builtin(name: str) -> None:
    builtin = getattr(builtins, str(drawn()[name][1]))
    with pytest.raises(builtin, match="why"):
        raise CLASSES[name]("why")
    assert str(CLASSES[name]("why")) == "why"


@cache
def called() -> set[str]:
    """Every name that the source calls."""
    made = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                made.add(ast.unparse(node.func).rpartition(".")[2])
    return made


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "MerganserError"])
def test_every_class_is_raised_somewhere(name: str) -> None:
    assert name in called()


def test_refusals_of_data_are_merge_errors_and_bad_arguments_are_not() -> None:
    assert not issubclass(errors.InvalidArgumentError, DatasetMergeError)
    assert not issubclass(errors.MissingExtraError, DatasetMergeError)
    rest = set(CLASSES) - {"MerganserError", "InvalidArgumentError", "MissingExtraError", "SqlError"}
    assert all(issubclass(CLASSES[name], DatasetMergeError | GraphError | errors.PipelineError) for name in rest)


def test_nothing_is_decided_by_except_exception() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                pytest.fail(f"{path}:{node.lineno} catches everything")


def test_a_missing_package_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far_engine.py").write_text("import surely_not_installed\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(engines.ENGINES, "far", engines._Entry("far_engine", "FarDatasetIO", "merganser[far]"))
    with pytest.raises(errors.MissingExtraError, match=r"'surely_not_installed'.*pip install 'merganser\[far\]'"):
        engines.open_engine("far")
    with pytest.raises(ImportError):
        engines.open_engine("far")


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"Unknown engine 'nosuch'\. Choose one of: .*arrow"):
        engines.open_engine("nosuch")
