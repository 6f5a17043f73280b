"""How source files are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading: the format if not by file extension, column types, and what CSV cells mean."""

    file_format: str | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    delimiter: str | None = None
    null_values: tuple[str, ...] = ()  # unquoted cells that are NULL, beside the empty one


DEFAULTS = ReadOptions()
