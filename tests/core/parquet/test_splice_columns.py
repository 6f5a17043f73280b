"""A row group with some encoded and some copied columns equals one with all columns encoded."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arrow_versions import bloom_filters
from tests.core.parquet.test_splice import WRITERS, Old, by_every_reader, footer_of, read_bytes, rich_table, written_by

from merganser.core.parquet.encode import derive_writer_options, encode_row_group
from merganser.core.parquet.footer import load_footer
from merganser.core.parquet.source_file import CannotSpliceError, get_extent, open_source_file
from merganser.core.parquet.splice import NewRowGroup, splice

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=WRITERS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    return written_by(tmp_path, request.param)


def turned(table: pa.Table, names: list[str]) -> pa.Table:
    """The same rows, with the values of some columns in another order."""
    order = list(range(table.num_rows))[::-1]
    columns = [table.column(name).take(order) if name in names else table.column(name) for name in table.column_names]
    return pa.table(columns, schema=table.schema)


def test_new_columns_beside_copied_ones_read_as_rewritten(old: Old, tmp_path: Path) -> None:
    # W1, W2
    expected = turned(old.groups[1], ["s", "st", "f"])
    parts = [old.encode(expected.select(names), 1) for names in (["s", "f"], ["st"])]
    spliced, rewritten = str(tmp_path / "spliced.parquet"), str(tmp_path / "rewritten.parquet")
    assert old.splice([0, NewRowGroup(parts, 1), 2], spliced) == old.metadata.num_rows
    old.rewrite([old.groups[0], expected, old.groups[2]], rewritten)
    for ours, theirs in zip(by_every_reader(spliced), by_every_reader(rewritten), strict=True):
        assert ours == theirs
    before, after = footer_of(old.path)[4][1], footer_of(spliced)[4][1]
    for was, now in zip(before[1], after[1], strict=True):
        copied = read_bytes(old.path)[slice(*get_extent(was[3]))] == read_bytes(spliced)[slice(*get_extent(now[3]))]
        assert copied == (now[3][3][0] not in (b"s", b"st", b"f"))
        # The filters and indexes of a column go with its values.
        assert not copied or all(was[3].get(number) == now[3].get(number) for number in (12, 15))
        assert copied or 14 not in now[3]
    assert after[2] == sum(chunk[3][6] for chunk in after[1])
    assert after.get(6, 0) in (0, sum(chunk[3][7] for chunk in after[1]))


def test_a_row_group_stays_sorted_while_its_sort_columns_are_copied(tmp_path: Path) -> None:
    # W2
    path, spliced = str(tmp_path / "old.parquet"), str(tmp_path / "spliced.parquet")
    pq.write_table(rich_table(), path, sorting_columns=[pq.SortingColumn(0)])
    old = Old(path)
    for column, is_sorted in (("s", True), ("i", False)):
        part = old.encode(turned(old.groups[0], [column]).select([column]), 0)
        old.splice([NewRowGroup([part], 0)], spliced)
        assert bool(pq.read_metadata(spliced).row_group(0).sorting_columns) == is_sorted


def test_columns_that_make_no_row_group_are_refused(tmp_path: Path) -> None:
    # W2
    old = written_by(tmp_path, "arrow")
    table = old.groups[0]
    whole, fewer = old.encode(table.select(["s"]), 0), old.encode(table.select(["s"]).slice(1), 0)
    other, none = old.encode(table.select(["f"]), 0), old.encode(table.select(["s"]).slice(0, 0), 0)
    half = pa.table({"st": pa.array(table["st"].to_pylist(), pa.struct([("a", pa.int64())]))})
    groups: list[tuple[list[pa.Buffer], int | None]] = [
        ([fewer], 0),
        ([none], 0),
        ([fewer, other], None),
        ([whole, other], None),
        ([old.encode(half, 0)], 0),
        ([], 0),
    ]
    for columns, rest in groups:
        with open(old.path, "rb") as file, pytest.raises(CannotSpliceError):
            splice(open_source_file(file, os.path.getsize(old.path)), [NewRowGroup(columns, rest)], io.BytesIO())
    with open(old.path, "rb") as file, pytest.raises(IndexError):
        splice(open_source_file(file, os.path.getsize(old.path)), [NewRowGroup([whole], 9)], io.BytesIO())


NAMES = rich_table().column_names


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(shares=st.lists(st.integers(0, 3), min_size=len(NAMES), max_size=len(NAMES)))
def test_any_columns_may_be_new(shares: list[int]) -> None:
    # W1, W2
    sink = io.BytesIO()
    pq.write_table(rich_table(), sink, row_group_size=30, write_page_index=True, **bloom_filters(s=10))
    footer, table = load_footer(pa.BufferReader(sink.getvalue()), "old"), rich_table().slice(0, 30)
    new = [name for name, share in zip(NAMES, shares, strict=True) if share]
    expected = turned(table, new)
    parts = []
    for number in (1, 2, 3):
        if names := [name for name, share in zip(NAMES, shares, strict=True) if share == number]:
            part = expected.select(names)
            parts.append(encode_row_group(part.to_batches(), part.schema, derive_writer_options(footer, 0)))
    out = io.BytesIO()
    groups = [NewRowGroup(parts, 0 if len(new) < len(NAMES) else None) if parts else 0, 1]
    splice(open_source_file(sink, len(sink.getvalue())), groups, out)
    result = pq.read_table(io.BytesIO(out.getvalue()))
    assert result.equals(pa.concat_tables([expected, rich_table().slice(30)]))
