"""`sql`: a MERGE statement, with the options of `merge`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from merganser.cli.command import CommandOutput, name_target, open_filesystem, pair, storage_option, wrap_command
from merganser.cli.dataset.progress import show_progress
from merganser.cli.dataset.write import format_merge, resolve_path, show_plan
from merganser.cli.options import declared_options, to_arguments
from merganser.cli.sources import STDIN, make_reading, open_source, reading_options
from merganser.core.merge.sql_merge import plan_statement, run_statement
from merganser.core.sql.statement import parse_statement
from merganser.core.storage.location import locate
from merganser.engines import ENGINES, open_engine
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from merganser.core.sql.statement import MergeStatement

# Options of a merge for which a statement has clauses.
_CLAUSES = ("update_columns", "insert_columns", "dedup_order_by", "operation_column", "operation_values")


@click.command()
@click.argument("statement", required=False)
@click.option("-f", "--file", type=click.Path(), help="File that has the statement; - for standard input.")
@click.option(
    "--source", type=pair, multiple=True, metavar="NAME=PATH", help="Rows of a name in the statement. Repeatable."
)
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True, help="Engine that does the work."
)
@reading_options
@storage_option()
@declared_options("merge", without=_CLAUSES)
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `merganser plan` does.")
@wrap_command
def sql(statement: str | None, *, file: str | None, engine: str, dry_run: bool, **given: Any) -> CommandOutput:
    """Run a MERGE statement.

    STATEMENT is one MERGE INTO, in the SQL of DuckDB: MERGE INTO 'orders' AS t USING 'monday.csv' AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE BY NAME WHEN NOT MATCHED THEN INSERT BY NAME. The target is a path in quotes. The source is
    a path in quotes, a name that --source gives, or a query in brackets over these.
    """
    if given["use_merge"] is not None and engine != "duckdb":
        raise click.UsageError("--use-merge is for --engine duckdb. Leave it out, or choose that engine.")
    if file == STDIN and STDIN in dict(given["source"]).values():
        raise click.UsageError("Standard input is the statement, so it cannot be a source. Name a file.")
    parsed = parse_statement(_read_statement(statement, file))
    name_target(parsed.target)
    parsed = parsed.move_target(resolve_path(parsed.target))
    filesystem = open_filesystem(parsed.target, given["storage_option"])
    location = locate(parsed.target, filesystem, ignore_table_format=given["ignore_table_format"])
    reading = make_reading(given)

    def open_path(path: str) -> Any:
        return open_source(path, given["storage_option"], reading, location)

    sources = {name: open_path(path) for name, path in _check_sources(parsed, dict(given["source"])).items()}
    options = {**to_arguments("merge", given), "filesystem": filesystem}
    if dry_run:
        return show_plan(plan_statement(open_engine(engine), parsed, {**options, **sources}, open_path))
    with show_progress() as progress:
        arguments = {**options, "progress": progress, **sources}
        result = run_statement(open_engine(engine), parsed, arguments, open_path)
    return CommandOutput(result.to_dict(), format_merge(result, parsed.target))


def _read_statement(statement: str | None, file: str | None) -> str:
    if (statement is None) == (file is None):
        raise click.UsageError("Give a statement, or its file with -f.")
    if statement is not None:
        return statement
    if file == STDIN:
        if sys.stdin is None:
            raise InvalidArgumentError("Standard input is closed. Send the statement to it, or name a file.")
        data = sys.stdin.buffer.read()
    else:
        with open(file or "", "rb") as stream:
            data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"The statement is not UTF-8: {error}. Convert its file.") from error


def _check_sources(parsed: MergeStatement, given: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse names that the statement does not have, and names of it without a path."""
    named, others = parsed.split(given)
    if others:
        raise click.UsageError(f"The statement names no source {min(others)!r}. Leave --source {min(others)} out.")
    missing = parsed.find_missing(named)
    if missing is not None:
        raise click.UsageError(f"The statement names {missing.name!r}. Give --source {missing.name}=PATH.")
    return named
