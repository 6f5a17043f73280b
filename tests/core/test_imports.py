"""The layers: imports go down only, engines do not import each other, `import merganser` loads none."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import merganser
from merganser import errors

if TYPE_CHECKING:
    from types import ModuleType

SOURCE = Path(merganser.__file__).parent
# From the ground up: a module may import its own layer and those below it, for type checking too.
LAYERS = (
    "merganser.public_names",
    "merganser.printable",
    "merganser.errors",
    "merganser.safe_json",
    "merganser.display",
    "merganser.progress",
    "merganser.timeline",
    "merganser.core.columnar",
    "merganser.core.storage",
    "merganser.core.parquet",
    "merganser.core.model",
    "merganser.core.rows",
    "merganser.core.dataset",
    "merganser.core.sources",
    "merganser.core.sql",
    "merganser.core.commit",
    "merganser.core.merge",
    "merganser.core.maintenance",
    "merganser.core.file_api",
    "merganser.core",
    "merganser.engines",
    "merganser.api",
    "merganser.graph.argument_names",
    "merganser.graph.values",
    "merganser.graph.json_columns",
    "merganser.graph.records",
    "merganser.graph.schema",
    "merganser.graph.schema_file",
    "merganser.graph.sqlite",
    "merganser.graph.exchange",
    "merganser.graph.merging",
    "merganser.graph.querying",
    "merganser.graph.view",
    "merganser.graph.query_mixin",
    "merganser.graph.record_mixin",
    "merganser.graph.database",
    "merganser.graph.spark",
    "merganser.graph",
    "merganser.pipeline.run_result",
    "merganser.pipeline.config",
    "merganser.pipeline.report",
    "merganser.pipeline.runner",
    "merganser.pipeline",
    "merganser.cli.group",
    "merganser.cli.option_names",
    "merganser.cli.command",
    "merganser.cli.options",
    "merganser.cli.sources",
    "merganser.cli.pipeline",
    "merganser.cli.dataset",
    "merganser.cli.graph",
    "merganser.cli",
    "merganser.demo",
    "merganser",
)
# Packages that nothing imports: the command line and the demo.
NOT_IMPORTED = ("merganser.cli", "merganser.demo")
# Heavy packages, and the only places that may import them when they are loaded.
HEAVY: dict[str, tuple[str, ...]] = {
    "duckdb": ("merganser.engines.duckdb",),
    "pyspark": ("merganser.engines.spark", "merganser.pipeline", "merganser.graph"),
    "pandas": ("merganser.engines.spark", "merganser.pipeline", "merganser.graph"),
    "polars": (),
    "sqlglot": (),
}
NOT_LOADED = ("duckdb", "polars", "pandas", "pyspark", "sqlite3", "networkx", "sqlglot")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, for type checking too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            base = node.module or ""
            # `from package import module` names a module; `from module import name` does not.
            names |= {full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names}
    return names


def loaded_at_import(path: Path) -> set[str]:
    """The top-level packages that importing a file loads: not inside functions, not for type checking."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(path.read_text("utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return names


def own_package(name: str) -> str:
    """An engine is a module or a package: `merganser.engines.duckdb.key_scan` belongs to `merganser.engines.duckdb`."""
    return ".".join(name.split(".")[:3])


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def find_layer(name: str) -> int:
    """The layer of a module: the longest name in the table that it is, or that it is inside of."""
    return max((len(layer), number) for number, layer in enumerate(LAYERS) if within(name, (layer,)))[1]


def test_every_layer_exists_and_every_folder_is_one() -> None:
    assert [layer for layer in LAYERS if layer not in MODULES] == []
    folders = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    inside = {"merganser.engines.duckdb", "merganser.engines.spark"}
    assert folders - set(LAYERS) == inside


