"""A spliced file is the file that rewriting it whole would give, with most of its bytes copied."""

from __future__ import annotations

import errno
import gzip
import io
import os
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arrow_versions import bloom_filters, needs_bloom_filters

from merganser.core.parquet import source_file as oldfile
from merganser.core.parquet import splice as splice_module
from merganser.core.parquet import thrift
from merganser.core.parquet.encode import derive_writer_options, encode_row_group, open_writer_like
from merganser.core.parquet.footer import Footer, load_footer, read_footer
from merganser.core.parquet.source_file import CannotSpliceError, SourceFile, get_extent, open_source_file
from merganser.core.parquet.splice import NewRowGroup, check_fits, splice
from merganser.core.storage.local import LocalStore
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

ROWS = 60


def rich_table() -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "i": pa.array(numbers, pa.int32()),
            "u": pa.array([None if n % 7 == 0 else n for n in numbers], pa.uint16()),
            "s": [f"name {n % 5}" for n in numbers],
            "d": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(7, 2)),
            "l": [[n, None] if n % 3 else None for n in numbers],
            "st": [{"a": n, "b": str(n)} if n % 4 else None for n in numbers],
            "m": pa.array([[(str(n), n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "ts": pa.array(numbers, pa.timestamp("us")),
            "tz": pa.array(numbers, pa.timestamp("ms", "Europe/Paris")),
            "tm": pa.array(numbers, pa.time64("us")),
            "f": [n / 2 for n in numbers],
            "b": [n % 2 == 0 for n in numbers],
        }
    )


def by_pyarrow(**options: Any) -> Callable[[str], None]:
    return lambda path: pq.write_table(rich_table(), path, row_group_size=20, **options)


def by_duckdb(options: str) -> Callable[[str], None]:
    query = (
        "select range::int i, 'name ' || range % 50 s, (range / 4)::decimal(7, 2) d, [range, null] l,"
        " {'a': range, 'b': range::text} st, range::double f, range % 2 = 0 b, timestamp '2020-01-01' ts"
        " from range(6144)"
    )
    return lambda path: duckdb.connect().execute(
        f"copy ({query}) to '{path}' (format parquet, row_group_size 2048, {options})"
    )  # type: ignore[return-value]


def by_polars(**options: Any) -> Callable[[str], None]:
    table = rich_table().drop_columns(["m"])
    return lambda path: cast("pl.DataFrame", pl.from_arrow(table)).write_parquet(path, row_group_size=20, **options)


WRITERS = {
    "arrow": by_pyarrow(),
    "arrow page index, bloom filter": by_pyarrow(write_page_index=True, compression="zstd", **bloom_filters(i=20, s=5)),
    "arrow v2 pages, many codecs": by_pyarrow(
        data_page_version="2.0",
        compression={"i": "gzip", "s": "brotli", "f": "lz4", "ts": "zstd", "u": "snappy"},
        use_dictionary=["s", "u"],
        column_encoding={"i": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT", "st.b": "DELTA_BYTE_ARRAY"},
        write_statistics=["i", "s"],
        use_compliant_nested_type=False,
        store_decimal_as_integer=True,
        write_time_adjusted_to_utc=True,
    ),
    "arrow plain": by_pyarrow(use_dictionary=False, compression="none", write_statistics=False, store_schema=False),
    "duckdb snappy": by_duckdb("compression snappy"),
    "duckdb zstd v2": by_duckdb("compression zstd, parquet_version v2"),
    "polars zstd": by_polars(),
    "polars lz4": by_polars(compression="lz4", statistics="full"),
    "polars plain": by_polars(compression="uncompressed", statistics=False),
}


def parsed_footer(path: str) -> Footer:
    return read_footer(LocalStore(), path, path)


def open_like(path: str, schema: pa.Schema, footer: Footer) -> pq.ParquetWriter:
    return open_writer_like(path, schema, derive_writer_options(footer), footer.metadata.metadata or {})


@dataclass
class Old:
    """A file on disk with what PyArrow knows of it."""

    path: str

    def __post_init__(self) -> None:
        self.footer = parsed_footer(self.path)
        self.metadata = self.footer.metadata
        with pq.ParquetFile(self.path) as file:
            self.groups = [file.read_row_group(number) for number in range(file.num_row_groups)]

    def encode(self, table: pa.Table, number: int) -> pa.Buffer:
        return encode_row_group(table.to_batches(), table.schema, derive_writer_options(self.footer, number))

    def splice(self, groups: Sequence[int | pa.Buffer | NewRowGroup], to: str) -> int:
        parts = (NewRowGroup([group]) if isinstance(group, pa.Buffer) else group for group in groups)
        with open(self.path, "rb") as old, open(to, "wb") as out:
            return splice(open_source_file(old, os.path.getsize(self.path)), parts, out)

    def rewrite(self, tables: Sequence[pa.Table], to: str) -> None:
        with open_like(to, self.groups[0].schema, self.footer) as writer:
            for table in tables:
                writer.write_table(table)


@pytest.fixture(params=WRITERS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    path = str(tmp_path / "old.parquet")
    WRITERS[request.param](path)
    return Old(path)


@pytest.fixture
def arrow(tmp_path: Path) -> Old:
    return written_by(tmp_path, "arrow page index, bloom filter")


def written_by(folder: Path, writer: str) -> Old:
    path = str(folder / "old.parquet")
    WRITERS[writer](path)
    return Old(path)


def changed(table: pa.Table) -> pa.Table:
    """Other rows in another order, and one fewer."""
    return table.take(list(range(table.num_rows - 1, 0, -1)))


def by_every_reader(path: str) -> list[object]:
    with duckdb.connect() as connection:
        by_duckdb = connection.sql("from read_parquet(?)", params=[path]).to_arrow_table()
    return [pq.read_table(path), by_duckdb, pl.read_parquet(path).to_arrow()]


def footer_of(path: str) -> thrift.Struct:
    data = read_bytes(path)
    (length,) = struct.unpack("<I", data[-8:-4])
    return thrift.read_struct(data[-8 - length : -8], thrift.FILE_METADATA)


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def with_footer(path: str, change: Callable[[thrift.Struct], thrift.Struct]) -> None:
    """Return a file another footer."""
    data = read_bytes(path)
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = thrift.write_struct(change(thrift.read_struct(data[-8 - length : -8])))
    with open(path, "wb") as file:
        file.write(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def prepare_path(path: str) -> SourceFile:
    with open(path, "rb") as file:
        return open_source_file(file, os.path.getsize(path))


# -------------------- the same as a whole rewrite


def test_a_spliced_file_reads_like_a_rewritten_one(old: Old, tmp_path: Path) -> None:
    # W1, W2
    replaced = changed(old.groups[1])
    spliced, rewritten = str(tmp_path / "spliced.parquet"), str(tmp_path / "rewritten.parquet")
    rows = old.splice([0, old.encode(replaced, 1)], spliced)  # the third group is dropped
    expected = [old.groups[0], replaced]
    old.rewrite(expected, rewritten)
    assert pq.read_table(spliced).equals(pa.concat_tables(expected))
    assert rows == sum(table.num_rows for table in expected)
    for ours, theirs in zip(by_every_reader(spliced), by_every_reader(rewritten), strict=True):
        assert ours == theirs
    assert pq.read_schema(spliced).equals(pq.read_schema(rewritten), check_metadata=True)
    assert pq.read_metadata(spliced).metadata == pq.read_metadata(rewritten).metadata == old.metadata.metadata


def test_footer_keeps_everything_but_row_groups(old: Old, tmp_path: Path) -> None:
    # W2
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([2, old.encode(changed(old.groups[1]), 1)], spliced)
    before, after = footer_of(old.path), footer_of(spliced)
    for number in (1, 2, 5, 6, 7):
        assert after.get(number) == before.get(number)
    assert pq.read_metadata(spliced).created_by == old.metadata.created_by


def test_new_chunks_are_encoded_like_old_ones(old: Old, tmp_path: Path) -> None:
    # W2
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([0, old.encode(changed(old.groups[1]), 1), 2], spliced)
    options = derive_writer_options(old.footer, 1)
    again = derive_writer_options(parsed_footer(spliced), 1)
    assert {key: again[key] for key in options} == options


def test_copied_chunks_are_the_same_bytes(old: Old, tmp_path: Path) -> None:
    # W2
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([old.encode(changed(old.groups[0]), 0), 2, 1], spliced)
    before, after = footer_of(old.path), footer_of(spliced)
    for source, target in ((2, 1), (1, 2)):
        for old_chunk, new_chunk in zip(before[4][source][1], after[4][target][1], strict=True):
            was, now = get_extent(old_chunk[3]), get_extent(new_chunk[3])
            assert read_bytes(old.path)[slice(*was)] == read_bytes(spliced)[slice(*now)]
            for number in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16):
                assert old_chunk[3].get(number) == new_chunk[3].get(number)


def test_offsets_and_ordinals_are_those_of_the_new_file(old: Old, tmp_path: Path) -> None:
    # W2
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([2, old.encode(changed(old.groups[1]), 1), 0], spliced)
    data = read_bytes(spliced)
    for number, group in enumerate(footer_of(spliced)[4]):
        assert group.get(7, number) == number
        assert group.get(5, 0) in (0, get_extent(group[1][0][3])[0])
        for chunk in group[1]:
            start, end = get_extent(chunk[3])
            assert chunk[2] == 0 or start <= chunk[2] < end
            kinds = [thrift.read_struct_at(data, start)[0][1], thrift.read_struct_at(data, chunk[3][9])[0][1]]
            assert kinds[0] == (2 if chunk[3].get(11) else kinds[1])
            assert kinds[1] in (0, 3)


@pytest.mark.parametrize("writer", ["arrow page index, bloom filter", "polars zstd"])
def test_page_indexes_point_at_pages(writer: str, tmp_path: Path) -> None:
    # W2
    old = written_by(tmp_path, writer)
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([1, old.encode(changed(old.groups[0]), 0)], spliced)
    data = read_bytes(spliced)
    chunks = [chunk for group in footer_of(spliced)[4] for chunk in group[1]]
    for chunk in chunks:
        index = thrift.read_struct(data[chunk[4] : chunk[4] + chunk[5]], thrift.OFFSET_INDEX)
        for page in index[1]:
            header, end = thrift.read_struct_at(data, page[1])
            assert end + header[3] == page[1] + page[2]
            assert header[1] in (0, 3)
        assert chunk[6] + chunk[7] <= len(data)
        thrift.read_struct(data[chunk[6] : chunk[6] + chunk[7]])


LAYOUTS = st.lists(st.sampled_from(["copy", "drop", "replace", "split", "empty"]), min_size=6, max_size=6)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=LAYOUTS, order=st.permutations(range(6)))
def test_any_layout_gives_its_rows(layout: list[str], order: list[int]) -> None:
    # W1, W2
    sink = io.BytesIO()
    pq.write_table(rich_table(), sink, row_group_size=10, write_page_index=True, **bloom_filters(s=10))
    file = pq.ParquetFile(io.BytesIO(sink.getvalue()))
    footer = load_footer(pa.BufferReader(sink.getvalue()), "old")
    groups: list[int | pa.Buffer] = []
    expected = [file.schema_arrow.empty_table()]
    for number in order:
        table = file.read_row_group(number)
        pieces = {"copy": [table], "drop": [], "empty": [], "replace": [changed(table)]}.get(
            layout[number], [table[:4], table[4:]]
        )
        expected += pieces
        if layout[number] == "copy":
            groups.append(number)
        elif layout[number] == "empty":
            groups.append(NewRowGroup([encode_row_group([], table.schema, derive_writer_options(footer, number))]))
        else:
            groups += [
                NewRowGroup([encode_row_group(piece.to_batches(), piece.schema, derive_writer_options(footer, number))])
                for piece in pieces
            ]
    out = io.BytesIO()
    rows = splice(open_source_file(io.BytesIO(sink.getvalue()), len(sink.getvalue())), groups, out)
    result = pq.read_table(io.BytesIO(out.getvalue()))
    assert result.equals(pa.concat_tables(expected), check_metadata=True)
    assert rows == result.num_rows


def test_no_row_groups_leave_a_file_with_its_schema(old: Old, tmp_path: Path) -> None:
    # W3
    spliced = str(tmp_path / "spliced.parquet")
    assert old.splice([], spliced) == 0
    assert pq.read_table(spliced).equals(old.groups[0].schema.empty_table(), check_metadata=True)


def test_the_old_file_may_be_spliced_again_and_groups_are_taken_as_they_come(arrow: Old) -> None:
    # W5
    with open(arrow.path, "rb") as file:
        prepared = open_source_file(file, os.path.getsize(arrow.path))
        first, second = io.BytesIO(), io.BytesIO()
        sizes = []

        def groups() -> Iterator[int]:
            for number in (0, 1, 2):
                sizes.append(len(first.getvalue()))
                yield number

        splice(prepared, groups(), first)
        splice(prepared, [0, 1, 2], second)
    assert first.getvalue() == second.getvalue()
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("number", [-1, 3])
def test_a_missing_row_group(arrow: Old, number: int) -> None:
    with pytest.raises(IndexError):
        arrow.splice([number], os.devnull)


# -------------------- bloom filters, orders, intervals


@needs_bloom_filters
def test_a_changed_chunk_has_no_bloom_filter_and_a_copied_one_keeps_it(tmp_path: Path) -> None:
    # W2
    old = written_by(tmp_path, "duckdb snappy")
    replaced = old.groups[1].set_column(1, "s", pa.array(["a new name"] * 2048))
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([0, old.encode(replaced, 1), 2], spliced)
    connection = duckdb.connect()
    found = connection.execute("select count(*) from read_parquet(?) where s = 'a new name'", [spliced]).fetchall()
    assert found == [(2048,)]
    blooms = "select bloom_filter_offset is not null from parquet_metadata(?) where path_in_schema = 's' order by 1"
    assert connection.execute(blooms, [spliced]).fetchall() == [(False,), (True,), (True,)]
    probe = "select bloom_filter_excludes from parquet_bloom_probe(?, 's', ?) order by row_group_id"
    assert connection.execute(probe, [spliced, "nobody"]).fetchall() == [(True,), (False,), (True,)]
    assert connection.execute(probe, [spliced, "name 7"]).fetchall() == [(False,), (False,), (False,)]


def test_sorting_columns_stay_with_copied_rows_only(tmp_path: Path) -> None:
    # W2
    path = str(tmp_path / "old.parquet")
    by_pyarrow(sorting_columns=[pq.SortingColumn(0)])(path)
    old = Old(path)
    sink = pa.BufferOutputStream()
    pq.write_table(old.groups[1], sink, store_schema=False, sorting_columns=[pq.SortingColumn(0)])
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([0, sink.getvalue()], spliced)
    metadata = pq.read_metadata(spliced)
    assert [len(metadata.row_group(number).sorting_columns) for number in range(2)] == [1, 0]


@needs_bloom_filters
def test_intervals_stay_intervals_and_are_found(tmp_path: Path) -> None:
    # W2
    path, spliced = str(tmp_path / "old.parquet"), str(tmp_path / "spliced.parquet")
    connection = duckdb.connect()
    connection.execute(
        "copy (select interval 1 day * (range % 9) iv, range i from range(6144)) to"  # noqa: S608 - our own path
        f" '{path}' (format parquet, row_group_size 2048)"
    )
    old = Old(path)
    # A bloom filter that PyArrow made of raw bytes would hide intervals from DuckDB, which looks for normalised ones.
    sink = pa.BufferOutputStream()
    pq.write_table(old.groups[2], sink, store_schema=False, **bloom_filters(iv=9))
    old.splice([0, sink.getvalue()], spliced)
    count = "select count(*), min(typeof(iv)) from read_parquet(?) where iv = interval 24 hour"
    expected = old.groups[0].num_rows + old.groups[2].num_rows
    found = connection.execute(count, [spliced]).fetchall()[0]
    assert found[1] == "INTERVAL"
    assert abs(found[0] - expected / 9) < 3


# -------------------- writing the bytes


@pytest.mark.parametrize("failure", ["none", "EXDEV", "zero", "halfway"])
def test_copying_in_the_kernel_gives_the_same_file(
    arrow: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    # W2
    groups: list[int | NewRowGroup] = [0, NewRowGroup([arrow.encode(changed(arrow.groups[1]), 1)]), 2]
    expected = io.BytesIO()
    with open(arrow.path, "rb") as file:
        splice(open_source_file(file, os.path.getsize(arrow.path)), groups, expected)
    calls = []
    real = os.copy_file_range

    def copy_file_range(source: int, target: int, count: int, at: int, to: int) -> int:
        calls.append(count)
        if failure == "EXDEV" or (failure == "halfway" and len(calls) == 2):
            raise OSError(errno.EXDEV, "another device")
        return 0 if failure == "zero" else real(source, target, min(count, 100), at, to)

    monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    monkeypatch.setattr(splice_module, "MIN_KERNEL_COPY", 1)
    arrow.splice(groups, str(tmp_path / "spliced.parquet"))
    assert read_bytes(str(tmp_path / "spliced.parquet")) == expected.getvalue()
    assert calls


def test_a_full_disk_is_not_mistaken_for_a_missing_feature(
    arrow: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(splice_module, "MIN_KERNEL_COPY", 1)
    with pytest.raises(OSError, match="no space"):
        arrow.splice([0], str(tmp_path / "spliced.parquet"))


class OnlyWrites:
    """A writer that can only write, and does not return how much."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, piece: bytes) -> None:
        self.data += bytes(piece)


def test_an_output_stream_needs_only_a_write_method(arrow: Old, tmp_path: Path) -> None:
    # W2
    out = OnlyWrites()
    with open(arrow.path, "rb") as file:
        splice(open_source_file(file, os.path.getsize(arrow.path)), [0, 1, 2], cast("BinaryIO", out))
    arrow.splice([0, 1, 2], str(tmp_path / "spliced.parquet"))
    assert out.data == read_bytes(str(tmp_path / "spliced.parquet"))


def test_a_descriptor_of_other_bytes_is_not_copied_from(
    arrow: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # W2
    monkeypatch.setattr(splice_module, "MIN_KERNEL_COPY", 1)
    packed, spliced = str(tmp_path / "old.gz"), str(tmp_path / "spliced.parquet")
    with gzip.open(packed, "wb") as file:
        file.write(read_bytes(arrow.path))
    with gzip.open(packed, "rb") as file, open(spliced, "wb") as out:
        splice(open_source_file(cast("BinaryIO", file), os.path.getsize(arrow.path)), [2, 0], out)
    assert pq.read_table(spliced).equals(pa.concat_tables([arrow.groups[2], arrow.groups[0]]))


# -------------------- encoding


def test_many_rows_make_one_row_group(tmp_path: Path) -> None:
    # W2: PyArrow would begin another row group after 1,048,576 rows
    path = str(tmp_path / "old.parquet")
    pq.write_table(pa.table({"x": pa.array([1], pa.int8())}), path)
    batch = pa.record_batch({"x": pa.array(bytearray(1_200_000), pa.int8())})
    buffer = encode_row_group([batch, batch], batch.schema, derive_writer_options(parsed_footer(path), 0))
    metadata = pq.read_metadata(pa.BufferReader(buffer))
    assert (metadata.num_row_groups, metadata.num_rows) == (1, 2_400_000)


def test_a_file_without_row_groups_can_be_a_reference_file(tmp_path: Path) -> None:
    # W3
    old, new = str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet")
    pq.ParquetWriter(old, rich_table().schema.with_metadata({"owner": "us"})).close()
    with open_like(new, rich_table().schema, parsed_footer(old)) as writer:
        writer.write_table(rich_table())
    assert pq.read_table(new).equals(rich_table())
    assert pq.read_metadata(new).metadata == pq.read_metadata(old).metadata


# -------------------- what must be rewritten whole, or not at all


def other_type(column: str, kind: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, pa.nulls(table.num_rows, kind))

    return change


def required(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_nullable(field.name != "i") for field in table.schema]))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(other_type("i", pa.int64()), id="width"),
        pytest.param(other_type("i", pa.uint32()), id="sign"),
        pytest.param(other_type("ts", pa.timestamp("ms")), id="unit"),
        pytest.param(other_type("ts", pa.timestamp("us", "UTC")), id="zone"),
        pytest.param(other_type("d", pa.decimal128(7, 3)), id="scale"),
        pytest.param(other_type("d", pa.decimal128(8, 2)), id="precision"),
        pytest.param(other_type("d", pa.decimal128(12, 2)), id="width of decimals"),
        pytest.param(other_type("s", pa.binary()), id="string as binary"),
        pytest.param(other_type("l", pa.list_(pa.list_(pa.int64()))), id="levels"),
        pytest.param(required, id="nullability"),
        pytest.param(lambda table: table.select([1, 0, *range(2, table.num_columns)]), id="order"),
        pytest.param(lambda table: table.rename_columns(["I", *table.column_names[1:]]), id="name"),
    ],
)
def test_a_column_with_another_encoding_cannot_be_spliced_in(
    arrow: Old, change: Callable[[pa.Table], pa.Table]
) -> None:
    # W2
    table = change(arrow.groups[1])
    with open(arrow.path, "rb") as file:
        prepared = open_source_file(file, os.path.getsize(arrow.path))
        with pytest.raises(CannotSpliceError):
            check_fits(prepared, arrow.encode(table, 1))
        with pytest.raises(CannotSpliceError):
            splice(prepared, [0, NewRowGroup([arrow.encode(table, 1)])], io.BytesIO())
        check_fits(prepared, encode_row_group([], arrow.groups[1].schema, derive_writer_options(arrow.footer, 0)))


def test_equal_levels_of_other_groups_cannot_be_spliced_in(tmp_path: Path) -> None:
    # W2: both leaves have one definition level, but it is not of the same group
    inner_null = pa.schema([pa.field("a", pa.struct([pa.field("b", pa.int32())]), nullable=False)])
    outer_null = pa.schema([pa.field("a", pa.struct([pa.field("b", pa.int32(), nullable=False)]))])
    path = str(tmp_path / "old.parquet")
    pq.write_table(pa.table({"a": [{"b": None}]}, schema=inner_null), path)
    batch = pa.record_batch({"a": pa.array([None], outer_null.field(0).type)}, schema=outer_null)
    with open(path, "rb") as file:
        prepared = open_source_file(file, os.path.getsize(path))
        with pytest.raises(CannotSpliceError):
            check_fits(prepared, encode_row_group([batch], outer_null, derive_writer_options(parsed_footer(path), 0)))


def test_decimals_of_another_width_are_rewritten_completely(tmp_path: Path) -> None:
    # W2: DuckDB stores this decimal in 16 bytes, PyArrow in 9
    path, rewritten = str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet")
    duckdb.connect().execute(f"copy (select 1.5::decimal(20, 2) d) to '{path}' (format parquet)")
    old = Old(path)
    with pytest.raises(CannotSpliceError):
        old.splice([old.encode(old.groups[0], 0)], rewritten)
    old.rewrite(old.groups, rewritten)
    assert pq.read_table(rewritten).equals(old.groups[0])


def test_int96_is_copied_but_never_joined_by_int64(tmp_path: Path) -> None:
    # S6
    path, new = str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet")
    table = pa.table({"t": pa.array([1_000, 2_000], pa.timestamp("us"))})
    pq.write_table(table, path, row_group_size=1, use_deprecated_int96_timestamps=True, store_schema=False)
    old = Old(path)
    assert old.splice([1], new) == 1
    assert pq.read_metadata(new).schema.column(0).physical_type == "INT96"
    instants = old.groups[0].cast(pa.schema([("t", pa.timestamp("us", "UTC"))]))
    with pytest.raises(CannotSpliceError):
        old.splice(
            [encode_row_group(instants.to_batches(), instants.schema, derive_writer_options(old.footer, 0))], new
        )
    with open_like(new, instants.schema, old.footer) as writer:
        writer.write_table(instants)
    assert pq.read_metadata(new).schema.column(0).physical_type == "INT64"
    assert pq.read_metadata(new).row_group(0).column(0).is_stats_set
    assert pq.read_table(new).equals(instants)


def test_annotations_of_the_old_form_and_none_take_what_means_the_same(arrow: Old, tmp_path: Path) -> None:
    # W2: a file from before logical types existed
    def without_logical_types(tree: thrift.Struct) -> thrift.Struct:
        return tree.replace({2: thrift.ThriftList(thrift.STRUCT, [element.replace({10: None}) for element in tree[2]])})

    with_footer(arrow.path, without_logical_types)
    old = Old(arrow.path)
    names = [name for name in old.groups[0].column_names if name not in ("ts", "tm")]
    assert "tz" in names
    spliced = str(tmp_path / "spliced.parquet")
    old.splice([0, old.encode(old.groups[1], 1)], spliced)
    assert pq.read_table(spliced).equals(pa.concat_tables(old.groups[:2]))


def edited(number: int, value: Any, wire: int) -> Callable[[thrift.Struct], thrift.Struct]:
    return lambda tree: thrift.Struct({**tree.values, number: value}, {**tree.wires, number: wire})


def in_first_chunk(change: Callable[[thrift.Struct], thrift.Struct]) -> Callable[[thrift.Struct], thrift.Struct]:
    def edit(tree: thrift.Struct) -> thrift.Struct:
        tree[4][0][1][0] = change(tree[4][0][1][0])
        return tree

    return edit


def in_first_meta(number: int, value: Any, wire: int) -> Callable[[thrift.Struct], thrift.Struct]:
    return in_first_chunk(lambda chunk: chunk.replace({3: edited(number, value, wire)(chunk[3])}))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(edited(77, 5, thrift.I64), id="unknown field of the file"),
        pytest.param(in_first_chunk(edited(77, 5, thrift.I64)), id="unknown field of a chunk"),
        pytest.param(in_first_chunk(edited(1, b"elsewhere", thrift.BINARY)), id="chunk in another file"),
        pytest.param(in_first_meta(9, 1 << 40, thrift.I64), id="data beyond the file"),
        pytest.param(in_first_meta(9, -9, thrift.I64), id="data before the file"),
        pytest.param(in_first_meta(7, -1, thrift.I64), id="negative size"),
        pytest.param(in_first_meta(7, 100_000, thrift.I64), id="chunk that runs into others"),
        pytest.param(in_first_meta(10, 1, thrift.I64), id="index page outside its chunk"),
        pytest.param(in_first_meta(5, 19, thrift.I64), id="number of values"),
        pytest.param(in_first_meta(3, thrift.ThriftList(thrift.BINARY, [b"x"]), thrift.LIST), id="path"),
        pytest.param(edited(3, 61, thrift.I64), id="number of rows"),
        pytest.param(edited(6, b"parquet-mr version 1.2.8 (build x)", thrift.BINARY), id="miscounting parquet-mr"),
        pytest.param(edited(6, b"parquet-cpp version 1.5.1-SNAPSHOT", thrift.BINARY), id="parquet-cpp of v2 pages"),
    ],
)
def test_a_footer_with_unknown_content_causes_a_full_rewrite(
    arrow: Old, change: Callable[[thrift.Struct], thrift.Struct]
) -> None:
    # W2
    with_footer(arrow.path, change)
    with pytest.raises(CannotSpliceError):
        prepare_path(arrow.path)


@pytest.mark.parametrize(
    "created_by", [b"parquet-mr version 1.8.1 (build x)", b"parquet-cpp-arrow version 1.0.0", b"Impala", b""]
)
def test_other_writers_are_copied(arrow: Old, created_by: bytes) -> None:
    # W2
    with_footer(arrow.path, edited(6, created_by, thrift.BINARY))
    assert prepare_path(arrow.path).num_row_groups == 3


@pytest.mark.parametrize(("number", "value"), [(4, 1 << 40), (4, 4), (5, -1), (6, 0), (7, 1 << 30)], ids=str)
def test_a_missing_page_index_causes_a_full_rewrite(arrow: Old, number: int, value: int) -> None:
    # W2
    with_footer(arrow.path, in_first_chunk(lambda chunk: chunk.replace({number: value})))
    with pytest.raises(CannotSpliceError):
        arrow.splice([0], os.devnull)


@needs_bloom_filters
@pytest.mark.parametrize(("number", "value"), [(14, 4), (14, 1 << 40), (15, 3)])
def test_a_missing_bloom_filter_causes_a_full_rewrite(arrow: Old, number: int, value: int) -> None:
    # W2
    with_footer(arrow.path, in_first_meta(number, value, thrift.I64 if number == 14 else thrift.I32))
    with pytest.raises(CannotSpliceError):
        arrow.splice([0], os.devnull)


@needs_bloom_filters
def test_a_bloom_filter_whose_length_the_footer_leaves_out_is_copied(arrow: Old, tmp_path: Path) -> None:
    # W2
    with_footer(arrow.path, in_first_chunk(lambda chunk: chunk.replace({3: chunk[3].replace({15: None})})))
    spliced = str(tmp_path / "spliced.parquet")
    arrow.splice([0], spliced)
    meta = footer_of(spliced)[4][0][1][0][3]
    header = thrift.read_struct(read_bytes(spliced)[meta[14] :], thrift.BLOOM_FILTER_HEADER)
    assert header[1] > 0
    assert 15 not in meta


def test_a_very_wide_file_is_rewritten_completely(arrow: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    # W5
    monkeypatch.setattr(oldfile, "MAX_COLUMN_CHUNKS", 10)
    with pytest.raises(CannotSpliceError, match="more than 10"):
        prepare_path(arrow.path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 3, b"x" * 100, b"PAR1\xff\xff\xff\xffPAR1"])
def test_what_is_not_parquet_cannot_be_spliced(content: bytes) -> None:
    with pytest.raises(CannotSpliceError):
        open_source_file(io.BytesIO(content), len(content))


def test_a_file_shorter_than_recorded_cannot_be_spliced(arrow: Old) -> None:
    with open(arrow.path, "rb") as file, pytest.raises(CannotSpliceError):
        open_source_file(file, os.path.getsize(arrow.path) + 100)


def in_memory_kms(_: object) -> Any:
    """A key service that wraps keys by turning them round."""
    methods = {
        "wrap_key": lambda _, key, master: master.encode() + key[::-1],
        "unwrap_key": lambda _, wrapped, master: wrapped[len(master) :][::-1],
    }
    return type("InMemoryKms", (pe.KmsClient,), methods)()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plaintext_footer: bool, wide: bool
) -> None:
    # P8
    path = str(tmp_path / "secret.parquet")
    configuration = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["x"]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(in_memory_kms)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    table = pa.table({"x": [1, 2], "y": [3, 4]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    before = read_bytes(path)
    assert before[-4:] == (b"PAR1" if plaintext_footer else b"PARE")
    if wide:
        monkeypatch.setattr(oldfile, "MAX_COLUMN_CHUNKS", 1)
    with pytest.raises(UnsupportedFileError, match=r"secret\.parquet is encrypted"):
        prepare_path(path)
    assert read_bytes(path) == before


@pytest.mark.parametrize("number", [8, 9])
def test_an_encrypted_column_is_refused(arrow: Old, number: int) -> None:
    # P8
    value, wire = (thrift.Struct({}, {}), thrift.STRUCT) if number == 8 else (b"?", thrift.BINARY)
    with_footer(arrow.path, in_first_chunk(edited(number, value, wire)))
    with pytest.raises(UnsupportedFileError):
        prepare_path(arrow.path)
