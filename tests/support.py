"""What many tests need: datasets made by hand, read back plainly, and compared byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from merganser.core.io import DatasetIO


def put(path: str, table: pa.Table, **options: Any) -> str:
    """Write one Parquet file with PyArrow, making its folder; gives the path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def rows(io: DatasetIO[Any, Any], path: str, order: Sequence[str] = ("id",)) -> list[dict[str, Any]]:
    """Read a dataset back as plain rows in a fixed order."""
    table: pa.Table = io.read(path).to_table()  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: [(row[name] is None, row[name]) for name in order])


def snapshot(path: str) -> dict[str, bytes]:
    """Give every file below a folder with its bytes; an absent folder has none."""
    root = Path(path)
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def unchanged(path: str) -> AbstractContextManager[None]:
    """Assert that a dataset is byte-identical after the block, which may fail as it likes inside."""
    from contextlib import contextmanager  # noqa: PLC0415

    @contextmanager
    def check() -> Iterator[None]:
        before = snapshot(path)
        yield
        assert snapshot(path) == before
        control = Path(path).parent / f".{Path(path).name}.merganser"
        assert not list(control.glob(".staging_*"))

    return check()
