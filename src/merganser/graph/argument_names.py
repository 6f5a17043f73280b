"""Arguments under other names: those of the source document, and those of another method for the same thing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from merganser.core.model.options import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

# Names that mean the same; every method has one of each line at most.
_SYNONYMS = (
    ("match", "match_on", "match_properties"),
    ("base", "properties", "base_properties"),
    ("type", "node_type"),
    ("name", "index_name"),
    ("rows", "frame"),
    ("from_id", "from_node"),
    ("to_id", "to_node"),
)


def accept_synonyms(*further: Iterable[str]) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Let a method accept its arguments under their other names, and suggest the closest name for an unknown one.

    `further` are the arguments that it takes as `**given`.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        own = {one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD}
        known = frozenset(own - {"self"}).union(*further)

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> ResultT:
            if not known.issuperset(named):
                return function(*arguments, **rename_arguments(function.__name__, named, known))
            return function(*arguments, **named)

        return call

    return decorate


def rename_arguments(call: str, given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Give arguments the names that are known, or refuse them as Python does.

    >>> rename_arguments("merge_node", {"match_properties": {"url": "/1"}}, ["match", "base"])
    {'match': {'url': '/1'}}
    """
    names = frozenset(known)
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = find_known_name(name, names)
        if own in found:
            message = f"{call}() got {name!r} and another argument that means the same, {own!r}. Pass one of them."
            raise TypeError(message)
        if own not in names and name == "options" and isinstance(value, Mapping):
            entries = ", ".join(f"{entry}=…" for entry in value)
            raise TypeError(f"{call}() has no argument 'options'. Did you mean its entries as arguments: {entries}?")
        check_names(call, [own], names)
        found[own] = value
    return found


def find_known_name(name: str, known: Collection[str]) -> str:
    """Find the known name that means the same as another, or return that if there is none.

    >>> find_known_name("base", ["match", "properties"]), find_known_name("bas", ["base"])
    ('properties', 'bas')
    """
    for synonyms in () if name in known else _SYNONYMS:
        if name in synonyms:
            return next((one for one in synonyms if one in known), name)
    return name
