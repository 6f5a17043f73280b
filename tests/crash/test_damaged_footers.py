"""A damaged footer is refused by name or read: it never ends the process (P6)."""

from __future__ import annotations

import datetime as dt
import pickle
import re
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.arrow_versions import bloom_filters
from tests.support import FIXTURES, open_dataset_io, snapshot

import merganser
from merganser.core.parquet import thrift
from merganser.core.parquet.footer import load_footer
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import AnyDatasetIO

MUTATED = Path(__file__).parent / "mutated.py"
# Two thousand of five files; DuckDB reads its own way, but takes ten times longer to start.
MUTATIONS = {"arrow": 200, "duckdb": 20}
ROWS = 12
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int32()),
        "s": [None if row % 5 == 0 else f"name {row % 3}" for row in range(ROWS)],
        "list": [[row, None] if row % 3 else None for row in range(ROWS)],
        "ts": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2020, 1, 1)] * ROWS),
        "f": [float(row) for row in range(ROWS)],
        "struct": [{"a": row, "b": str(row)} for row in range(ROWS)],
        "d": pa.array(list(range(ROWS)), pa.decimal128(10, 2)),
        "flag": [bool(row % 2) for row in range(ROWS)],
    }
)
MAPS = pa.array([[("k", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64()))


def by_arrow(path: str) -> None:
    """With all that a footer may hold: page indexes, bloom filters, histograms, sort columns."""
    sorting = [pq.SortingColumn(0)]
    table = TABLE.append_column("map", MAPS)
    pq.write_table(table, path, row_group_size=4, write_page_index=True, sorting_columns=sorting, **bloom_filters(s=3))


def by_arrow_plain(path: str) -> None:
    options: dict[str, Any] = {"use_dictionary": False, "compression": "NONE", "data_page_version": "2.0"}
    pq.write_table(TABLE.select(["id", "s", "list"]), path, row_group_size=4, store_schema=False, **options)


def by_polars(path: str) -> None:
    cast("pl.DataFrame", pl.from_arrow(TABLE)).write_parquet(path, row_group_size=4)


def by_duckdb(path: str) -> None:
    query = "select range::int id, 'name ' || range % 3 s, [range, null] l, {'a': range} st from range(4100)"
    duckdb.connect().execute(f"copy ({query}) to '{path}' (format parquet, row_group_size 2048)")


def by_spark(path: str) -> None:
    (file,) = (FIXTURES / "spark_legacy").glob("*.parquet")
    Path(path).write_bytes(file.read_bytes())


WRITERS: dict[str, Callable[[str], None]] = {
    "arrow": by_arrow,
    "arrow plain": by_arrow_plain,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "spark": by_spark,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("footers")


@cache
def file_by(writer: str, folder: Path) -> Path:
    path = folder / f"{writer}.parquet"
    WRITERS[writer](str(path))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_changed_byte_of_a_footer_ends_the_process(writer: str, name: str, folder: Path) -> None:
    # P6, C7
    command = [sys.executable, str(MUTATED), str(file_by(writer, folder)), "id", name, str(MUTATIONS[name])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    last = ended.stdout.split()[-1:]
    assert (ended.returncode, last) == (0, ["done"]), f"mutation {last}: {ended.stderr[-3000:]}"


def test_nothing_asks_pyarrow_for_a_column_chunk() -> None:
    # P6: what aborts is its view of a chunk, and serialising a footer, as pickling it does
    unsafe = re.compile(r"row_group\([^)]*\)\.column\(|write_metadata_file|\.statistics\b|is_stats_set|path_in_schema")
    source = Path(merganser.__file__).parent
    assert [path.name for path in source.rglob("*.py") if unsafe.search(path.read_text("utf-8"))] == []


def test_a_damaged_footer_travels_to_another_process(folder: Path) -> None:
    # X1: Spark's tasks carry footers
    damaged = changed_footer(file_by("arrow", folder), other_histogram)
    footer = load_footer(pa.BufferReader(damaged), "a.parquet")
    again = pickle.loads(pickle.dumps(footer))  # noqa: S301  our own
    assert (again.raw, again.size, again.display_path) == (footer.raw, footer.size, footer.display_path)
    assert again.metadata.num_rows == ROWS


def changed_footer(path: Path, change: Callable[[thrift.Struct], None]) -> bytes:
    """Return a file with its footer changed."""
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    tree = thrift.read_struct(data[-8 - length : -8])
    change(tree)
    footer = thrift.write_struct(tree)
    return data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def chunk(tree: thrift.Struct, column: int) -> thrift.Struct:
    found: thrift.Struct = tree[4][0][1][column][3]
    return found


def other_type(tree: thrift.Struct) -> None:
    chunk(tree, 0).values[1] = 99


def other_histogram(tree: thrift.Struct) -> None:
    chunk(tree, 1)[16].values[3].append(0)


def fewer_chunks(tree: thrift.Struct) -> None:
    del tree[4][0][1][1:]


def name_of_no_text(tree: thrift.Struct) -> None:
    tree[2][2].values[4] = b"\xff\xfe"


def writer_of_no_text(tree: thrift.Struct) -> None:
    tree.values[6] = b"parquet-\xff"


# What ended the process, or came as another error than ours.
DAMAGE = [other_type, other_histogram, fewer_chunks, name_of_no_text, writer_of_no_text]


@pytest.mark.parametrize("name", ["arrow", "duckdb"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_that_pyarrow_aborts_over_is_read_or_refused(
    damage: Callable[[thrift.Struct], None], name: str, folder: Path, tmp_path: Path
) -> None:
    # P6, C7
    target = tmp_path / "t"
    target.mkdir()
    (target / "a.parquet").write_bytes(changed_footer(file_by("arrow", folder), damage))
    before = snapshot(str(target))
    io: AnyDatasetIO = open_dataset_io(name)
    source = TABLE.append_column("map", MAPS).slice(0, 1)
    with pytest.raises(UnreadableFileError, match=r"a\.parquet") as raised:
        io.merge(source, str(target), "upsert", "id")
    assert "Restore or remove the file." in str(raised.value)
    assert snapshot(str(target)) == before
