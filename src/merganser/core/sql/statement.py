"""A MERGE statement: its clauses over `s` and `t`, and the sources and options that it is run with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from merganser.core.model.clauses import Clause
from merganser.core.sql.grammar import MergeText, read_merge
from merganser.core.sql.join_condition import Join, read_join
from merganser.core.sql.names import Names, is_same
from merganser.core.sql.query import QueryTable, list_tables, run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from merganser.core.sql.clause_grammar import ClauseText

# The tables whose columns the expressions of a clause may use; the first is that of names without a table.
_VISIBLE = {"matched": "st", "not_matched": "s", "not_matched_by_source": "t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatement:
    """A statement that can be run."""

    text: MergeText
    join: Join
    clauses: tuple[Clause, ...]
    tables: tuple[QueryTable, ...]

    @property
    def target(self) -> str:
        """The path or URL of the target."""
        return self.text.target

    def move_target(self, path: str) -> MergeStatement:
        """Give the target another spelling of its path."""
        return replace(self, text=replace(self.text, target=path))

    def split(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split arguments into the sources that the statement names, and others."""
        names = {table.name.lower() for table in self.tables}
        sources = {name: value for name, value in given.items() if name.lower() in names}
        return sources, {name: value for name, value in given.items() if name not in sources}

    def find_missing(self, sources: Mapping[str, Any]) -> QueryTable | None:
        """Find a table that is neither the path of files nor among the sources."""
        return next(
            (
                table
                for table in self.tables
                if _find(sources, table.name) is None and not (table.is_common or table.is_path)
            ),
            None,
        )

    def find_source(
        self, sources: Mapping[str, Any], open_path: Callable[[str], Any], describe: Callable[[Any], Any]
    ) -> Any:
        """Find the source: rows that are passed by name, files, or the answer of a query over these.

        A query reads files before a merge could say how: `describe` does.
        """
        source = self.text.source
        if source.kind == "path":
            return open_path(source.span.text)
        missing = self.find_missing(sources)
        if missing is not None:
            raise self.text.text.make_error(
                f"no rows are given for {missing.name!r}. Pass them as an argument of this name, or write the path of "
                "files in quotes.",
                missing.start,
            )
        given = {table.name: _find(sources, table.name) for table in self.tables}
        opened = {
            table.name: open_path(table.name)
            for table in self.tables
            if given[table.name] is None and not table.is_common
        }
        found = opened | {name: value for name, value in given.items() if value is not None}
        if source.kind == "query":
            return run_query(self.text, {name: describe(value) for name, value in found.items()})
        return next(iter(found.values()))


def parse_statement(text: str) -> MergeStatement:
    """Parse a MERGE; what cannot be run exactly is refused, with its line and column."""
    found = read_merge(text)
    names = Names(found.text, found.source_alias, found.target_alias)
    join = read_join(found, names)
    clauses = tuple(_make_clause(one, names, join) for one in found.clauses)
    if found.source.kind == "query":
        tables = list_tables(found.text, found.source.span)
    elif found.source.kind == "name":
        tables = [QueryTable(found.source.span.text, found.source.span.start, is_common=False)]
    else:
        tables = []
    return MergeStatement(text=found, join=join, clauses=clauses, tables=tuple(tables))


def _make_clause(clause: ClauseText, names: Names, join: Join) -> Clause:
    visible = _VISIBLE[clause.side]
    values = None
    if clause.values is not None:
        values = {name: names.rename(span, visible) for name, span in clause.values.items()}
    where = None if clause.where is None else names.rename(clause.where, visible)
    takes_all = clause.action in ("update", "insert") and values is None
    computed = sorted(set(join.on) - join.by_name)
    if takes_all and computed:
        raise names.text.make_error(
            f"the clause takes all columns by name, but the join condition compares {computed[0]!r} with something "
            "else than the column of this name. List the columns.",
            clause.start,
        )
    if values is not None:
        _check_keys(clause, values, names, join)
    return Clause(
        side=clause.side,
        action=clause.action,
        where=where,
        values=values,
        by_name=clause.by_name,
        is_exact=takes_all,
    )


def _check_keys(clause: ClauseText, values: Mapping[str, str], names: Names, join: Join) -> None:
    """Refuse to give a row another key than the one it is matched by."""
    for key, expression in join.on.items():
        shown = f"{names.source}.{key}" if key in join.by_name else expression
        given = next((name for name in values if name.lower() == key.lower()), None)
        if given is None:
            if clause.action == "insert":
                raise names.text.make_error(
                    f"INSERT leaves out the key column {key!r}, which would be NULL. Add it, with the value {shown}.",
                    clause.start,
                )
            continue
        allowed = [] if clause.action == "insert" else [f't."{key}"']
        if clause.side != "not_matched_by_source":
            allowed.append(expression)
        if not any(is_same(values[given], one) for one in allowed):
            span = (clause.values or {})[given]
            remedy = f"Give it {shown}" if clause.action == "insert" else "Leave it out"
            raise names.text.make_error(
                f"the key column {given!r} identifies the row, and cannot take another value. {remedy}.", span.start
            )


def _find(sources: Mapping[str, Any], name: str) -> Any:
    """Find a source by its name; SQL ignores case."""
    if name in sources:
        return sources[name]
    return next((value for key, value in sources.items() if key.lower() == name.lower()), None)
