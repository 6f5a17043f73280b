"""Public methods of the graph: every parameter is annotated, and described under `Args:`."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from merganser import graph

if TYPE_CHECKING:
    from collections.abc import Callable

# Spark's part has a test of its own, and the errors of the graph are raised, not called.
CLASSES = (
    graph.GraphDatabase,
    graph.NodeQuery,
    graph.EdgeQuery,
    graph.Traversal,
    graph.Pattern,
    graph.Nodes,
    graph.Edges,
    graph.Paths,
    graph.Rows,
    graph.Neighbourhood,
    graph.GraphStats,
    graph.GraphSchema,
)
METHODS = {
    f"{owner.__name__}.{name}": method
    for owner in CLASSES
    for name, method in inspect.getmembers(owner, inspect.isfunction)
    if not name.startswith("_") and method.__module__.startswith("merganser")
}
# Classes that callers create, whose parameters stand in the docstring of the class.
CREATED = (graph.GraphDatabase, graph.Endpoint, graph.GraphSchema, graph.NodeType, graph.EdgeType)


def check(call: Callable[..., Any], docstring: str | None) -> None:
    parameters = [found for found in inspect.signature(call).parameters.values() if found.name != "self"]
    assert all(found.annotation is not inspect.Parameter.empty for found in parameters)
    described = re.findall(r"^ {4}(\w+): \S", inspect.cleandoc(docstring or "").partition("Args:\n")[2], re.MULTILINE)
    assert described == [found.name for found in parameters]


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_of_a_method_is_described(name: str) -> None:
    check(METHODS[name], METHODS[name].__doc__)
    assert inspect.signature(METHODS[name]).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("created", CREATED)
def test_every_parameter_of_a_class_is_described(created: type) -> None:
    check(created, created.__doc__)


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("GraphDatabase.")])
def test_every_method_of_a_database_has_an_example(name: str) -> None:
    docstring = METHODS[name].__doc__ or ""
    assert ">>> " in docstring or "for an example" in docstring
