"""Graph schemas in JSON files."""

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
        message = f"Cannot read the schema {path}: {error.strerror}. Check the path and its permissions."
        raise UnreadableFileError(message) from error
    except UnicodeDecodeError as error:
        raise _make_schema_error(path, "it is not UTF-8 text") from error
    try:
        found = load_json(text)
    except ValueError as error:
        raise _make_schema_error(path, f"it cannot be read as JSON: {error}") from error
    schema = _check_object(path, found, "it", ("nodes", "edges"))
    return GraphSchema(
        nodes=_parse_rules(path, schema.get("nodes", {}), "nodes", NodeType),
        edges=_parse_rules(path, schema.get("edges", {}), "edges", EdgeType),
    )


def _parse_rules(path: str, found: Any, table: str, rule_class: type[RuleT]) -> dict[str, RuleT]:
    names = tuple(field.name for field in fields(rule_class))
    rules = {}
    for type_, given in _check_object(path, found, f"{table!r}").items():
        where = f"{type_!r} of {table!r}"
        rule = _check_object(path, given, where, names)
        for name, value in rule.items():
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise _make_schema_error(path, f"{name!r} of {where} is not a list of strings")
        rules[type_] = rule_class(**rule)
    return rules


def _check_object(path: str, found: Any, where: str, allowed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _make_schema_error(path, f"{where} is not an object")
    for name in found:
        if allowed and name not in allowed:
            raise _make_schema_error(path, f"{where} has {name!r}, which is not a known key")
    return found


def _make_schema_error(path: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path} is not a schema: {why}. Write a JSON object with 'nodes' and 'edges', which have an object for each "
        "type: with 'required' properties, and for edges 'from_types' and 'to_types'."
    )
