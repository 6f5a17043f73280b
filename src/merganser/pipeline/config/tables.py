"""The tables of a configuration as classes, each checked when it is created, all of them before Spark starts.

A pipeline is written as these objects, or as a TOML file with the same names (see `toml_file`).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from merganser.core.model.options import Options, check_order, list_options, make_request
from merganser.errors import MerganserError
from merganser.graph.merging.missing import read_missing_options
from merganser.graph.sqlite.sql import quote_spark_identifier
from merganser.pipeline.config import field_types as types
from merganser.pipeline.config.table import Table, declare_key
from merganser.pipeline.config.when import When

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from merganser.core.model.clauses import Clause
    from merganser.core.model.options import Request
    from merganser.core.model.strategy import MergeStrategy
    from merganser.graph.merging.bulk_edges import MissingNodePolicy
    from merganser.graph.merging.missing import MissingOptions, MissingPolicy
    from merganser.graph.sqlite.chosen import DetachPolicy

    # Columns by name, or names with a Spark SQL expression each.
    Expressions: TypeAlias = Mapping[str, str] | Sequence[str]

FORMATS = ("csv", "json", "orc", "parquet", "text")
# Options of Spark's readers that would hide unreadable rows and files.
_LOSSY_OPTIONS = {"columnnameofcorruptrecord", "ignorecorruptfiles", "ignoremissingfiles"}
_RESERVED_RULES = ("malformed", "cast ", "null key ")
# Options of `merge` that the run itself sets, and those of reading files, which Spark's readers do.
_RUN_OPTIONS = {"batch_id", "column_types", "filesystem", "null_values", "use_merge"}
MERGE_OPTIONS = tuple(sorted(set(list_options("merge")) - _RUN_OPTIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Table):
    """Raw files that Spark reads, and how their rows are cleaned.

    >>> Source(name="postings", path="s3a://feed/*.json", format="json").path
    ('s3a://feed/*.json',)
    """

    title = "[[source]]"

    name: str = declare_key(types.NAME)
    path: Sequence[str] = declare_key(types.STRINGS)
    format: str = declare_key(types.choice(FORMATS))
    schema: str | None = declare_key(types.STRING, None)
    options: Mapping[str, Any] = declare_key(types.SETTINGS, ())
    rename: Mapping[str, str] = declare_key(types.STRING_MAP, ())
    cast: Mapping[str, str] = declare_key(types.STRING_MAP, ())
    derive: Mapping[str, str] = declare_key(types.STRING_MAP, ())
    drop: Sequence[str] = declare_key(types.STRINGS, ())
    where: Sequence[str] = declare_key(types.STRINGS, ())
    fail_above: float | None = declare_key(types.FRACTION, None)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if not self.path:
            raise self.make_error("path", "it is empty. Name a file, a folder or a glob.")
        # Spark would resolve relative paths in the folder where its own process was started.
        absolute = tuple(path if "://" in path else os.path.abspath(path) for path in self.path)
        object.__setattr__(self, "path", absolute)
        for name, value in self.options.items():
            if name.lower() in _LOSSY_OPTIONS or (name.lower(), str(value).upper()) == ("mode", "DROPMALFORMED"):
                message = f"{name} = {value!r} would lose rows silently. Remove it: bad rows are quarantined."
                raise self.make_error("options", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Table):
    """A rule for the rows of a source; a row for which it is not true is quarantined.

    >>> Check(name="paid", source="postings", rule="salary > 0").rule
    'salary > 0'
    """

    title = "[[check]]"

    name: str = declare_key(types.NAME)
    source: str = declare_key(types.STRING)
    rule: str = declare_key(types.STRING)
    fail_above: float | None = declare_key(types.FRACTION, None)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if self.name.startswith(_RESERVED_RULES):
            reserved = ", ".join(map(repr, _RESERVED_RULES))
            raise self.make_error("name", f"names that start with {reserved} are reserved. Choose another name.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Table):
    """A Parquet dataset that the clean rows of a source are merged into, with the options of `merge`.

    A merge has a strategy, by default `upsert`, or clauses.

    >>> Dataset(name="jobs", source="postings", path="lake/jobs", key_columns="url").strategy
    'upsert'
    """

    title = "[[dataset]]"

    name: str = declare_key(types.NAME)
    source: str = declare_key(types.STRING)
    path: str = declare_key(types.STRING)
    key_columns: Sequence[str] = declare_key(types.STRINGS)
    strategy: MergeStrategy | None = declare_key(types.STRING, None)
    columns: Expressions | None = declare_key(types.PROPERTIES, None)
    when: Sequence[When] = declare_key(types.NestedTables(When, is_repeated=True), ())
    merge: Mapping[str, Any] = declare_key(types.SETTINGS, ())

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        for name in self.merge:
            if name not in MERGE_OPTIONS:
                raise self.make_error(name, f"merge has no such option{types.suggest_name(name, MERGE_OPTIONS)}")
        if self.strategy is None and not self.when:
            object.__setattr__(self, "strategy", "upsert")
        elif self.strategy is not None and self.when:
            message = (
                f"the clauses in {When.title} already say what happens to rows. Remove the strategy, or the clauses."
            )
            raise self.make_error("strategy", message)
        try:
            # A feed delivers the same rows again and again; those that are equal need not be rewritten.
            request = self.make_request()
            if "skip_unchanged" not in self.merge and request.rule.replaces:
                object.__setattr__(self, "merge", {"skip_unchanged": True, **self.merge})
            check_order(request, is_ordered=False)
        except (MerganserError, TypeError) as error:
            text = str(error)
            mentioned = [name for name in ("strategy", "key_columns", *MERGE_OPTIONS) if name in text]
            default = "when" if self.when else "strategy"
            raise self.make_error(min(mentioned, key=text.index, default=default), text) from error
        missing = [name for name in self.key_columns if self.columns is not None and name not in self.columns]
        if missing:
            raise self.make_error("columns", f"the key column {missing[0]!r} is missing. Add it.")

    @property
    def clauses(self) -> Sequence[Clause] | None:
        """The clauses of the merge, if it has no strategy."""
        return [one.clause for one in self.when] or None

    def make_request(self) -> Request:
        """Make the request of the merge, with the options and clauses that it has."""
        return make_request(self.strategy or "upsert", list(self.key_columns), Options(**self.merge), self.clauses)

    def find_expression(self, column: str) -> str:
        """Find the expression of a column over the source's rows."""
        return quote_spark_identifier(column) if self.columns is None else types.to_expressions(self.columns)[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends(Table):
    """The node at one endpoint of an edge: its type, and an expression for each match property.

    >>> Ends(type="Job", match="url").match
    {'url': '`url`'}
    """

    title = "endpoint"

    type: str = declare_key(types.STRING)
    match: Expressions = declare_key(types.PROPERTIES)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if not self.match:
            raise self.make_error("match", f"it is empty. Name the properties that identify a {self.type}.")


def _to_literal(value: Any) -> str:
    """Write a string, a number or a boolean as Spark SQL."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, bool):
        return str(value).lower()
    return f"CAST({value!r} AS {'BIGINT' if isinstance(value, int) else 'DOUBLE'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphTable(Table):
    type: str = declare_key(types.STRING)
    source: str = declare_key(types.STRING)
    match: Expressions = declare_key(types.PROPERTIES, ())
    base: Expressions = declare_key(types.PROPERTIES, ())
    on_create: Expressions = declare_key(types.PROPERTIES, ())
    on_match: Expressions = declare_key(types.PROPERTIES, ())
    order_by: Sequence[str] = declare_key(types.STRINGS, ())
    skip_null_keys: bool = declare_key(types.BOOLEAN, False)  # noqa: FBT003 - the default
    missing: MissingPolicy = declare_key(types.MISSING, "keep")
    scope: Mapping[str, Any] | None = declare_key(types.SCOPE, None)

    @property
    def missing_options(self) -> MissingOptions | None:
        """What happens to the records that no row matches; None if they are kept."""
        return read_missing_options(self.missing, self.scope, getattr(self, "detach", False), list(self.match))

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        self._read_missing()
        for name in ("base", "on_create", "on_match"):
            for one in getattr(self, name):
                if one in self.match:
                    raise self.make_error(name, f"{one!r} is a match property, which never changes. Remove it here.")
        counts = Counter(one.casefold() for one in {*self.match, *self.base, *self.on_create, *self.on_match})
        ambiguous = next((one for one, count in counts.items() if count > 1), None)
        if ambiguous is not None:
            raise self.make_error("match", f"two properties {ambiguous!r} differ only in case. Rename one of them.")

    def _read_missing(self) -> None:
        """Check what happens to missing records, and give new records the properties of the scope."""
        try:
            options = self.missing_options
        except (MerganserError, TypeError) as error:
            text = str(error)
            mentioned = [name for name in ("missing", "scope", "detach") if name in text]
            raise self.make_error(min(mentioned, key=text.index, default="missing"), text) from error
        known = {*self.match, *self.base, *self.on_create, *self.on_match}
        added = {name: _to_literal(value) for name, value in (options.scope if options else {}).items()}
        if added.keys() - known:
            base = types.to_expressions(self.base)
            wanted = {name: text for name, text in added.items() if name not in known}
            object.__setattr__(self, "base", {**base, **wanted})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(_GraphTable):
    """Nodes of one type, merged from the rows of a source.

    >>> Node(type="Job", source="postings", match="url", on_match=["title"]).on_match
    {'title': '`title`'}
    """

    title = "[[graph.node]]"

    detach: DetachPolicy = declare_key(types.DETACH, False)  # noqa: FBT003 - the default

    @property
    def unique_name(self) -> str:
        """A name that no other node table has."""
        return f"{self.type} of {self.source}"

    def __post_init__(self) -> None:
        _GraphTable.__post_init__(self)
        if not self.match:
            raise self.make_error("match", f"it is empty. Name the properties that identify a {self.type}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(_GraphTable):
    """Edges of one type, merged from the rows of a source, between existing nodes.

    >>> job, company = Ends(type="Job", match="url"), Ends(type="Company", match={"name": "company"})
    >>> Edge(type="POSTED_BY", source="postings", from_node=job, to_node=company).on_missing_node
    'error'
    """

    title = "[[graph.edge]]"

    from_node: Ends = declare_key(types.NestedTables(Ends))
    to_node: Ends = declare_key(types.NestedTables(Ends))
    on_missing_node: MissingNodePolicy = declare_key(types.choice(("error", "skip", "create")), "error")

    @property
    def unique_name(self) -> str:
        """A name that no other edge table has: edges of one type may connect several types of nodes."""
        return f"{self.from_node.type}-{self.type}-{self.to_node.type} of {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Table):
    """A property graph in Parquet, in SQLite, or in both.

    >>> Graph(path="lake/graph", node=[Node(type="Job", source="postings", match="url")]).node[0].type
    'Job'
    """

    title = "[graph]"

    path: str | None = declare_key(types.STRING, None)
    sqlite: str | None = declare_key(types.STRING, None)
    node: Sequence[Node] = declare_key(types.NestedTables(Node, is_repeated=True), ())
    edge: Sequence[Edge] = declare_key(types.NestedTables(Edge, is_repeated=True), ())

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if self.sqlite is not None and "://" in self.sqlite:
            raise self.make_error("sqlite", f"SQLite needs a local file, not {self.sqlite!r}. Set a local path.")
        if self.path is None and self.sqlite is None:
            raise self.make_error("path", "it is missing. Set path for Parquet, sqlite for an SQLite file, or both.")
        if not self.node and not self.edge:
            raise self.make_error("node", "there is no [[graph.node]] and no [[graph.edge]]. Add one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Table):
    """A pipeline: sources, rules, and the datasets and graph that clean rows are merged into.

    >>> feed = Source(name="postings", path="feed/*.json", format="json")
    >>> jobs = Dataset(name="jobs", source="postings", path="lake/jobs", key_columns="url")
    >>> Pipeline(name="jobs", state="state", source=[feed], dataset=[jobs]).quarantine
    'state/quarantine'
    """

    title = "[pipeline]"

    name: str = declare_key(types.NAME)
    state: str = declare_key(types.STRING)
    quarantine: str = declare_key(types.STRING, "")
    source: Sequence[Source] = declare_key(types.NestedTables(Source, is_repeated=True))
    check: Sequence[Check] = declare_key(types.NestedTables(Check, is_repeated=True), ())
    dataset: Sequence[Dataset] = declare_key(types.NestedTables(Dataset, is_repeated=True), ())
    graph: Graph | None = declare_key(types.NestedTables(Graph), None)

    def __post_init__(self) -> None:
        if not self.quarantine and isinstance(self.state, str) and self.state:
            object.__setattr__(self, "quarantine", f"{self.state.rstrip('/')}/quarantine")
        Table.__post_init__(self)
        if not self.source:
            raise self.make_error("source", "there is no [[source]]. Add one.")
        if not self.dataset and self.graph is None:
            raise self.make_error("dataset", "there is no [[dataset]] and no [graph]. Add one.")
        for tables in (self.source, self.check, self.dataset):
            _check_unique(tables, "name")
        for graph_tables in (self.graph.node, self.graph.edge) if self.graph else ():
            _check_unique(graph_tables, "unique_name", "type")
        self._check_sources()
        self._check_paths()

    @property
    def label(self) -> str:
        """The name of this table in errors: there is only one."""
        return self.title

    @property
    def graph_tables(self) -> list[Node | Edge]:
        """The tables of the graph: nodes before the edges between them."""
        return [*self.graph.node, *self.graph.edge] if self.graph else []

    def find_checks(self, source: str) -> list[Check]:
        """List the rules of a source."""
        return [check for check in self.check if check.source == source]

    def _check_sources(self) -> None:
        names = [source.name for source in self.source]
        users: list[Check | Dataset | Node | Edge] = [*self.check, *self.dataset, *self.graph_tables]
        for user in users:
            if user.source not in names:
                hint = types.suggest_name(user.source, names)
                raise user.make_error("source", f"there is no [[source]] {user.source!r}{hint}")
        used = {user.source for user in [*self.dataset, *self.graph_tables]}
        for source in self.source:
            if source.name not in used:
                message = "this source is not used. Use it in a [[dataset]] or in the [graph], or remove it."
                raise source.make_error("name", message)

    def _check_paths(self) -> None:
        """Refuse nested folders: files of the inner one would count as files of the outer one."""
        places: list[tuple[Table, str, str]] = [(self, "state", self.state), (self, "quarantine", self.quarantine)]
        places += [(dataset, "path", dataset.path) for dataset in self.dataset]
        places += [(self.graph, "path", self.graph.path)] if self.graph and self.graph.path else []
        for table, name, path in places:
            for other, named, outer in places:
                own, around = _normalize_folder(path), _normalize_folder(outer)
                inside = own.startswith(f"{around}/") and (name, named) != ("quarantine", "state")
                # Two sources may be merged into one dataset.
                shared = (table, name) == (other, named) or {type(table), type(other)} == {Dataset}
                if inside or (own == around and not shared):
                    message = f"{path!r} overlaps {outer!r}, the folder of {other.label}. Choose a separate folder."
                    raise table.make_error(name, message)


def _normalize_folder(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _check_unique(tables: Iterable[Table], attribute: str, name: str = "name") -> None:
    seen: set[str] = set()
    for table in tables:
        value = getattr(table, attribute)
        if value in seen:
            raise table.make_error(name, f"{value!r} is defined twice. Rename one of them, or combine them.")
        seen.add(value)
