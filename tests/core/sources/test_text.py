"""Text as rows: CSV and JSON infer the same from the same text, and lose nothing."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import importlib
import io
import json
import lzma
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from merganser.core.columnar.arrow_versions import PYARROW
from merganser.core.sources.csv_reader import read_csv
from merganser.core.sources.json_reader import read_json
from merganser.core.sources.read_options import DEFAULTS, ReadOptions
from merganser.core.sources.source import read_source
from merganser.errors import ColumnTypeError, ColumnValueError, InvalidArgumentError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STAMP, INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
UTC = dt.UTC
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def from_csv(text: str, options: ReadOptions = DEFAULTS) -> pa.Table:
    return read_csv(io.BytesIO(text.encode()), options)


def from_json(text: str, options: ReadOptions = DEFAULTS) -> pa.Table:
    return read_json(io.BytesIO(text.encode()), options)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# Each column of texts has this type and these values, as cells of CSV and as values of JSON.
TEXTS: dict[str, tuple[list[str], pa.DataType, list[Any]]] = {
    "integers": (["1", "-20", "9223372036854775807"], pa.int64(), [1, -20, 9223372036854775807]),
    "floats": (["1.5", "2", "1e3"], pa.float64(), [1.5, 2.0, 1000.0]),
    "large floats": (["1e20", "0.12345678901234567890"], pa.float64(), [1e20, 0.12345678901234568]),
    "booleans": (["true", "false"], pa.bool_(), [True, False]),
    "booleans and numbers": (["true", "1", "0"], pa.string(), ["true", "1", "0"]),
    "codes": (["00123", "00045"], pa.string(), ["00123", "00045"]),
    "codes and numbers": (["x1", "007"], pa.string(), ["x1", "007"]),
    "plus signs": (["+491234", "+5"], pa.string(), ["+491234", "+5"]),
    "hexadecimal": (["0x1F", "0x20"], pa.string(), ["0x1F", "0x20"]),
    "strings": (["a", "NA", "None", "N/A"], pa.string(), ["a", "NA", "None", "N/A"]),
    "dates": (["2025-01-06", "9999-12-31"], pa.date32(), [dt.date(2025, 1, 6), dt.date(9999, 12, 31)]),
    "short dates": (["2025-1-6", "2025-1-7"], pa.string(), ["2025-1-6", "2025-1-7"]),
    "wrong dates": (["2025-02-30", "2025-02-01"], pa.string(), ["2025-02-30", "2025-02-01"]),
    "dates and strings": (["2025-01-06", "later"], pa.string(), ["2025-01-06", "later"]),
    "timestamps": (
        ["2025-01-06 10:11:12", "2025-01-06T10:11", "2025-01-06T10:11:12.123456"],
        STAMP,
        [
            dt.datetime(2025, 1, 6, 10, 11, 12),  # noqa: DTZ001  without a zone
            dt.datetime(2025, 1, 6, 10, 11),  # noqa: DTZ001  as above
            dt.datetime(2025, 1, 6, 10, 11, 12, 123456),  # noqa: DTZ001  as above
        ],
    ),
    "dates and timestamps": (
        ["2025-01-06", "2025-01-06 10:11:12"],
        STAMP,
        [dt.datetime(2025, 1, 6), dt.datetime(2025, 1, 6, 10, 11, 12)],  # noqa: DTZ001  as above
    ),
    "offsets": (
        ["2025-01-06T10:11:12Z", "2025-01-06T10:11:12+02:00", "2025-01-06 10:11:12-0530", "2025-01-06T10:11:12.000Z"],
        INSTANT,
        [
            dt.datetime(2025, 1, 6, 10, 11, 12, tzinfo=UTC),
            dt.datetime(2025, 1, 6, 8, 11, 12, tzinfo=UTC),
            dt.datetime(2025, 1, 6, 15, 41, 12, tzinfo=UTC),
            dt.datetime(2025, 1, 6, 10, 11, 12, tzinfo=UTC),
        ],
    ),
    "milliseconds": (
        ["2025-01-06T10:11:12.120Z"],
        INSTANT,
        [dt.datetime(2025, 1, 6, 10, 11, 12, 120000, tzinfo=UTC)],
    ),
    "with and without offset": (
        ["2025-01-06T10:11:12Z", "2025-01-06T10:11:12"],
        pa.string(),
        ["2025-01-06T10:11:12Z", "2025-01-06T10:11:12"],
    ),
    "times of day": (["10:11", "23:59:59.5"], pa.string(), ["10:11", "23:59:59.5"]),
}


# E7
@pytest.mark.parametrize("name", TEXTS)
def test_csv_and_json_infer_the_same_from_the_same_text(name: str) -> None:
    texts, data_type, values = TEXTS[name]
    expected = pa.table({"id": range(len(texts) + 1), "v": pa.array([*values, None], data_type)})
    cells = "".join(f"{at},{text}\n" for at, text in enumerate([*texts, ""]))
    assert from_csv(f"id,v\n{cells}").equals(expected)
    is_text = data_type == pa.string()
    tokens = [*(text if is_json(text) and not is_text else json.dumps(text) for text in texts), "null"]
    assert from_json("".join(f'{{"id": {at}, "v": {token}}}\n' for at, token in enumerate(tokens))).equals(expected)


# E7
def test_digits_beyond_microseconds_are_kept() -> None:
    text = "2025-01-06T10:11:12.123456789"
    for table in (from_csv(f"v,w\n{text},1\n"), from_json(f'{{"v": "{text}", "w": 1}}\n')):
        assert table.schema.field("v").type == pa.timestamp("ns")
        assert str(table.column("v")[0]) == "2025-01-06 10:11:12.123456789"


# E7
def test_strings_inside_json_objects_and_lists_are_inferred_as_well() -> None:
    text = '{"a": {"at": "2025-01-06T00:00:00+01:00", "days": [["2025-01-06"], null, []]}}\n{"a": null}\n{"a": {}}\n'
    found = from_json(text)
    assert found.schema.field("a").type == pa.struct({"at": INSTANT, "days": pa.list_(pa.list_(pa.date32()))})
    assert found.column("a").to_pylist() == [
        {"at": dt.datetime(2025, 1, 5, 23, tzinfo=UTC), "days": [[dt.date(2025, 1, 6)], None, []]},
        None,
        {"at": None, "days": None},
    ]


# E7
@pytest.mark.parametrize("number", ["9223372036854775808", "-12345678901234567890", "1" * 40])
def test_integers_beyond_64_bits_are_refused_and_may_be_decimals(number: str) -> None:
    sources: list[tuple[Any, str]] = [
        (from_csv, f"v,w\n1.5,1\n{number},2\n"),
        (from_json, f'{{"v": 1.5}}\n{{"v": {number}}}\n'),
        (from_json, f'{{"v": {{"w": {number} }}}}\n'),
        (from_json, f'{{"v": [[1, 2], [{number}, 3]]}}\n'),
    ]
    for read, text in sources:
        with pytest.raises(ColumnValueError, match=f"'v' has numbers like {number}, which would lose digits"):
            read(text)
    options = ReadOptions(types={"v": pa.decimal256(60, 1)})
    for read, text in sources[:2]:
        assert read(text, options).column("v").to_pylist() == [Decimal("1.5"), Decimal(f"{number}.0")]


# E7
@pytest.mark.parametrize("name", ["größe", 'a"b', "a\\b", "a/b", "a\tb", "😀", "a.*b"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_integers_beyond_64_bits_are_refused_however_the_name_is_spelled(name: str, ascii_only: bool) -> None:
    rows = [{name: 1.5}, {name: 12345678901234567890}]
    text = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    for spelled in (text, text.replace("/", "\\/"), text.replace("\\u00f6", "\\u00F6"), text.replace(": ", " :\n")):
        with pytest.raises(ColumnValueError, match="has numbers like 12345678901234567890"):
            from_json(spelled)


# E7
def test_digits_are_checked_in_long_rows() -> None:
    row = json.dumps({"v": 1.5, "long": "x" * (3 << 20)})
    with pytest.raises(ColumnValueError, match="'v' has numbers like 9223372036854775808"):
        from_json(f'{row}\n{{"v": 9223372036854775808}}\n')


# E7
def test_a_number_that_no_float_holds_is_refused() -> None:
    if PYARROW < 24:
        # It parses no such number, so that the column is one of strings, which hold it.
        assert from_csv("v,w\n1.5,1\n1e400,2\n").column("v").to_pylist() == ["1.5", "1e400"]
    else:
        with pytest.raises(ColumnValueError, match="'v' has numbers like 1e400"):
            from_csv("v,w\n1.5,1\n1e400,2\n")
    assert from_csv("v,w\n-inf,1\nNaN,2\n").column("v")[0].as_py() == float("-inf")


# E7
def test_an_empty_cell_is_null_and_a_quoted_one_is_the_empty_string() -> None:
    table = from_csv('id,text,number,none\n1,,,\n2,"","",\n3,a,"5",\n')
    assert table.schema == pa.schema({"id": pa.int64(), "text": pa.string(), "number": pa.int64(), "none": pa.null()})
    assert table.column("text").to_pylist() == [None, "", "a"]
    assert table.column("number").to_pylist() == [None, None, 5]
    assert from_csv('id,text\n1,""\n2,\n').column("text").to_pylist() == ["", None]
    dates = [from_csv('v,w\n"",1\n2025-01-06,2\n'), from_json('{"v": ""}\n{"v": "2025-01-06"}\n')]
    assert [table.column("v").to_pylist() for table in dates] == [[None, dt.date(2025, 1, 6)]] * 2
    assert from_json('{"v": ""}\n{"v": null}\n').column("v").to_pylist() == ["", None]


# E7
def test_null_values_are_null_unless_quoted() -> None:
    text = 'id,text,number\n1,NA,NA\n2,"NA",-\n3,,7\n'
    plain = from_csv(text)
    assert plain.column("text").to_pylist() == ["NA", "NA", None]
    assert plain.schema.field("number").type == pa.string()
    table = from_csv(text, ReadOptions(null_values=("NA", "-")))
    assert table.column("text").to_pylist() == [None, "NA", None]
    assert table.column("number").to_pylist() == [None, None, 7]


CELLS = 'id,text,number,flag,day\n1,,,,\n2,"",5,true,2025-01-06\n3,NA,-7,false,2025-01-07\n4," x ",0,,\n'


# E7
def test_duckdb_reads_the_same_values_from_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(CELLS)
    options = "allow_quoted_nulls = false, types = {'number': 'BIGINT', 'flag': 'BOOLEAN', 'day': 'DATE'}"
    with duckdb.connect() as connection:
        rows = connection.sql(f"FROM read_csv('{tmp_path}/rows.csv', {options})").to_arrow_table()
    assert from_csv(CELLS).to_pylist() == rows.to_pylist()
    assert from_csv(CELLS).schema.types == [pa.int64(), pa.string(), pa.int64(), pa.bool_(), pa.date32()]


# E7
def test_pandas_reads_the_same_values_but_for_quoted_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(CELLS)
    options: dict[str, Any] = {"dtype_backend": "pyarrow", "keep_default_na": False, "na_values": [""]}
    rows = pa.Table.from_pandas(pd.read_csv(tmp_path / "rows.csv", **options), preserve_index=False).to_pylist()
    ours = from_csv(CELLS).to_pylist()
    assert (rows[1].pop("text"), ours[1].pop("text")) == (None, "")
    assert rows == [row | {"day": row["day"] and str(row["day"])} for row in ours]


@pytest.mark.parametrize(
    ("read", "data", "label"),
    [
        (read_csv, b"id,v\n1,a\n2,\xff\n", "column 'v'"),
        (read_csv, b"id,v\xff\n1,a\n", "the name of a column"),
        (read_json, b'{"v": "a"}\n{"v": "\xff"}\n', "column 'v'"),
        (read_json, b'{"v": [{"w": "\xff"}]}\n', "column 'v'"),
        (read_json, b'{"v\xff": "a"}\n', "the name of a column"),
    ],
)
def test_text_that_is_not_utf8_is_refused(read: Any, data: bytes, label: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"{label} is not UTF-8; convert the file with iconv"):
        read(io.BytesIO(data), DEFAULTS)


# E7
def test_errors_count_rows_from_one() -> None:
    rows = 100_000
    many = "".join(f"{at},{at}\n" for at in range(rows))
    lines = "".join(f'{{"id": {at}, "v": {at}}}\n' for at in range(rows))
    cases: list[tuple[Any, str, ReadOptions, str]] = [
        (from_csv, f"id,v\n{many}1\n", DEFAULTS, "row 100,001: Expected 2 columns"),
        (from_csv, f"id,v\n{many}1,x\n", ReadOptions(types={"v": pa.int64()}), "'v' holds 'x' in row 100,001"),
        (from_json, f"{lines}{{oops}}\n", DEFAULTS, "in row 100,001"),
        (from_json, f'{lines}{{"v": "x"}}\n', DEFAULTS, "column 'v' holds a string in row 100,001"),
        (from_json, f'{lines}{{"w": "x"}}\n', ReadOptions(types={"w": STAMP}), "'w' holds 'x' in row 100,001"),
    ]
    for read, text, options, message in cases:
        with pytest.raises((pa.ArrowInvalid, ColumnValueError), match=message):
            read(text, options)


# E7
def test_rows_are_counted_by_objects_and_not_by_items_of_lists() -> None:
    types = {"v": pa.list_(pa.date32()), "w": pa.struct({"at": STAMP})}
    row = '{"v": ["2025-01-06", "2025-01-07"], "w": {"at": "2025-01-06"}}\n'
    message = r"'v' holds \['x'\] in row 3, which is not list<item: date32\[day\]>\. Correct it, or set another type"
    with pytest.raises(ColumnValueError, match=message):
        from_json(f'{row}{row}{{"v": ["x"]}}\n', ReadOptions(types=types))
    with pytest.raises(ColumnValueError, match=r"'w' holds \{'at': 'x'\} in row 2"):
        from_json(f'{row}{{"w": {{"at": "x"}}}}\n', ReadOptions(types=types))


# E7
def test_nested_values_that_are_all_null_are_read_from_several_blocks() -> None:
    rows = 100_000
    text = '{"v": [null], "w": {"at": null, "n": 1}}\n' * rows
    found = from_json(text, ReadOptions(types={"v": pa.list_(STAMP), "w": pa.struct({"at": STAMP, "n": pa.int64()})}))
    assert found.column("v").num_chunks > 1
    assert found.slice(rows - 1).to_pylist() == [{"v": [None], "w": {"at": None, "n": 1}}]


# E7
def test_remedies_name_what_json_can_do() -> None:
    with pytest.raises(ColumnValueError, match=r"with column_types to decimal128\(38, 0\)\."):
        from_json('{"v": 12345678901234567890}\n')
    found = from_json('{"v": 12345678901234567890}\n', ReadOptions(types={"v": pa.decimal128(38, 0)}))
    assert found.column("v").to_pylist() == [Decimal(12345678901234567890)]


def test_a_row_may_be_longer_than_a_block() -> None:
    long = "x" * (5 << 20)
    assert from_csv(f"id,v\n1,a\n2,{long}\n").column("v").to_pylist() == ["a", long]
    with pytest.raises(pa.ArrowInvalid, match="row 3: Expected 2 columns"):
        from_csv(f"id,v\n1,a\n2,{long}\n3\n")
    assert from_json(f'{{"id": 1, "v": "a"}}\n{{"id": 2, "v": "{long}"}}\n').column("v").to_pylist() == ["a", long]


@pytest.mark.parametrize(
    ("read", "function", "text"),
    [
        (from_csv, "pyarrow.csv.read_csv", "id,v\n1,a\n2,b\n"),
        (from_json, "pyarrow.json.read_json", '{"id": 1, "v": "a"}\n{"id": 2, "v": "b"}\n'),
    ],
)
def test_a_failed_attempt_that_still_reads_ahead_takes_nothing_from_the_next(
    read: Any, function: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = function.rpartition(".")
    original = getattr(importlib.import_module(module), name)
    failed: list[Any] = []

    def fail_first(stream: Any, *arguments: Any, **options: Any) -> pa.Table:
        if not failed:
            failed.append(stream)
            stream.read(4)
            raise pa.ArrowInvalid("straddling object")
        assert failed[0].read(4) == b""
        return original(stream, *arguments, **options)

    monkeypatch.setattr(function, fail_first)
    assert read(text).column("v").to_pylist() == ["a", "b"]


# E7
def test_given_types_are_parsed_alike() -> None:
    types = {
        "time": pa.time64("us"),
        "at": pa.timestamp("ms", "Europe/Paris"),
        "stamp": pa.timestamp("s"),
        "day": pa.date32(),
        "amount": pa.decimal128(10, 2),
        "code": pa.large_string(),
        "kind": pa.dictionary(pa.int32(), pa.string()),
    }
    texts = ["10:11:12.5", "2025-01-06T10:11:12Z", "2025-01-06", "2025-01-06", "1.5", "007", "a"]
    table = from_csv(f"{','.join(types)}\n{','.join(texts)}\n", ReadOptions(types=types))
    assert table.schema == pa.schema(types)
    assert table.column("time")[0].as_py() == dt.time(10, 11, 12, 500000)
    row = json.dumps(dict(zip(types, texts, strict=True)))
    assert from_json(f"{row}\n", ReadOptions(types=types)).equals(table)


def test_types_that_text_does_not_have_are_refused() -> None:
    for data_type in (pa.list_(pa.string()), pa.duration("s"), pa.uuid()):
        with pytest.raises(ColumnTypeError, match="'v' cannot be read as"):
            from_csv("id,v\n1,x\n", ReadOptions(types={"v": data_type}))


def test_files_of_every_compression_are_read_twice_where_needed(tmp_path: Path) -> None:
    text = '{"at": "2025-01-06T10:11:12Z"}\n'
    for suffix, compress in COMPRESSIONS.items():
        path = tmp_path / f"rows.json{suffix}"
        path.write_bytes(compress(text.encode()))
        assert read_source(path).schema.field("at").type == INSTANT
        path = tmp_path / f"rows.csv{suffix}"
        path.write_bytes(compress(b"id,v\n1,2\n3\n"))
        with pytest.raises(UnreadableFileError, match="row 2: Expected 2 columns"):
            read_source(path)


def test_a_value_that_the_type_of_all_files_lacks_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,v\n1,1.5\n")
    (tmp_path / "2.csv").write_text("id,v\n2,9007199254740993\n")
    with pytest.raises(ColumnValueError, match=r"9007199254740993 not in range.*column_types, if they are text"):
        read_source(tmp_path / "*.csv")


def test_a_delimiter_is_one_character() -> None:
    with pytest.raises(InvalidArgumentError, match="The delimiter must be one character, not ';;'"):
        from_csv("id;;v\n1;;2\n", ReadOptions(delimiter=";;"))
