"""Names of types: every type that a message prints can be given, and so can the names of SQL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.values import NESTED, PLAIN

from merganser.core.model.type_names import parse_type, to_type
from merganser.errors import InvalidArgumentError

NAMES = st.text(st.characters(categories=("L", "N"), include_characters="_ .,:-'()<>"), min_size=1, max_size=8)
FIELDS = NAMES.map(str.strip).filter(bool)


def nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(pa.field, st.from_regex(r"[a-z_]{1,4}( [a-z]{1,3})?", fullmatch=True), inner, st.booleans())
    return st.one_of(
        fields.map(pa.list_),
        fields.map(pa.large_list),
        fields.map(pa.list_view),
        st.builds(pa.list_, inner, st.integers(1, 9)),
        st.lists(fields, max_size=3, unique_by=lambda field: field.name).map(pa.struct),
        st.builds(pa.map_, inner, inner, st.booleans()),
        st.builds(pa.dictionary, st.sampled_from([pa.int8(), pa.int32()]), st.sampled_from(PLAIN[:8]), st.booleans()),
    )


# E7
@given(st.recursive(st.sampled_from([*PLAIN, *NESTED, pa.json_()]), nest, max_leaves=6))
def test_every_type_can_be_given_as_it_is_printed(data_type: pa.DataType) -> None:
    assert parse_type(str(data_type)) == data_type


# E7
@given(FIELDS)
@example(">")
@example(">,")
@example(")")
def test_fields_of_a_struct_may_have_almost_any_name(name: str) -> None:
    data_type = pa.struct([(name, pa.int64()), ("b", pa.list_(pa.string()))])
    found = parse_type(str(data_type))
    assert str(found) == str(data_type)


# E7
@pytest.mark.parametrize(
    ("name", "data_type"),
    [
        ("BIGINT", pa.int64()),
        ("Integer", pa.int32()),
        ("VARCHAR", pa.string()),
        ("varchar(20)", pa.string()),
        ("TEXT", pa.string()),
        ("DOUBLE", pa.float64()),
        ("real", pa.float32()),
        ("BOOLEAN", pa.bool_()),
        ("DECIMAL(10,2)", pa.decimal128(10, 2)),
        ("NUMERIC(10)", pa.decimal128(10, 0)),
        ("DECIMAL", pa.decimal128(18, 3)),
        ("DATE", pa.date32()),
        ("TIME", pa.time64("us")),
        ("TIMESTAMP", pa.timestamp("us")),
        ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
        ("TIMESTAMP WITH TIME ZONE", pa.timestamp("us", "UTC")),
        ("timestamp without time zone", pa.timestamp("us")),
        ("TIMESTAMP_NS", pa.timestamp("ns")),
        ("BLOB", pa.binary()),
        ("UUID", pa.uuid()),
        ("VARCHAR[]", pa.list_(pa.string())),
        ("INTEGER[3]", pa.list_(pa.int32(), 3)),
        ("STRUCT(a INTEGER, b VARCHAR[])", pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())})),
        ("MAP(VARCHAR, BIGINT)", pa.map_(pa.string(), pa.int64())),
        ("array<string>", pa.list_(pa.string())),
        ("list<string>", pa.list_(pa.string())),
        ("struct<a: int64>", pa.struct({"a": pa.int64()})),
        ("timestamp[us, UTC]", pa.timestamp("us", "UTC")),
        ("decimal128(38,0)", pa.decimal128(38, 0)),
        (" int64 ", pa.int64()),
        ("null", pa.null()),
        ("float64", pa.float64()),
        ("utf8", pa.string()),
    ],
)
def test_names_of_sql_and_short_names(name: str, data_type: pa.DataType) -> None:
    assert parse_type(name) == data_type


@pytest.mark.parametrize(
    "name",
    [
        "",
        "number",
        "int64 x",
        "decimal128(99, 0)",
        "list<",
        "list<>",
        "struct<a>",
        "timestamp[h]",
        "int64]",
        "map<int8>",
    ],
)
def test_what_is_not_a_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a type\. Examples: string, int64"):
        parse_type(name)


def test_an_error_names_the_column() -> None:
    assert to_type(pa.int8(), "v") == pa.int8()
    with pytest.raises(InvalidArgumentError, match="Column 'v': 'number' is not a type"):
        to_type("number", "v")
    with pytest.raises(InvalidArgumentError, match="type of column 'v' must be an Arrow type"):
        to_type(7, "v")
