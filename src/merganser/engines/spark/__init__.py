"""The Spark engine. Executors import only the modules that their tasks need."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merganser.engines.spark.dataset_io import SparkDatasetIO
    from merganser.engines.spark.package import ship

__all__ = ["SparkDatasetIO", "ship"]
_MODULES = {"SparkDatasetIO": "dataset_io", "ship": "package"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
