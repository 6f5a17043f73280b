"""Results as plain values, as Arrow, and as a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

_MOST = 50


class Shown:
    """A dataclass that people and programs look at."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Give all of it in plain values: numbers, texts, times, lists and dicts; an Arrow table as its rows."""
        found: dict[str, Any] = plain(self)
        return found

    def _repr_html_(self) -> str:
        return _table(self.to_dict())


class ShownFiles(Shown):
    """What tells of files, each a `file_class`."""

    __slots__ = ()

    file_class: ClassVar[type]
    files: Any

    def to_arrow(self) -> pa.Table:
        """Give the files as a table, a row each."""
        kinds = {"int": pa.int64(), "float": pa.float64()}
        schema = [
            (one.name, kinds.get(str(one.type).partition(" ")[0], pa.string())) for one in fields(self.file_class)
        ]
        return pa.Table.from_pylist([plain(file) for file in self.files], pa.schema(schema))


def counted(count: int, noun: str) -> str:
    """Give a number with what it counts.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plain(value: Any) -> Any:
    """Give a value without classes of this project or of Arrow."""
    if isinstance(value, pa.Table):
        return value.to_pylist()
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _table(values: Mapping[Any, Any]) -> str:
    rows = [
        f'<tr><th style="text-align:left">{escape(str(name))}</th><td style="text-align:left">{_cell(value)}</td></tr>'
        for name, value in islice(values.items(), _MOST)
    ]
    if len(values) > _MOST:
        rows.append(f"<tr><th></th><td>… {len(values) - _MOST:,} more</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, list):
        more = [f"… {len(value) - _MOST:,} more"] if len(value) > _MOST else []
        return "<br>".join([*map(_cell, value[:_MOST]), *more])
    return escape(str(value))
