"""The engines by name, imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from merganser.core.merge.dataset_io import DatasetIO


class _Entry(NamedTuple):
    module: str
    class_name: str
    install: str


ENGINES = {
    "auto": _Entry("merganser.engines.auto", "AutoDatasetIO", "merganser"),
    "duckdb": _Entry("merganser.engines.duckdb", "DuckDBDatasetIO", "merganser"),
    "arrow": _Entry("merganser.engines.arrow", "PyArrowDatasetIO", "merganser"),
    "spark": _Entry("merganser.engines.spark", "SparkDatasetIO", "merganser[spark]"),
}


def open_engine(name: str) -> DatasetIO:
    """Open the dataset IO of an engine, by its name.

    >>> open_engine("arrow").__class__.__name__
    'PyArrowDatasetIO'
    """
    entry = ENGINES.get(name)
    if entry is None:
        raise InvalidArgumentError(f"Unknown engine {name!r}. Choose one of: {', '.join(ENGINES)}.")
    return load(entry.module, entry.class_name, entry.install)()  # type: ignore[no-any-return]


def load(module: str, name: str, install: str) -> Any:
    """Import a name of an engine; packages that are missing are named with what to install."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "merganser":
            raise
        message = f"This engine needs the package {error.name!r}. Install it with: pip install '{install}'."
        raise MissingExtraError(message) from error
