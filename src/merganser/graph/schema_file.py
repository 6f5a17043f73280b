"""The schema of a graph, as a JSON file says it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from merganser.errors import InvalidArgumentError, UnreadableFileError
from merganser.graph.schema import EdgeType, GraphSchema, NodeType
from merganser.safe_json import load_json

RuleT = TypeVar("RuleT", NodeType, EdgeType)


def read_schema(path: str) -> GraphSchema:
    """Read a schema from a file."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except OSError as error:
        message = f"Cannot read the schema {path}: {error.strerror}. Check the path of --schema and its permissions."
        raise UnreadableFileError(message) from error
    except UnicodeDecodeError as error:
        raise _make_schema_error(path, "it is not a string in UTF-8") from error
    try:
        found = load_json(text)
    except ValueError as error:
        raise _make_schema_error(path, f"it cannot be read as JSON: {error}") from error
    parts = _check_object(path, found, "it", ("nodes", "edges"))
    return GraphSchema(
        nodes=_parse_rules(path, parts.get("nodes", {}), "nodes", NodeType),
        edges=_parse_rules(path, parts.get("edges", {}), "edges", EdgeType),
    )


def _parse_rules(path: str, found: Any, part: str, rule_class: type[RuleT]) -> dict[str, RuleT]:
    names = tuple(field.name for field in fields(rule_class))
    rules = {}
    for type_, given in _check_object(path, found, f"{part!r}").items():
        where = f"{type_!r} of {part!r}"
        rule = _check_object(path, given, where, names)
        for name, value in rule.items():
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise _make_schema_error(path, f"{name!r} of {where} is no list of texts")
        rules[type_] = rule_class(**rule)
    return rules


def _check_object(path: str, found: Any, where: str, allowed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _make_schema_error(path, f"{where} is no object")
    for name in found:
        if allowed and name not in allowed:
            raise _make_schema_error(path, f"{where} has {name!r}, which means nothing here")
    return found


def _make_schema_error(path: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path} is no schema: {why}. Write a JSON object with 'nodes' and 'edges', and for each type which properties "
        "are 'required', and for edges 'from_types' and 'to_types'."
    )
