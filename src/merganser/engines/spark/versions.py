"""Checks once a session that executors have the driver's packages: with others, tasks fail in the middle of a merge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from merganser.engines.spark import package_probe
from merganser.engines.spark.package_probe import SHIPPED, find_versions, probe_packages
from merganser.errors import MissingExtraError
from merganser.timeline import record_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from merganser.engines.spark.package_probe import Versions

# The leading numbers that driver and executors must have in common. Tasks exchange pickled objects of these packages,
# and call functions of merganser by name.
_COMMON_NUMBERS = {"merganser": 3, "pyarrow": 1, "numpy": 1, "fsspec": 0}
_PROBES = 4  # executors that are asked
_checked: set[str] = set()
# Executors may lack this package, so they cannot import the module.
cloudpickle.register_pickle_by_value(package_probe)  # type: ignore[no-untyped-call]


def check_executors(spark: SparkSession) -> None:
    """Refuse executors whose packages do not fit those of the driver; each session is asked once."""
    session = str(getattr(spark, "session_id", None) or spark.conf.get("spark.app.id", None))
    if session in _checked:
        return
    frame = spark.range(0, _PROBES, 1, _PROBES).mapInArrow(probe_packages, "versions string")
    with record_span("job", "check executors"):
        answers = frame.toArrow().column("versions").to_pylist()
    here = find_versions()
    for answer in sorted(set(answers)):
        compare_versions(here, json.loads(answer))
    _checked.add(session)


def compare_versions(driver: Versions, executor: Versions) -> None:
    """Refuse the packages of an executor, naming the first that does not fit."""
    for name, numbers in _COMMON_NUMBERS.items():
        have, want = executor["packages"][name], driver["packages"][name]
        if have is None:
            remedy = _get_remedy(name, want)
            raise MissingExtraError(f"The executors' Python, {executor['python']}, has no package {name!r}. {remedy}")
        if name == "merganser" and SHIPPED in (have, want):
            continue
        if str(have).split(".")[:numbers] != str(want).split(".")[:numbers]:
            raise MissingExtraError(
                f"The executors have {name} {have} and the driver has {want}, which cannot work together. "
                f"{_get_remedy(name, want)}"
            )


def _get_remedy(name: str, version: Any) -> str:
    if name == "merganser":
        return "Call merganser.engines.spark.ship(spark), or install the driver's version for the executors."
    return f"Install {name} {version} there, or set PYSPARK_PYTHON to a Python that has it."
