"""Reads rows of a dataset that meet a condition of SQL: DuckDB finds them, Arrow reads them in their own types."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from merganser.core.columnar.closed_database import connect_closed
from merganser.core.columnar.take import take
from merganser.core.commit.pinned import pinned_dataset
from merganser.core.model.option_types import to_column_names
from merganser.core.model.schema import format_names, select_fields
from merganser.errors import InvalidArgumentError, TargetPathError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pyarrow.dataset as pads

    from merganser.core.commit.states import AsOf
    from merganser.core.storage.location import Location

_ROW = "merganser_row"
_WORD = re.compile(r"\w+")
# Columns that a condition does not name: COLUMNS(*), #1.
_ANY_COLUMN = re.compile(r"\bcolumns\b|#")


def read_rows(
    location: Location,
    columns: Sequence[str] | str | None,
    where: str | None,
    limit: int | None = None,
    as_of: AsOf | None = None,
) -> pa.Table:
    """Read some columns of the rows that meet a condition, at most `limit` of them."""
    with pinned_dataset(location, as_of) as dataset:
        return _read_dataset(location, dataset, columns, where, limit)


def _read_dataset(
    location: Location, dataset: pads.Dataset, columns: Sequence[str] | str | None, where: str | None, limit: int | None
) -> pa.Table:
    if not dataset.schema.names:
        raise TargetPathError(f"There are no Parquet files below {location.display}. Check the path.")
    names = to_column_names(columns, "columns") or dataset.schema.names
    unknown = [name for name in names if name not in dataset.schema.names]
    if unknown:
        message = (
            f"{location.display} has no column {unknown[0]!r}. Its columns are: {', '.join(dataset.schema.names)}."
        )
        raise InvalidArgumentError(message)
    if where is None:
        return dataset.to_table(columns=names) if limit is None else dataset.head(limit, columns=names)
    tables, count = [pa.Table.from_batches([], select_fields(dataset.schema, names))], 0
    for table in _filter_row_groups(dataset, names, where):
        tables.append(table if limit is None else table.slice(0, limit - count))
        count += tables[-1].num_rows
        if count == limit:
            break
    return pa.concat_tables(tables)


def _filter_row_groups(dataset: pads.Dataset, columns: Sequence[str], where: str) -> Iterator[pa.Table]:
    """Read the rows of each row group that meet the condition; other columns only if there are any."""
    if not isinstance(where, str) or not where.strip():
        raise InvalidArgumentError(f'where must be a condition of SQL, such as "amount > 5", not {where!r}.')
    schema = dataset.schema
    used = _list_used_columns(schema.names, where)
    # A condition may come from another user: it sees the columns, and no file, extension or setting.
    with connect_closed() as connection:
        for group in chain.from_iterable(fragment.split_by_row_group() for fragment in dataset.get_fragments()):
            rows = _find_rows(connection, group.to_table(schema=schema, columns=used), where, schema.names)
            if len(rows):
                yield take(group.to_table(schema=schema, columns=list(columns)), rows)


def _list_used_columns(names: Sequence[str], where: str) -> list[str]:
    """List the columns that a condition may use; upper and lower case are the same to SQL."""
    text = where.lower()
    words = set(_WORD.findall(text))
    lowered = {name: name.lower().replace('"', '""') for name in names}
    uses_any = _ANY_COLUMN.search(text) is not None
    used = [
        name for name, one in lowered.items() if uses_any or (one in words if _WORD.fullmatch(one) else one in text)
    ]
    by_lower = {lowered[name]: name for name in used}
    clash = next((name for name in used if by_lower[lowered[name]] != name), None)
    if clash is not None:
        raise InvalidArgumentError(
            f"where {where!r} is ambiguous: the columns {clash!r} and {by_lower[lowered[clash]]!r} differ in case "
            "only, which SQL ignores. Rename one of them."
        )
    return used


def _find_rows(
    connection: duckdb.DuckDBPyConnection, table: pa.Table, where: str, names: Sequence[str]
) -> npt.NDArray[np.int64]:
    row = _ROW
    while row in map(str.lower, names):
        row += "_"
    numbered = table.append_column(row, pa.array(np.arange(table.num_rows)))
    try:
        # Without parentheses around it, a condition that closes them is not SQL.
        connection.extract_statements(f"SELECT\n{where}\n")
        with_rows = connection.register(_ROW, numbered)
        # The condition may end in a comment.
        found = with_rows.execute(f"SELECT {row} FROM {_ROW} WHERE (\n{where}\n) ORDER BY {row}")
        return found.fetchnumpy()[row]
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0].rstrip(".!")
        raise InvalidArgumentError(
            f"where {where!r} cannot be evaluated: {reason}. Write a condition of SQL over the columns "
            f"{format_names(names)}."
        ) from error
