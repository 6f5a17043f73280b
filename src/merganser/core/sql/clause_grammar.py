"""The grammar of the clauses of a MERGE, which DuckDB, the SQL standard and Delta Lake spell in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from merganser.core.model.clauses import ACTIONS
from merganser.core.sql.tokens import read_name, read_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from merganser.core.model.clauses import ClauseAction, Side
    from merganser.core.sql.tokens import Span, Token, TokenReader

_SIDES: Mapping[Side, str] = {
    "matched": "WHEN MATCHED",
    "not_matched": "WHEN NOT MATCHED",
    "not_matched_by_source": "WHEN NOT MATCHED BY SOURCE",
}
_CHOICES: Mapping[Side, str] = {
    "matched": "UPDATE, DELETE or DO NOTHING",
    "not_matched": "INSERT or DO NOTHING",
    "not_matched_by_source": "UPDATE SET, DELETE or DO NOTHING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseText:
    """A clause as it is written; without `values`, it takes all columns, by name or in their order."""

    side: Side
    action: ClauseAction
    start: int
    where: Span | None = None
    values: Mapping[str, Span] | None = None
    by_name: bool = False


def read_clause(reader: TokenReader, target_alias: str, earlier: Sequence[ClauseText]) -> ClauseText:
    """Read a clause, from WHEN to the end of its action."""
    when = reader.take()
    side = _read_side(reader)
    if any(one.side == side and one.where is None for one in earlier):
        raise reader.fail(f"an earlier {_SIDES[side]} has no condition, so this one is never reached. Remove it.", when)
    where = None
    if reader.accept("AND"):
        tokens = reader.take_until("THEN", symbols=",")
        if not tokens:
            raise reader.fail("the condition is empty. Write one, or leave AND out.")
        where = reader.source.cut(tokens)
    reader.expect("THEN", "an action follows the condition")
    action, values, by_name = _read_action(reader, side, target_alias)
    return ClauseText(side=side, action=action, start=when.start, where=where, values=values, by_name=by_name)


def _read_side(reader: TokenReader) -> Side:
    if reader.accept("MATCHED"):
        side: Side = "matched"
    elif reader.accept("NOT", "MATCHED", "BY", "SOURCE"):
        side = "not_matched_by_source"
    elif reader.accept("NOT", "MATCHED", "BY", "TARGET") or reader.accept("NOT", "MATCHED"):
        side = "not_matched"
    else:
        raise reader.fail("this is no kind of rows. Write MATCHED or NOT MATCHED [BY TARGET | BY SOURCE].")
    if not reader.next.is_word("AND", "THEN"):
        raise reader.fail(f"this does not follow {_SIDES[side]}. Write AND with a condition, or THEN.")
    return side


def _read_action(
    reader: TokenReader, side: Side, target_alias: str
) -> tuple[ClauseAction, Mapping[str, Span] | None, bool]:
    token = reader.take()
    if token.is_word("ERROR"):
        raise reader.fail("the action ERROR is not supported. Check the rows before the MERGE.", token)
    actions: dict[str, ClauseAction] = {"UPDATE": "update", "INSERT": "insert", "DELETE": "delete", "DO": "nothing"}
    action = actions.get(token.text) if token.kind == "word" else None
    if action not in ACTIONS[side]:
        raise reader.fail(f"{_SIDES[side]} has no such action. Write {_CHOICES[side]}.", token)
    values, by_name = None, False
    if action == "nothing":
        reader.expect("NOTHING", "the action is DO NOTHING")
    elif action == "update":
        values, by_name = _read_update(reader, side, target_alias, token)
    elif action == "insert":
        values, by_name = _read_insert(reader)
    following = reader.next
    if not (reader.is_at_end or following.is_word("WHEN", "RETURNING") or following.is_symbol(";")):
        raise reader.fail(f"this does not follow {token.text}. Conditions belong before THEN: {_SIDES[side]} AND …")
    return action, values, by_name


def _read_update(
    reader: TokenReader, side: Side, target_alias: str, update: Token
) -> tuple[Mapping[str, Span] | None, bool]:
    has_set = reader.accept("SET")
    if has_set and not reader.next.is_symbol("*"):
        return _read_assignments(reader, target_alias), False
    if has_set:
        reader.take()
    by_name = not has_set and reader.accept("BY", "NAME")
    if not (has_set or by_name):
        reader.accept("BY", "POSITION")
    if side != "matched":
        raise reader.fail("a row without a match has no source row. Write UPDATE SET column = expression.", update)
    return None, by_name


def _read_assignments(reader: TokenReader, target_alias: str) -> Mapping[str, Span]:
    values: dict[str, Span] = {}
    while not values or reader.accept_symbol(","):
        column = reader.take()
        if column.is_symbol("("):
            raise reader.fail("columns are set one by one. Write SET a = …, b = …", column)
        name = read_name(reader, column, "what SET changes")
        if reader.accept_symbol("."):
            if name.lower() != target_alias.lower():
                raise reader.fail(
                    f"SET changes columns of the target, {target_alias}, and no field of a column. Set the whole "
                    "column, for example with struct_update.",
                    column,
                )
            column = reader.take()
            name = read_name(reader, column, "what SET changes")
        if not reader.accept_symbol("="):
            raise reader.fail(f"a value follows {name!r}. Write {name} = expression.")
        if any(name.lower() == one.lower() for one in values):
            raise reader.fail(f"SET has column {name!r} twice. Leave one out.", column)
        values[name] = _read_value(reader, reader.take_until("WHEN", "RETURNING", symbols=","))
    return values


def _read_insert(reader: TokenReader) -> tuple[Mapping[str, Span] | None, bool]:
    token = reader.next
    if token.is_word("VALUES", "DEFAULT"):
        raise reader.fail(
            "values without columns depend on the order of the target's. Write INSERT (column, …) VALUES (…)."
        )
    if token.is_symbol("("):
        return _read_inserted(reader), False
    by_name = reader.accept("BY", "NAME")
    if not by_name:
        reader.accept("BY", "POSITION")
    reader.accept_symbol("*")
    return None, by_name


def _read_inserted(reader: TokenReader) -> Mapping[str, Span]:
    columns = read_names(reader, "the columns of INSERT")
    reader.expect("VALUES", "values follow the columns of INSERT")
    opening = reader.next
    if not reader.accept_symbol("("):
        raise reader.fail("values follow in brackets. Write VALUES (…).")
    found = [_read_value(reader, reader.take_until(symbols=","))]
    while reader.accept_symbol(","):
        found.append(_read_value(reader, reader.take_until(symbols=",")))
    if not reader.accept_symbol(")"):
        raise reader.fail("this bracket is not closed. Add ')'.", opening)
    if len(found) != len(columns):
        raise reader.fail(f"INSERT has {len(columns)} columns and {len(found)} values. Give one for each.", opening)
    return {name: value for (name, _), value in zip(columns, found, strict=True)}


def _read_value(reader: TokenReader, tokens: Sequence[Token]) -> Span:
    if not tokens:
        raise reader.fail("an expression is missing here. Add it.")
    if len(tokens) == 1 and tokens[0].is_word("DEFAULT"):
        raise reader.fail("Parquet has no default values. Write the value, or NULL.", tokens[0])
    return reader.source.cut(tokens)
