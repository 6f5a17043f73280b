"""One suite, every engine: `io` is the dataset IO of each engine in turn."""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings
from tests.support import ENGINE_OPENERS, get_spark_session, open_dataset_io

from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from merganser.core.merge.dataset_io import DatasetIO

# Single examples may be slow on a busy machine; that is not a failure. Runs of CI are deterministic; all other runs try
# new examples.
settings.register_profile(
    "merganser", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("merganser")


# Much of a run's time is waiting for a disk to flush, so temporary folders are in memory if there is enough of it.
MEMORY = "/dev/shm"  # noqa: S108 - pytest makes a folder of its own there
ENOUGH = 4 << 30
WITHOUT_SPLICE = Path(__file__).parent / "without_splice"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-splice"):
        # Also for the processes that tests start, and Spark's.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WITHOUT_SPLICE), os.environ.get("PYTHONPATH")]))
        runpy.run_path(str(WITHOUT_SPLICE / "sitecustomize.py"))
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="append", choices=list(ENGINE_OPENERS), help="run with this engine only; repeatable"
    )
    parser.addoption(
        "--without-splice", action="store_true", help="rewrite every file whole, as where none can be spliced"
    )
    parser.addoption("--all-examples", action="store_true", help="let property tests of clauses try many examples")
    parser.addoption("--all-stores", action="store_true", help="run all tests of object stores, on all installed ones")
    parser.addoption("--quick", action="store_true", help="run one case of each test on each engine")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        known = [name for name in ENGINE_OPENERS if name not in ONE_CASE or not metafunc.config.getoption("--quick")]
        metafunc.parametrize("engine", metafunc.config.getoption("--engine") or known, scope="session")


# One case of each test runs on Spark, and none in a quick run, unless the engine is selected by name: Spark's steps
# take a hundred times longer than those of other engines.
ONE_CASE = {"duckdb-union", "spark", "spark-broadcast", "spark-shuffle"}
SPARK = {"spark", "spark-broadcast", "spark-shuffle"}
# These run only if selected by name. A large source on Spark has separate tests. DuckDB without MERGE runs
# on the oldest DuckDB, and is compared with the other engines in test_same_answer. The default runs one of two engines,
# as test_engine_choice shows.
BY_NAME = {"auto", "duckdb-union", "spark-broadcast", "spark-shuffle"}
# In these files the driver prunes, refuses or reads before it calls an engine. tests/engines/spark tests Spark's part,
# and sources that are too large to broadcast.
NOT_ON_SPARK = {"test_bad_input", "test_pruning", "test_streams", "test_writers"}
# These wait for clusters to start. They run first, so that no other process has to wait for them at the end of a run.
FIRST = {"test_cluster", "test_connect"}

# Hypothesis shrinks a failing example for up to five minutes, and reports it only then.
SHRINKING_SECONDS = 420
# Of one test that tries all examples.
ALL_EXAMPLES_SECONDS = 3600


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "spark":
            item.add_marker(pytest.mark.spark)
        _extend_timeout(item)
    items.sort(key=lambda item: (item.path.stem not in FIRST, item.get_closest_marker("spark") is None))
    for item in items:
        if _get_engine(item) in SPARK:
            item.add_marker(pytest.mark.spark)
    engines = config.getoption("--engine") or []
    if engines:
        _deselect(config, items, lambda item: _is_for_other_engine(item, engines))
    if config.getoption("--without-splice"):
        _deselect(config, items, lambda item: item.get_closest_marker("splice") is not None)
    quick = config.getoption("--quick")
    if config.getoption("--engine") and not quick:
        return
    seen: Counter[tuple[str, str]] = Counter()

    def is_left(item: pytest.Item) -> bool:
        engine = _get_engine(item)
        test = f"{item.path}::{getattr(item, 'originalname', item.name)}"
        seen[test, engine] += 1
        enough = (quick or engine in ONE_CASE) and seen[test, engine] > 1
        elsewhere = engine in BY_NAME or (engine == "spark" and item.path.stem in NOT_ON_SPARK)
        slow = engine in ONE_CASE and item.get_closest_marker("slow") is not None
        return enough or elsewhere or slow

    _deselect(config, items, is_left)


def _extend_timeout(item: pytest.Item) -> None:
    if item.config.getoption("--all-examples"):
        item.add_marker(pytest.mark.timeout(ALL_EXAMPLES_SECONDS))
    elif getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker(pytest.mark.timeout(SHRINKING_SECONDS))


def _deselect(config: pytest.Config, items: list[pytest.Item], is_left: Callable[[pytest.Item], bool]) -> None:
    marked = [(item, is_left(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, left in marked if left])
    items[:] = [item for item, left in marked if not left]


def _is_for_other_engine(item: pytest.Item, engines: Sequence[str]) -> bool:
    """Return whether a test is in the folder of an engine that is not one of these."""
    folder = item.path.parent
    return folder.parent.name == "engines" and not any(name.partition("-")[0] == folder.name for name in engines)


def _get_engine(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("engine", "")) if callspec else ""


# What Spark may refuse before it changes anything; tests/engines/spark checks that it refuses nothing else.
DECLINED = ("which Spark does not support", "where no executor can reach it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        yield
    except MerganserError as error:
        if _get_engine(item) in SPARK and any(text in str(error) for text in DECLINED):
            pytest.xfail(str(error))
        raise
    except KeyboardInterrupt as error:
        # DuckDB reports whatever a signal raised in this way, a timeout too; an interrupt would end the whole run.
        if str(error.__cause__) == "Query interrupted":
            pytest.fail("interrupted in DuckDB, probably because the test took too long")
        raise


@pytest.fixture(autouse=True)
def _empty_memory() -> Iterator[None]:
    """Leave nothing on `memory://`, which is one filesystem for all tests of a process."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def io(engine: str) -> DatasetIO:
    """The dataset IO of the engine under test."""
    return open_dataset_io(engine)


@pytest.fixture
def example_count(engine: str, request: pytest.FixtureRequest) -> int:
    """How many random lists of clauses to try on the engine under test."""
    fast, on_spark = (2000, 60) if request.config.getoption("--all-examples") else (40, 2)
    return on_spark if engine in SPARK else fast


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A folder for datasets; a dataset of its own is `f"{lake}/t"`."""
    return str(tmp_path)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def spark() -> Any:
    """The one Spark session of this process."""
    return get_spark_session()


@pytest.fixture
def configured(spark: Any) -> Iterator[Callable[..., None]]:
    """Set settings of the session until the test ends."""
    before: dict[str, str | None] = {}

    def configure(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield configure
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
