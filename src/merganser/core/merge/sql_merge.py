"""Runs MERGE statements with an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from merganser.core.dataset.snapshot import load_target
from merganser.core.merge.builder import MergeBuilder
from merganser.core.model.options import check_names, list_options
from merganser.core.sources.files import FileSource
from merganser.core.sources.source import describe_source
from merganser.core.sql.returning import check_returned, choose_audit, select_returned
from merganser.core.storage.location import locate
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.model.options import Options
    from merganser.core.model.result import MergeResult
    from merganser.core.sql.statement import MergeStatement
    from merganser.core.storage.location import Location


def run_statement(
    io: DatasetIO, statement: MergeStatement, given: Mapping[str, Any], open_path: Callable[[str], Any] | None = None
) -> MergeResult:
    """Run a statement; of the arguments, those that it names are sources, and others are options."""
    sources, options = _split(statement, given)
    returning = statement.text.returning
    if returning:
        if options.get("audit"):
            raise InvalidArgumentError("audit and RETURNING both ask for the changed rows. Use one of them.")
        options["audit"] = choose_audit(returning, statement.join.on)
        _check_returned(io, statement, options)
    result = _make_builder(io, statement, sources, options, open_path).execute()
    if not returning or result.audit is None:
        return result
    return replace(result, audit=select_returned(result.audit, returning))


def plan_statement(
    io: DatasetIO, statement: MergeStatement, given: Mapping[str, Any], open_path: Callable[[str], Any] | None = None
) -> MergePlan:
    """Report what a statement would do to each file, and why, without doing it."""
    return _make_builder(io, statement, *_split(statement, given), open_path).plan()


def _split(statement: MergeStatement, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    sources, options = statement.split(given)
    check_names("sql", options, list_options("merge"))
    return sources, options


def _make_builder(
    io: DatasetIO,
    statement: MergeStatement,
    sources: Mapping[str, Any],
    options: dict[str, Any],
    open_path: Callable[[str], Any] | None,
) -> MergeBuilder:
    join = statement.join
    if join.matches_null:
        options["null_keys"] = "match"
    elif options.get("null_keys") == "match":
        raise statement.text.text.make_error(
            "= does not match NULL keys, and null_keys='match' does. Write IS NOT DISTINCT FROM, or leave it out.",
            statement.text.condition.start,
        )
    reader = _Reader.make(io, statement, options) if statement.text.source.kind == "query" else None
    source = statement.find_source(sources, open_path or str, reader.describe if reader else str)
    if reader is not None:
        reader.check()
    return MergeBuilder(io, statement.target, source, dict(join.on), options, statement.clauses)


@dataclass(slots=True)
class _Reader:
    """Describes the files of a query as a merge does: by the options of reading, and by the types of the target."""

    options: Options
    location: Location
    given: list[str]
    has_files: bool = False

    @classmethod
    def make(cls, io: DatasetIO, statement: MergeStatement, options: dict[str, Any]) -> _Reader:
        made = io.make_options("merge", options)
        location = locate(statement.target, made.filesystem, ignore_table_format=made.ignore_table_format)
        given = [name for name in ("column_types", "null_values") if options.pop(name, None)]
        return cls(made, location, given)

    def describe(self, source: Any) -> Any:
        if not isinstance(source, str | PathLike | FileSource):
            return source
        self.has_files = True
        return describe_source(source, self.options, self.location)

    def check(self) -> None:
        """Refuse options of reading if the query reads no file."""
        if self.given and not self.has_files:
            raise InvalidArgumentError(
                f"{self.given[0]} is for files, and the query reads none. Leave it out, and cast columns in the query."
            )


def _check_returned(io: DatasetIO, statement: MergeStatement, options: Mapping[str, Any]) -> None:
    made = io.make_options("merge", options)
    location = locate(statement.target, made.filesystem, ignore_table_format=made.ignore_table_format)
    check_returned(statement.text, statement.join.on, load_target(location, [], None, {}).schema)
