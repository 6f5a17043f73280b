"""Sources by name."""

from __future__ import annotations

import io
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.feather as paf
import pyarrow.parquet as pq
import pytest
from tests.support import FIXTURES, assert_unchanged, open_dataset_io, to_plain_rows

from merganser.cli.sources import open_source
from merganser.core.dataset.snapshot import load_target as load_all
from merganser.core.sources.files import FileSource
from merganser.core.sources.source import add_target_types, read_source
from merganser.core.storage.location import locate
from merganser.errors import UnsupportedFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
CSV = b"id,name\n1,a\n2,b\n"
JSON = b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n'


def in_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(ROWS, sink)
    return sink.getvalue()


def in_arrow(opener: Any) -> bytes:
    sink = io.BytesIO()
    with opener(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    return sink.getvalue()


def merged(path: str) -> list[dict[str, Any]]:
    return sorted(to_plain_rows(open_dataset_io("arrow").read(path).to_table()), key=lambda row: row["id"])


@pytest.mark.parametrize(
    "data",
    [CSV, JSON, in_parquet(), in_arrow(pa.ipc.new_file), in_arrow(pa.ipc.new_stream)],
    ids=["csv", "json", "parquet", "arrow file", "arrow stream"],
)
def test_the_format_of_standard_input_is_detected(data: bytes, tmp_path: Path, cli: Callable[..., Result]) -> None:
    cli("merge", "-", str(tmp_path / "t"), "--key", "id", stdin=data)
    assert merged(str(tmp_path / "t")) == ROWS.to_pylist()


def test_standard_input_of_an_unknown_format_is_refused(tmp_path: Path, cli: Callable[..., Result]) -> None:
    told = cli("merge", "-", str(tmp_path / "t"), "--key", "id", "--format", "parquet", stdin=CSV, code=1).stderr
    assert "Cannot read standard input as parquet" in told
    (tmp_path / "array.json").write_text('[{"id": 1}]')
    told = cli("merge", str(tmp_path / "array.json"), str(tmp_path / "t"), "--key", "id", code=1).stderr
    assert "it is an array; convert it to one object per line" in told


def test_the_format_may_be_given_as_an_option(tmp_path: Path, cli: Callable[..., Result]) -> None:
    (tmp_path / "rows.txt").write_bytes(CSV.replace(b",", b";"))
    options = ["--format", "csv", "--delimiter", ";"]
    cli("merge", str(tmp_path / "rows.txt"), str(tmp_path / "t"), "--key", "id", *options)
    assert merged(str(tmp_path / "t")) == ROWS.to_pylist()
    (tmp_path / "rows.tsv").write_bytes(CSV.replace(b",", b"\t"))
    cli("merge", str(tmp_path / "rows.tsv"), str(tmp_path / "u"), "--key", "id")
    assert merged(str(tmp_path / "u")) == ROWS.to_pylist()
    # An odd name is not mistaken for a table of a database.
    (tmp_path / "a::b.csv").write_bytes(CSV)
    cli("merge", str(tmp_path / "a::b.csv"), str(tmp_path / "v"), "--key", "id")
    assert merged(str(tmp_path / "v")) == ROWS.to_pylist()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            b"id,v\n12345678901234567891,a\n",
            "'id' has numbers like 12345678901234567891, which would lose digits",
        ),
        (b"id,v\n1,2.5\n2,9007199254740993\n", "'v' has numbers like 9007199254740993"),
        (b"id,v\n1,\xe9t\xe9\n", "'v' is not UTF-8"),
        (b"id,id\n1,2\n", "two columns are named 'id'"),
    ],
)
def test_a_guess_that_would_lose_something_is_refused(
    text: bytes, told: str, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    for arguments, stdin in ((["rows.csv"], b""), (["-"], text)):
        (tmp_path / "rows.csv").write_bytes(text)
        source = str(tmp_path / arguments[0]) if arguments[0] != "-" else "-"
        assert told in cli("merge", source, str(tmp_path / "t"), "--key", "id", stdin=stdin, code=1).stderr
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_types_are_those_that_are_given_or_those_of_the_dataset(
    name: str, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    first, second = ("id,code\n7,00123\n", "id,code\n7,00045\n")
    if name.endswith("jsonl"):
        first, second = ('{"id": 7, "code": "2025-01-06 00:00:00"}\n', '{"id": 7, "code": "2025-01-07 00:00:00"}\n')
    target = str(tmp_path / "t")
    (tmp_path / name).write_text(first)
    types = ["--column-type", "code=string", "--column-type", "id=decimal128(38,0)", "--column-type", "other=int64"]
    cli("merge", str(tmp_path / name), target, "--key", "id", *types)
    found = {field.name: field.type for field in open_dataset_io("arrow").read(target).schema}
    assert found == {"id": pa.decimal128(38, 0), "code": pa.string()}
    (tmp_path / name).write_text(second)
    cli("merge", str(tmp_path / name), target, "--key", "id")
    assert merged(target) == [{"id": 7, "code": "00045" if name == "rows.csv" else "2025-01-07 00:00:00"}]
    assert "is not a type" in cli("merge", name, target, "--key", "id", "--column-type", "id=number", code=2).stderr


def test_files_of_every_kind_patterns_and_urls(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    (tmp_path / "b.jsonl").write_bytes(JSON)
    pq.write_table(ROWS, tmp_path / "c.parquet")
    paf.write_feather(ROWS, tmp_path / "d.feather")
    (tmp_path / "e.arrow").write_bytes(in_arrow(pa.ipc.new_stream))
    for name in ("a.csv", "b.jsonl", "c.parquet", "d.feather", "e.arrow", "?.csv"):
        for text in (str(tmp_path / name), f"file://{tmp_path / name}"):
            found = open_source(text, [("auto_mkdir", "false")])
            assert read_source(found).to_pylist() == ROWS.to_pylist(), text
    (tmp_path / "folder").mkdir()
    pq.write_table(ROWS, tmp_path / "folder" / "x.parquet")
    assert read_source(open_source(f"file://{tmp_path}/folder", [("auto_mkdir", "false")])).num_rows == 2


def test_storage_options_reach_the_filesystem(tmp_path: Path, cli: Callable[..., Result]) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    target = f"file://{tmp_path}/t"
    options = ["--storage-option", "auto_mkdir=true"]
    cli("merge", f"file://{tmp_path}/a.csv", target, "--key", "id", *options)
    assert merged(str(tmp_path / "t")) == ROWS.to_pylist()
    cli("history", target, *options)
    told = cli("history", target, "--storage-option", "auto_mkdir", code=2).stderr
    assert "name=value" in told
    told = cli("history", target, "--storage-option", "secret hunter2", code=2).stderr
    assert "'--storage-option': it does not have the form name=value." in told
    assert "hunter2" not in told


# M11
def test_a_view_of_a_database_reads_no_other_file(tmp_path: Path, cli: Callable[..., Result]) -> None:
    (tmp_path / "other.csv").write_bytes(CSV)
    file = tmp_path / "x.duckdb"
    with duckdb.connect(str(file)) as database:
        database.execute("CREATE TABLE rows AS SELECT 1 AS id")
        database.execute("CREATE VIEW own AS SELECT id + 1 AS id FROM rows")
        database.execute(f"CREATE VIEW other AS FROM read_csv('{tmp_path}/other.csv')")
    cli("merge", f"{file}::own", str(tmp_path / "t"), "--key", "id")
    assert merged(str(tmp_path / "t")) == [{"id": 2}]
    with assert_unchanged(str(tmp_path / "t")):
        told = cli("merge", f"{file}::other", str(tmp_path / "t"), "--key", "id", code=1).stderr
    assert "Cannot read table 'other'" in told


def test_tables_of_databases(tmp_path: Path, cli: Callable[..., Result]) -> None:
    small, large = tmp_path / "it's #1?.sqlite", tmp_path / "x.duckdb"
    connection = sqlite3.connect(small)
    connection.execute('CREATE TABLE "my ""rows" (id INTEGER, name TEXT, absent TEXT, size, bytes BLOB)')
    connection.execute("INSERT INTO \"my \"\"rows\" VALUES (1, 'a', NULL, 1, x'00ff'), (2, 'b', NULL, 2.5, NULL)")
    connection.execute("CREATE TABLE mixed (id)")
    connection.execute("INSERT INTO mixed VALUES (1), ('x')")
    connection.execute("CREATE TABLE broken (id INTEGER, name TEXT)")
    connection.execute("INSERT INTO broken VALUES (1, CAST(x'ff' AS TEXT))")
    connection.execute("CREATE TABLE large (id)")
    connection.execute("INSERT INTO large VALUES (0.5), (9007199254740993)")
    (tmp_path / "a.csv").write_bytes(CSV)
    connection.commit()
    connection.close()
    with duckdb.connect(str(large)) as database:
        database.execute("CREATE TABLE rows AS SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v (id, name)")
    found = open_source(f'{small}::my "rows').read_all()
    assert found.schema.types == [pa.int64(), pa.string(), pa.string(), pa.float64(), pa.binary()]
    assert list(found.to_pydict().values()) == [[1, 2], ["a", "b"], [None, None], [1.0, 2.5], [b"\0\xff", None]]
    cli("merge", f"{large}::rows", str(tmp_path / "t"), "--key", "id")
    assert merged(str(tmp_path / "t")) == ROWS.to_pylist()
    for text, told in (
        (f"{small}::none", "Cannot read table 'none'"),
        (f"{small}::mixed", "Column 'id' of \"mixed\" holds integer and text"),
        (f"{large}::none", "Cannot read table 'none'"),
        (f"{tmp_path}/none.db::rows", f"The database file {tmp_path}/none.db does not exist"),
        (f"{tmp_path}/a.csv::rows", "is not a SQLite or DuckDB database"),
        (str(small), "is a database. Name one of its tables"),
        (f"{small}::broken", "that its strings are UTF-8"),
        (f"{small}::large", "Column 'id' has a value that is not double"),
    ):
        assert told in cli("merge", text, str(tmp_path / "new"), "--key", "id", code=1).stderr


def test_a_source_that_cannot_be_opened_says_what_to_do(tmp_path: Path, cli: Callable[..., Result]) -> None:
    (tmp_path / "folder").mkdir()
    for text, told in (
        (str(tmp_path / "folder"), "holds no Parquet file. Check the path"),
        ("s3://bucket/rows.csv", "give credentials as storage options"),
        ("nowhere://rows.csv", "Give a path, or a URL that fsspec supports"),
    ):
        for options in ([], ["--storage-option", "key=1"]):
            assert told in cli("merge", text, str(tmp_path / "t"), "--key", "id", *options, code=1).stderr
    (tmp_path / "a.csv").write_bytes(CSV)
    told = cli("merge", str(tmp_path / "a.csv"), "/proc/no/such/place", "--key", "id", code=1).stderr
    assert "Cannot write the lock or staged files of /proc/no/such/place" in told
    assert "check free space and permissions there" in told


def test_types_come_from_the_dataset_only_if_the_source_has_none(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def ask(location: Any, *rest: Any) -> Any:
        asked.append(location)
        return load_all(location, *rest)

    monkeypatch.setattr("merganser.core.sources.source.load_target", ask)
    (tmp_path / "a.csv").write_bytes(CSV)
    pq.write_table(ROWS, tmp_path / "a.parquet")
    for name in ("a.parquet", "a.csv", "a.parquet"):
        cli("merge", str(tmp_path / name), str(tmp_path / "t"), "--key", "id")
    assert len(asked) == 1


def test_types_come_from_a_dataset_whose_timestamps_arrow_cannot_read(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "arrow21_int96_far", tmp_path / "t/code=007")
    with pytest.raises(UnsupportedFileError):
        open_dataset_io("arrow").read(tmp_path / "t")
    found = add_target_types(FileSource("day.csv"), locate(tmp_path / "t"))
    assert found.options.types["code"] == pa.string()
