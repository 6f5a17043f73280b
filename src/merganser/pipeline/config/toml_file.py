"""Load a pipeline from a TOML file: its tables and keys are those of `tables`, `{name}` stands for a parameter."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merganser.errors import ConfigurationError
from merganser.pipeline.config.field_types import suggest_name
from merganser.pipeline.config.tables import (
    MERGE_OPTIONS,
    Check,
    Dataset,
    Edge,
    Ends,
    Graph,
    Node,
    Pipeline,
    Source,
)
from merganser.pipeline.config.when import When, label_clause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeVar

    from merganser.pipeline.config.table import Table

    TableT = TypeVar("TableT", bound=Table)

PARAMETERS = "parameters"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# Characters that would end a string, a name or a line in SQL.
_INVALID_CHARACTERS = re.compile(r"['\"`\\\x00-\x1f\x7f]")
# The keys that hold paths; in all others, braces may mean anything.
_PATH_KEYS = {"path", "state", "quarantine", "sqlite", "audit"}


def load(file: str | os.PathLike[str], parameters: Mapping[str, str] | None = None) -> Pipeline:
    """Load and check a pipeline, without Spark; relative paths in it are relative to the file.

    Args:
        file: Path of the TOML file.
        parameters: Values of the parameters that the file declares.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "jobs.toml").write_text('''
    ... [pipeline]
    ... name = "jobs"
    ... state = "state"
    ... parameters = ["date"]
    ... [[source]]
    ... name = "postings"
    ... path = "feed/{date}/*.json"
    ... format = "json"
    ... [[dataset]]
    ... name = "jobs"
    ... source = "postings"
    ... path = "lake/jobs"
    ... key_columns = "url"
    ... ''')
    >>> load(folder / "jobs.toml", {"date": "2026-01-02"}).source[0].path[0].endswith("feed/2026-01-02/*.json")
    True
    """
    path = os.fspath(file)
    try:
        given = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"it cannot be read: {error.strerror}. Check the path.", file=path) from error
    except (ValueError, RecursionError) as error:
        # tomllib itself raises others for deep nesting and for numbers with more digits than Python reads.
        raise ConfigurationError(f"it is not valid TOML: {error}. Correct it there.", file=path) from error
    try:
        return _make_pipeline(given, dict(parameters or {}), Path(file).absolute().parent)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, error.table, error.key, path) from error
    except (ValueError, RecursionError) as error:
        message = f"it is nested too deeply, or has a number that is too large: {error}. Correct it there."
        raise ConfigurationError(message, file=path) from error


def _make_pipeline(given: dict[str, Any], parameters: dict[str, str], folder: Path) -> Pipeline:
    known = ("pipeline", "source", "check", "dataset", "graph")
    _check_keys(given, known, "")
    top = _check_table(given.pop("pipeline", None), Pipeline.title)
    _check_parameters(top.pop(PARAMETERS, []), parameters)
    filling = _ParameterFilling(parameters, folder)
    tables = {name: filling.fill_tables(name, some) for name, some in {"pipeline": top, **given}.items()}
    own = [name for name in Pipeline.list_keys() if name not in known]
    _check_keys(tables["pipeline"], [*own, PARAMETERS], Pipeline.title)
    graph = tables.get("graph")
    return _make_table(
        Pipeline,
        {
            **tables["pipeline"],
            "source": [_make_table(Source, one) for one in _list_tables(tables, "source", Source)],
            "check": [_make_table(Check, one) for one in _list_tables(tables, "check", Check)],
            "dataset": [_make_dataset(one) for one in _list_tables(tables, "dataset", Dataset)],
            "graph": None if graph is None else _make_graph(_check_table(graph, Graph.title)),
        },
    )


def _make_dataset(given: dict[str, Any]) -> Dataset:
    """Make a dataset; the options of its merge are among its own keys."""
    own = [name for name in Dataset.list_keys() if name != "merge"]
    _check_keys(given, [*own, *MERGE_OPTIONS], _make_label(Dataset, given))
    options = {name: given.pop(name) for name in list(given) if name not in own}
    clauses = [_make_clause(one, given, number) for number, one in enumerate(_list_tables(given, "when", When), 1)]
    return _make_table(Dataset, {**given, "when": clauses, "merge": options}, is_checked=True)


def _make_clause(clause: dict[str, Any], dataset: Mapping[str, Any], number: int) -> When:
    try:
        return _make_table(When, clause)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, label_clause(dataset.get("name"), number), error.key) from error


def _make_graph(given: dict[str, Any]) -> Graph:
    nodes = [_make_table(Node, one) for one in _list_tables(given, "node", Node)]
    edges = [_make_edge(one) for one in _list_tables(given, "edge", Edge)]
    return _make_table(Graph, {**given, "node": nodes, "edge": edges})


def _make_edge(given: dict[str, Any]) -> Edge:
    label = _make_label(Edge, given)
    _check_keys(given, Edge.list_keys(), label)
    endpoints: dict[str, Ends] = {}
    for name in ("from_node", "to_node"):
        if name in given:
            try:
                endpoints[name] = _make_table(Ends, _check_table(given[name], label, name))
            except ConfigurationError as error:
                raise ConfigurationError(error.message, label, f"{name}.{error.key}") from error
    return _make_table(Edge, {**given, **endpoints})


def _make_table(table_type: type[TableT], given: Mapping[str, Any], *, is_checked: bool = False) -> TableT:
    label = _make_label(table_type, given)
    if not is_checked:
        _check_keys(given, table_type.list_keys(), label)
    for name in table_type.list_required_keys():
        if name not in given:
            raise ConfigurationError("it is missing. Add it.", label, name)
    return table_type(**given)


def _make_label(table_type: type[Table], given: Mapping[str, Any]) -> str:
    name = given.get("name") or given.get("type")
    return f"{table_type.title} {name!r}" if isinstance(name, str) else table_type.title


def _check_table(given: Any, label: str, name: str = "") -> dict[str, Any]:
    if given is None:
        raise ConfigurationError("the table is missing. Add it.", label)
    if not isinstance(given, dict):
        raise ConfigurationError(f"it must be a table, not {given!r}.", label, name)
    return given


def _list_tables(tables: Mapping[str, Any], name: str, table_type: type[Table]) -> list[dict[str, Any]]:
    given = tables.get(name, [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        message = f"it must be an array of tables. Write {table_type.title}, with two brackets, above each of them."
        raise ConfigurationError(message, table_type.title.replace("[[", "[").replace("]]", "]"))
    return given


def _check_keys(given: Mapping[str, Any], known: Iterable[str], label: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            message = f"unknown {'key' if label else 'table'}{suggest_name(name, names)}"
            raise ConfigurationError(message, label or f"[{name}]", name if label else "")


# -------------------- parameters and paths


def _check_parameters(declared: Any, given: Mapping[str, str]) -> None:
    """Refuse missing and undeclared parameters."""
    if not isinstance(declared, list) or not all(isinstance(name, str) and name.isidentifier() for name in declared):
        message = f'it must be a list of names such as ["date"], not {declared!r}.'
        raise ConfigurationError(message, Pipeline.title, PARAMETERS)
    faults = [f"{name!r} has no value. Set it: --param {name}=VALUE." for name in declared if name not in given]
    for name, value in given.items():
        if name not in declared:
            faults.append(f"{name!r} is not declared. Declared: {', '.join(declared) or 'none'}.")
        elif not isinstance(value, str) or not value or _INVALID_CHARACTERS.search(value):
            faults.append(f"{name!r} is {value!r}; it must be a non-empty string without quotes and backslashes.")
    if faults:
        raise ConfigurationError(f"the parameter {faults[0]}", Pipeline.title, PARAMETERS)


@dataclass(frozen=True, slots=True)
class _ParameterFilling:
    """Replaces placeholders in every string by parameters, and makes relative paths relative to the file."""

    parameters: Mapping[str, str]
    folder: Path

    def fill_tables(self, table: str, given: Any) -> Any:
        """Fill a table or a list of tables; the node and edge tables of the graph are nested."""
        if isinstance(given, list):
            return [self.fill_tables(table, one) for one in given]
        if not isinstance(given, dict):
            return given
        inner = {"node", "edge"} if table == "graph" else set()
        return {
            key: self.fill_tables(f"{table}.{key}", value) if key in inner else self.fill_value(value, table, key)
            for key, value in given.items()
        }

    def fill_value(self, given: Any, table: str, key: str) -> Any:
        """Fill the value of a key; `key` is empty for nested values, whose names are the user's own."""
        if isinstance(given, dict):
            return {one: self.fill_value(value, table, "") for one, value in given.items()}
        if isinstance(given, list):
            return [self.fill_value(one, table, key) for one in given]
        if not isinstance(given, str):
            return given
        text = _PLACEHOLDER.sub(lambda found: self.parameters.get(found[1], found[0]), given)
        if key not in _PATH_KEYS:
            return text
        unknown = _PLACEHOLDER.search(text)
        if unknown:
            fault = f"{given!r} has {unknown[0]}, which is not a parameter."
            raise ConfigurationError(f"{fault} Declare it in {Pipeline.title}, or correct it.", f"[{table}]", key)
        is_absolute = "://" in text or not text or os.path.isabs(text) or (key, text) == ("audit", "rows")
        return text if is_absolute else str(self.folder / text)
