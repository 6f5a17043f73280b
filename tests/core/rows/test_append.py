"""New files: a file whose columns are encoded on several threads equals that of a single writer.

Only bloom filters have other offsets, if there are several row groups.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.arrow_versions import needs_bloom_filters

from merganser.core.columnar import threads
from merganser.core.model.engine import Layout
from merganser.core.parquet.encode import derive_schema_options
from merganser.core.parquet.source_file import CannotSpliceError
from merganser.core.parquet.splice import splice
from merganser.core.rows import append
from merganser.core.rows.append import write_rows
from merganser.core.storage.location import locate
from merganser.core.storage.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from merganser.core.parquet.source_file import SourceFile
    from merganser.core.parquet.splice import NewRowGroup

ROWS = 2_000
TABLE = pa.table(
    {
        "id": pa.array(np.arange(ROWS)),
        "text": [f"text {number % 70}" if number % 5 else None for number in range(ROWS)],
        "list": [[number] * (number % 4) if number % 3 else None for number in range(ROWS)],
        "struct": [{"a": number, "b": {"c": None if number % 2 else "x"}} for number in range(ROWS)],
        "decimal": pa.array([Decimal(number) / 8 for number in range(ROWS)], pa.decimal128(12, 3)),
        "time": pa.array([datetime(2026, 1, 1, number % 24) for number in range(ROWS)], pa.timestamp("us", "UTC")),  # noqa: DTZ001  as UTC
        "day": pa.array([date(2026, 1, 1 + number % 28) for number in range(ROWS)]),
        "real": np.linspace(-1, 1, ROWS),
        "nothing": pa.nulls(ROWS, pa.binary()),
        "yes": [bool(number % 7) for number in range(ROWS)],
    }
)
LAYOUT = Layout(
    schema=TABLE.schema,
    # One column is missing from the source.
    columns=frozenset(TABLE.column_names) - {"real"},
    key_values={b"made by": b"a test"},
    writer_options=derive_schema_options(None),
    compression="zstd",
    max_rows_per_file=10_000,
    row_group_size=700,
)


@pytest.fixture(autouse=True)
def _small_columns_are_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MIN_SHARE_BYTES", 1)
    monkeypatch.setattr(append, "_SMALL_CHUNK", 0)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(locate(str(tmp_path)), str(tmp_path))


def bytes_of(staging: Staging, rows: Sequence[int], layout: Layout = LAYOUT, workers: int = 4) -> bytes:
    """Stage rows with so many workers, and read the file."""
    return Path(write_rows(TABLE, np.array(rows, np.int64), layout, staging, workers)).read_bytes()


@pytest.mark.parametrize("rows", [range(ROWS), range(ROWS - 1, -1, -1), range(0, ROWS, 3), [7, 7, 1999], [0]])
def test_a_file_written_by_many_threads_equals_that_of_one(staging: Staging, rows: Sequence[int]) -> None:
    found = bytes_of(staging, rows)
    assert found == bytes_of(staging, rows, workers=1)
    without = TABLE.set_column(TABLE.schema.get_field_index("real"), "real", pa.nulls(ROWS, pa.float64()))
    assert pq.read_table(pa.BufferReader(found)).equals(without.take(list(rows)))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=50),
    names=st.lists(st.sampled_from(TABLE.column_names), min_size=1, unique=True),
    told=st.sets(st.sampled_from(TABLE.column_names)),
    group=st.integers(1, 60),
    workers=st.integers(2, 5),
)
def test_whatever_the_columns_and_row_groups(
    staging: Staging, rows: list[int], names: list[str], told: set[str], group: int, workers: int
) -> None:
    schema = pa.schema([TABLE.schema.field(name) for name in names])
    layout = replace(LAYOUT, schema=schema, columns=frozenset(told & {*names}), row_group_size=group)
    assert bytes_of(staging, rows, layout, workers) == bytes_of(staging, rows, layout, 1)


@pytest.fixture
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the parts of each row group that is spliced."""
    spliced: list[int] = []

    def watched(old: SourceFile, groups: Iterator[NewRowGroup], out: BinaryIO) -> int:
        seen = [*groups]
        spliced.extend(len(group.columns) for group in seen)
        return splice(old, seen, out)

    monkeypatch.setattr(append, "splice", watched)
    return spliced


@pytest.mark.splice
def test_threads_encode_the_columns(staging: Staging, spliced: list[int]) -> None:
    bytes_of(staging, range(ROWS), workers=2)
    assert spliced == [4, 4, 4]


@pytest.mark.splice
@pytest.mark.parametrize(("limit", "size"), [("_SMALL_CHUNK", 1 << 16), ("_LARGE_GROUP", 1 << 10)])
def test_small_chunks_and_large_row_groups_are_left_to_one_writer(
    staging: Staging, spliced: list[int], limit: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, limit, size)
    bytes_of(staging, range(ROWS), workers=2)
    assert spliced == []


def test_where_nothing_can_be_spliced_one_writer_does_it(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CannotSpliceError("for a test")

    monkeypatch.setattr(append, "splice", refuse)
    assert bytes_of(staging, range(ROWS)) == bytes_of(staging, range(ROWS), workers=1)


@needs_bloom_filters
def test_bloom_filters_of_keys_come_along(staging: Staging) -> None:
    layout = replace(LAYOUT, bloom_filter_columns=frozenset({"id", "text"}))
    path = write_rows(TABLE, np.arange(ROWS), layout, staging, 4)
    asked = "select path_in_schema, bool_and(bloom_filter_offset is not null) from parquet_metadata(?) group by 1"
    found = dict(duckdb.execute(asked, [path]).fetchall())
    assert {name for name, has in found.items() if has} == {"id", "text"}
    excluded = "select distinct bloom_filter_excludes from parquet_bloom_probe(?, 'id', ?)"
    assert duckdb.execute(excluded, [path, -5]).fetchall() == [(True,)]
    assert (False,) in duckdb.execute(excluded, [path, 1_500]).fetchall()


def test_an_error_in_one_thread_is_the_error(staging: Staging) -> None:
    layout = replace(LAYOUT, schema=LAYOUT.schema.set(1, pa.field("text", pa.int64())))
    with pytest.raises(pa.ArrowInvalid, match="Failed to parse string: 'text "):
        bytes_of(staging, range(ROWS), layout)
