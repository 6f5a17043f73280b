"""Results as plain values, as Arrow, as text that fits a screen, and as HTML tables in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

_MAX_ITEMS = 50
_LINE = 100


class DisplayMixin:
    """Adds `to_dict` and a notebook view to a dataclass, and a short `repr` if it is declared with `repr=False`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values: numbers, strings, times, lists and dicts; an Arrow table to a list of rows."""
        return to_plain(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        named = [f"{one.name}={_shorten(getattr(self, one.name))}" for one in fields(self)]  # type: ignore[arg-type]
        text = f"{type(self).__name__}({', '.join(named)})"
        if len(text) <= _LINE:
            return text
        lines = "".join(f"    {one},\n" for one in named)
        return f"{type(self).__name__}(\n{lines})"

    def _repr_html_(self) -> str:
        return _render_table(self.to_dict())


class FilesDisplayMixin(DisplayMixin):
    """Adds `to_arrow` to a result with `files`, each a `file_class`."""

    __slots__ = ()

    file_class: ClassVar[type]
    files: Any

    def to_arrow(self) -> pa.Table:
        """Convert the files to a table, one row each."""
        arrow_types = {"int": pa.int64(), "float": pa.float64()}
        schema = [
            (one.name, arrow_types.get(str(one.type).partition(" ")[0], pa.string())) for one in fields(self.file_class)
        ]
        return pa.Table.from_pylist([to_plain(file) for file in self.files], pa.schema(schema))


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> pluralize(1, "row"), pluralize(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def to_plain(value: Any) -> Any:
    """Convert a value to one without classes of merganser or Arrow."""
    if isinstance(value, pa.Table):
        return value.to_pylist()
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(one) for name, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _shorten(value: Any) -> str:
    """Format a value in one line: the first item of a long list, and the size of a table."""
    if isinstance(value, pa.Table):
        return f"<{pluralize(value.num_rows, 'row')} of {', '.join(value.column_names)}>"
    text = repr(value)
    if isinstance(value, list | tuple) and len(value) > 1 and len(text) > _LINE:
        return f"{text[0]}{_cut(repr(value[0]))}, … {len(value) - 1:,} more{text[-1]}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"


def _render_table(values: Mapping[Any, Any]) -> str:
    rows = [
        f'<tr><th style="text-align:left">{escape(str(name))}</th><td '
        f'style="text-align:left">{_render_cell(value)}</td></tr>'
        for name, value in islice(values.items(), _MAX_ITEMS)
    ]
    if len(values) > _MAX_ITEMS:
        rows.append(f"<tr><th></th><td>… {len(values) - _MAX_ITEMS:,} more</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _render_cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return _render_table(value)
    if isinstance(value, list):
        more = [f"… {len(value) - _MAX_ITEMS:,} more"] if len(value) > _MAX_ITEMS else []
        return "<br>".join([*map(_render_cell, value[:_MAX_ITEMS]), *more])
    return escape(str(value))