def test_the_architecture_lists_the_packages_from_the_top() -> None:
    page = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z_/]+?)(?:/|\.py)` \|", page, re.MULTILINE)
    names = [f"merganser.{name.replace('/', '.')}" for name in listed]
    assert len(names) > 10
    assert names == sorted(names, key=find_layer, reverse=True)
    paths = re.findall(r"(?<!/)\b(?:core|cli|engines)/[a-z_/]+(?:\.py)?", page)
    assert [path for path in paths if not (SOURCE / path).exists()] == []


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_only_their_own_layer_and_those_below(name: str) -> None:
    ours = {other for other in imported(MODULES[name]) if within(other, ("merganser",)) and other != "merganser"}
    assert [other for other in ours if find_layer(other) > find_layer(name)] == []


@pytest.mark.parametrize("name", MODULES)
def test_nothing_imports_the_command_line_or_the_demo(name: str) -> None:
    for package in NOT_IMPORTED:
        if not within(name, (package,)):
            assert not [other for other in imported(MODULES[name]) if within(other, (package,))]


# The default engine chooses between two others.
@pytest.mark.parametrize(
    "name", [name for name in MODULES if within(name, ("merganser.engines",)) and "auto" not in name]
)
def test_engines_do_not_know_each_other(name: str) -> None:
    others = {other for other in imported(MODULES[name]) if within(other, ("merganser.engines",))}
    assert not [other for other in others if not within(other, (own_package(name),))]


@pytest.mark.parametrize("name", MODULES)
def test_heavy_packages_are_loaded_only_where_they_are_needed(name: str) -> None:
    for package in loaded_at_import(MODULES[name]) & set(HEAVY):
        assert within(name, HEAVY[package]), package


def loaded(code: str) -> set[str]:
    """Run code in a fresh interpreter and give the modules it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        # What this process may have put on the path is not loaded there.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def by_pyarrow() -> set[str]:
    """What PyArrow's own modules load: where pandas is installed, that is pandas too."""
    return loaded("import pyarrow.acero, pyarrow.dataset")


@pytest.mark.slow
def test_importing_merganser_loads_next_to_nothing() -> None:
    modules = loaded("import merganser")
    assert {name for name in modules if within(name, ("merganser",))} == {"merganser"}
    assert not modules & {"duckdb", "fsspec", "numpy", "pyarrow", "sqlite3", "importlib.metadata"}


@pytest.mark.slow
def test_a_merge_on_pyarrow_loads_no_other_engine(by_pyarrow: set[str]) -> None:
    code = (
        "import tempfile, merganser, pyarrow as pa\n"
        "merganser.merge(pa.table({'id': [1]}), tempfile.mkdtemp() + '/t', key_columns='id')"
    )
    modules = loaded(code)
    engines = {name for name in modules if name.startswith("merganser.engines.")}
    assert engines == {"merganser.engines.auto", "merganser.engines.arrow"}
    assert not [name for name in NOT_LOADED if name in modules - by_pyarrow]
    # Other calls have modules of their own.
    assert not {name for name in modules if within(name, ("merganser.core.maintenance", "merganser.core.sql"))}
    assert not modules & {"merganser.core.merge.alter", "merganser.core.merge.builder", "fsspec"}


def test_public_names_exist_and_unknown_ones_are_refused() -> None:
    names = dir(merganser)
    for name in names:
        assert getattr(merganser, name) is not None
    assert merganser.__all__ == names == sorted(set(names))  # type: ignore[attr-defined]
    assert merganser.core.MergeResult is merganser.MergeResult
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = merganser.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [merganser, merganser.core])
def test_type_checkers_see_every_public_name(package: ModuleType) -> None:
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text("utf-8"))
    aliases = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    # Only `import A as A` exports a name from a stub.
    assert [alias.name for alias in aliases if alias.asname != alias.name] == []
    names = [alias.name for alias in aliases if not inspect.ismodule(getattr(package, alias.name))]
    assert sorted(names) == [name for name in dir(package) if name != "__version__"]


def test_every_error_is_importable_from_merganser() -> None:
    own = inspect.getmembers(errors, lambda one: inspect.isclass(one) and one.__module__ == errors.__name__)
    classes = {name for name, _ in own}
    assert {"MergeConflictError", "QualityError", "DuplicateKeyError", "MergePerformanceWarning"} <= classes
    for name in classes:
        assert name in dir(merganser)
        assert getattr(merganser, name) is getattr(errors, name)


@pytest.mark.parametrize("name", ["merge", "DuckDBDatasetIO"])
def test_windows_is_refused_in_one_sentence_when_a_dataset_is_first_used(name: str) -> None:
    without = "sys.platform, sys.modules['fcntl'], sys.modules['resource'] = 'win32', None, None"
    code = f"import fsspec, numpy, pyarrow.dataset, sys\n{without}\nimport merganser\nmerganser.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "MissingExtraError: merganser does not run on Windows, " in done.stderr.splitlines()[-1]


NO_PYSPARK = {
    "not installed": "sys.modules['pyspark'] = None",
    "refused": """
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refusing())""",
}


@pytest.mark.parametrize("missing", NO_PYSPARK)
def test_everything_but_spark_is_importable_without_pyspark(missing: str) -> None:
    code = f"""import sys
{NO_PYSPARK[missing]}
from merganser import *
import merganser
assert dir(merganser) == merganser.__all__
assert set(merganser.__all__) <= set(globals())
assert GraphDatabase and DuckDBDatasetIO and MergeConflictError
for name in ("SparkDatasetIO", "ParquetGraph"):
    assert name not in globals() and name not in dir(merganser)
    try:
        getattr(merganser, name)
    except MissingExtraError as error:
        assert "merganser[spark]" in str(error)
    else:
        raise AssertionError(name)
print(len(merganser.__all__))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert int(done.stdout) == len(dir(merganser)) - 2
