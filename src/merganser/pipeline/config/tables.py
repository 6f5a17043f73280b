"""What a pipeline is made of: typed tables, each checked when it is made, all of them before Spark starts.

A pipeline is written as these objects, or as a TOML file with the same names (see `toml_file`).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from merganser.core.model.options import MergeOptions, check_order, make_options, make_request
from merganser.errors import ConfigurationError, MerganserError
from merganser.graph.sqlite.sql import backquoted
from merganser.pipeline.config.field_types import (
    FLAG,
    MAP,
    NAME,
    PROPERTIES,
    SETTINGS,
    SHARE,
    TEXT,
    TEXTS,
    Choice,
    Kind,
    Tables,
    expressions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from merganser.core.model.strategy import MergeStrategy

    # Columns by name, or names with a Spark SQL expression each.
    Expressions: TypeAlias = Mapping[str, str] | Sequence[str]

FORMATS = ("csv", "json", "orc", "parquet", "text")
# Options of Spark's readers that would hide what they cannot read.
_LOSING = {"columnnameofcorruptrecord", "ignorecorruptfiles", "ignoremissingfiles"}
_RULES = ("malformed", "cast ", "null key ")
# Of what `merge` takes, the run itself says these.
_OWN = {"batch_id", "filesystem", "use_merge"}
OPTIONS = tuple(sorted(MergeOptions.__optional_keys__ - _OWN))


def key(kind: Kind, default: Any = MISSING) -> Any:
    """Declare a key of a table; without a default it has to be given."""
    return field(default=default, metadata={"kind": kind})


class Table:
    """A table of the configuration: its keys are its fields, and what they take is checked when it is made."""

    __slots__ = ()
    title: ClassVar[str]

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            given = getattr(self, one.name)
            if given is not None or one.default is MISSING:
                object.__setattr__(self, one.name, one.metadata["kind"].read(given, self.label, one.name))

    @property
    def label(self) -> str:
        """What errors call this table."""
        named = getattr(self, "name", None) or getattr(self, "type", None)
        return f"{self.title} {named!r}" if isinstance(named, str) and named else self.title

    def refuse(self, name: str, message: str) -> ConfigurationError:
        """Give the error for one of the keys."""
        return ConfigurationError(message, self.label, name)

    @classmethod
    def names(cls) -> list[str]:
        """Name all keys."""
        return [one.name for one in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def required(cls) -> list[str]:
        """Name the keys that have to be given."""
        return [one.name for one in fields(cls) if one.default is MISSING]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Table):
    """Raw files that Spark reads, and how they become clean rows.

    >>> Source(name="postings", path="s3a://feed/*.json", format="json").path
    ('s3a://feed/*.json',)
    """

    title = "[[source]]"

    name: str = key(NAME)
    path: Sequence[str] = key(TEXTS)
    format: str = key(Choice(FORMATS))
    schema: str | None = key(TEXT, None)
    options: Mapping[str, Any] = key(SETTINGS, ())
    rename: Mapping[str, str] = key(MAP, ())
    cast: Mapping[str, str] = key(MAP, ())
    derive: Mapping[str, str] = key(MAP, ())
    drop: Sequence[str] = key(TEXTS, ())
    where: Sequence[str] = key(TEXTS, ())
    fail_above: float | None = key(SHARE, None)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if not self.path:
            raise self.refuse("path", "it is empty. Name a file, a folder or a glob.")
        # Spark would look where its own process was started.
        whole = tuple(path if "://" in path else os.path.abspath(path) for path in self.path)
        object.__setattr__(self, "path", whole)
        for name, value in self.options.items():
            if name.lower() in _LOSING or (name.lower(), str(value).upper()) == ("mode", "DROPMALFORMED"):
                message = f"{name} = {value!r} would lose rows silently. Leave it out: bad rows are quarantined."
                raise self.refuse("options", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Table):
    """A rule that every row of a source has to pass; one for which it is not true is quarantined.

    >>> Check(name="paid", source="postings", rule="salary > 0").rule
    'salary > 0'
    """

    title = "[[check]]"

    name: str = key(NAME)
    source: str = key(TEXT)
    rule: str = key(TEXT)
    fail_above: float | None = key(SHARE, None)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if self.name.startswith(_RULES):
            raise self.refuse("name", "rules that begin so are there without a [[check]]. Choose another name.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Table):
    """A Parquet dataset that the clean rows of a source are merged into, with the options of `merge`.

    >>> Dataset(name="jobs", source="postings", path="lake/jobs", key_columns="url").strategy
    'upsert'
    """

    title = "[[dataset]]"

    name: str = key(NAME)
    source: str = key(TEXT)
    path: str = key(TEXT)
    key_columns: Sequence[str] = key(TEXTS)
    strategy: MergeStrategy = key(TEXT, "upsert")
    columns: Expressions | None = key(PROPERTIES, None)
    merge: Mapping[str, Any] = key(SETTINGS, ())

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        for name in self.merge:
            if name not in OPTIONS:
                raise self.refuse(name, f"merge has no such option{_near(name, OPTIONS)}")
        try:
            # A feed comes again and again; what is there already need not be written again.
            request = make_request(self.strategy, list(self.key_columns), make_options(**self.merge))
            if "skip_unchanged" not in self.merge and request.rule.replaces:
                object.__setattr__(self, "merge", {"skip_unchanged": True, **self.merge})
            check_order(request, ordered=False)
        except (MerganserError, TypeError) as error:
            text = str(error)
            told = [name for name in ("strategy", "key_columns", *OPTIONS) if name in text]
            raise self.refuse(min(told, key=text.index, default="strategy"), text) from error
        missing = [name for name in self.key_columns if self.columns is not None and name not in self.columns]
        if missing:
            raise self.refuse("columns", f"the key column {missing[0]!r} is not among them. Add it.")

    def expression(self, column: str) -> str:
        """Give the expression of one of the columns over the source's rows."""
        return backquoted(column) if self.columns is None else expressions(self.columns)[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends(Table):
    """The node at one end of an edge: its type, and an expression for each of its match properties.

    >>> Ends(type="Job", match="url").match
    {'url': '`url`'}
    """

    title = "endpoint"

    type: str = key(TEXT)
    match: Expressions = key(PROPERTIES)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if not self.match:
            raise self.refuse("match", f"it is empty. Name the properties that identify a {self.type}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part(Table):
    type: str = key(TEXT)
    source: str = key(TEXT)
    match: Expressions = key(PROPERTIES, ())
    base: Expressions = key(PROPERTIES, ())
    on_create: Expressions = key(PROPERTIES, ())
    on_match: Expressions = key(PROPERTIES, ())
    order_by: Sequence[str] = key(TEXTS, ())
    skip_null_keys: bool = key(FLAG, False)  # noqa: FBT003 - the default

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        for name in ("base", "on_create", "on_match"):
            for one in getattr(self, name):
                if one in self.match:
                    raise self.refuse(
                        name, f"{one!r} is a match property, which identifies the record. Leave it out there."
                    )
        every = Counter(one.casefold() for one in {*self.match, *self.base, *self.on_create, *self.on_match})
        twice = next((one for one, count in every.items() if count > 1), None)
        if twice is not None:
            raise self.refuse("match", f"two properties are {twice!r} but for their case. Rename one of them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(_Part):
    """Nodes of one type, merged from the rows of a source.

    >>> Node(type="Job", source="postings", match="url", on_match=["title"]).on_match
    {'title': '`title`'}
    """

    title = "[[graph.node]]"

    @property
    def told(self) -> str:
        """What tells it from every other part."""
        return f"{self.type} of {self.source}"

    def __post_init__(self) -> None:
        _Part.__post_init__(self)
        if not self.match:
            raise self.refuse("match", f"it is empty. Name the properties that identify a {self.type}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(_Part):
    """Edges of one type, merged from the rows of a source, between nodes that are there."""

    title = "[[graph.edge]]"

    from_node: Ends = key(Tables(Ends))
    to_node: Ends = key(Tables(Ends))
    missing: Literal["refuse", "skip"] = key(Choice(("refuse", "skip")), "refuse")

    @property
    def told(self) -> str:
        """What tells it from every other part: edges of one type may connect nodes of several."""
        return f"{self.from_node.type}-{self.type}-{self.to_node.type} of {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Table):
    """A property graph, as Parquet, in SQLite, or both."""

    title = "[graph]"

    path: str | None = key(TEXT, None)
    sqlite: str | None = key(TEXT, None)
    node: Sequence[Node] = key(Tables(Node, several=True), ())
    edge: Sequence[Edge] = key(Tables(Edge, several=True), ())

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        if self.sqlite is not None and "://" in self.sqlite:
            raise self.refuse("sqlite", f"SQLite needs a file on this machine, not {self.sqlite!r}. Give its path.")
        if self.path is None and self.sqlite is None:
            raise self.refuse("path", "say where the graph is: path for Parquet, sqlite for a SQLite file, or both.")
        if not self.node and not self.edge:
            raise self.refuse("node", "there is no [[graph.node]] and no [[graph.edge]]. Add one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Table):
    """All of it: sources, rules, and what they are merged into.

    >>> feed = Source(name="postings", path="feed/*.json", format="json")
    >>> jobs = Dataset(name="jobs", source="postings", path="lake/jobs", key_columns="url")
    >>> Pipeline(name="jobs", state="state", source=[feed], dataset=[jobs]).quarantine
    'state/quarantine'
    """

    title = "[pipeline]"

    name: str = key(NAME)
    state: str = key(TEXT)
    quarantine: str = key(TEXT, "")
    source: Sequence[Source] = key(Tables(Source, several=True))
    check: Sequence[Check] = key(Tables(Check, several=True), ())
    dataset: Sequence[Dataset] = key(Tables(Dataset, several=True), ())
    graph: Graph | None = key(Tables(Graph), None)

    def __post_init__(self) -> None:
        if not self.quarantine and isinstance(self.state, str) and self.state:
            object.__setattr__(self, "quarantine", f"{self.state.rstrip('/')}/quarantine")
        Table.__post_init__(self)
        if not self.source:
            raise self.refuse("source", "there is no [[source]]. Add one.")
        if not self.dataset and self.graph is None:
            raise self.refuse("dataset", "nothing is merged into: there is no [[dataset]] and no [graph]. Add one.")
        for tables in (self.source, self.check, self.dataset):
            _check_once(tables, "name")
        for parts in (self.graph.node, self.graph.edge) if self.graph else ():
            _check_once(parts, "told", "type")
        self._check_sources()
        self._check_places()

    @property
    def label(self) -> str:
        """What errors call this table: there is only one."""
        return self.title

    @property
    def parts(self) -> list[Node | Edge]:
        """The parts of the graph: nodes before the edges between them."""
        return [*self.graph.node, *self.graph.edge] if self.graph else []

    def rules(self, source: str) -> list[Check]:
        """Give the rules of a source."""
        return [check for check in self.check if check.source == source]

    def _check_sources(self) -> None:
        names = [source.name for source in self.source]
        users: list[Check | Dataset | Node | Edge] = [*self.check, *self.dataset, *self.parts]
        for user in users:
            if user.source not in names:
                raise user.refuse("source", f"there is no [[source]] {user.source!r}{_near(user.source, names)}")
        used = {user.source for user in [*self.dataset, *self.parts]}
        for source in self.source:
            if source.name not in used:
                raise source.refuse("name", "nothing is made of this source. Use it in a [[dataset]], or remove it.")

    def _check_places(self) -> None:
        """Refuse folders inside one another: the outer would take the inner one's files for its own."""
        places: list[tuple[Table, str, str]] = [(self, "state", self.state), (self, "quarantine", self.quarantine)]
        places += [(dataset, "path", dataset.path) for dataset in self.dataset]
        places += [(self.graph, "path", self.graph.path)] if self.graph and self.graph.path else []
        for table, name, path in places:
            for other, named, outer in places:
                inside = _folder(path).startswith(f"{_folder(outer)}/") and (name, named) != ("quarantine", "state")
                # Two sources may be merged into one dataset.
                shared = (table, name) == (other, named) or {type(table), type(other)} == {Dataset}
                if inside or (_folder(path) == _folder(outer) and not shared):
                    message = f"{path!r} is inside {outer!r}, the place of {other.label}. Give it a place of its own."
                    raise table.refuse(name, message)


def _folder(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _check_once(tables: Iterable[Table], told: str, name: str = "name") -> None:
    seen: set[str] = set()
    for table in tables:
        named = getattr(table, told)
        if named in seen:
            raise table.refuse(name, f"there are two of {named!r}. Rename one of them, or make them one.")
        seen.add(named)


def _near(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = get_close_matches(name, known, 1)
    return f". Did you mean {near[0]!r}?" if near else f". There are: {', '.join(known)}."
