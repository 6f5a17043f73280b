"""The Thrift reader takes real footers apart and together again, and anything else ends in one error."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.arrow_versions import bloom_filters

from merganser.core.parquet import thrift
from merganser.core.parquet.thrift import Struct, ThriftError, ThriftList, read_struct, read_struct_at, write_struct


def footer_of(**options: Any) -> bytes:
    table = pa.table(
        {
            "i": pa.array(range(40), pa.int8()),
            "s": [f"name {number}" for number in range(40)],
            "l": [[number] * 3 for number in range(40)],
            "t": pa.array(range(40), pa.timestamp("ns", "UTC")),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2, write_page_index=True, **options)
    data = sink.getvalue()
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-8 - length : -8]


FOOTER = footer_of(sorting_columns=[pq.SortingColumn(0)], **bloom_filters(s=20))


def test_a_real_footer_survives_byte_for_byte() -> None:
    # W2
    tree, end = read_struct_at(FOOTER, 0, thrift.FILE_METADATA)
    assert end == len(FOOTER)
    assert write_struct(tree) == FOOTER
    assert read_struct(FOOTER) == tree
    assert write_struct(read_struct(FOOTER)) == FOOTER


def test_every_truncation_is_one_error() -> None:
    for length in range(0, len(FOOTER), 97):
        with pytest.raises(ThriftError):
            read_struct(FOOTER[:length], thrift.FILE_METADATA)


def test_scanning_gives_top_level_fields_and_stops_early() -> None:
    assert [number for number, _, _ in thrift.scan_fields(FOOTER)] == list(read_struct(FOOTER).values)
    whole = {number: position for number, _, position in thrift.scan_fields(FOOTER)}
    assert thrift.find_list(FOOTER, 0, 4)[0] == 20
    assert thrift.find_list(FOOTER, 0, 77) == thrift.find_list(FOOTER, 0, 3) == (0, 0)
    broken = FOOTER[: whole[4] + 5]
    found = next(at for number, _, at in thrift.scan_fields(broken) if number == 4)
    assert found == whole[4]
    with pytest.raises(ThriftError):
        list(thrift.scan_fields(broken))


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    thrift.TRUE: st.booleans(),
    thrift.I8: st.integers(-128, 127),
    thrift.I16: st.integers(-(1 << 15), (1 << 15) - 1),
    thrift.I32: st.integers(-(1 << 31), (1 << 31) - 1),
    thrift.I64: st.integers(-(1 << 63), (1 << 63) - 1),
    thrift.DOUBLE: st.floats(allow_nan=False),
    thrift.BINARY: st.binary(max_size=20),
}


def typed_values(depth: int) -> st.SearchStrategy[tuple[int, Any]]:
    scalars = st.one_of([st.tuples(st.just(wire), values) for wire, values in SCALARS.items()])
    if not depth:
        return scalars
    inner = typed_values(depth - 1)
    element_lists = st.sampled_from(list(SCALARS)).flatmap(
        lambda wire: st.lists(SCALARS[wire], max_size=20).map(lambda items: (thrift.LIST, ThriftList(wire, items)))
    )
    struct_lists = st.lists(structs(inner), max_size=3).map(
        lambda items: (thrift.LIST, ThriftList(thrift.STRUCT, items))
    )
    return st.one_of(scalars, element_lists, struct_lists, structs(inner).map(lambda tree: (thrift.STRUCT, tree)))


def structs(values: st.SearchStrategy[tuple[int, Any]]) -> st.SearchStrategy[Struct]:
    # Numbers far apart, negative or descending need the long form of a field header.
    fields = st.dictionaries(st.integers(-300, 32_767), values, max_size=5)
    return fields.map(
        lambda chosen: Struct(
            {number: value for number, (_, value) in chosen.items()},
            {number: wire for number, (wire, _) in chosen.items()},
        )
    )


@settings(max_examples=150, deadline=None)
@given(structs(typed_values(2)))
def test_any_struct_survives_a_round_trip(tree: Struct) -> None:
    data = write_struct(tree)
    again, end = read_struct_at(data, 0)
    assert (again, end) == (tree, len(data))
    assert write_struct(again) == data


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_struct_or_one_error(data: bytes) -> None:
    for shape in (None, thrift.FILE_METADATA, thrift.OFFSET_INDEX, thrift.BLOOM_FILTER_HEADER):
        try:
            tree = read_struct(data, shape)
        except ThriftError:
            continue
        assert read_struct(write_struct(tree), shape) == tree


def test_bools_in_a_list_take_a_byte_and_bools_in_a_field_none() -> None:
    tree = read_struct(bytes([0x11, 0x12, 0x19, 0x31, 1, 2, 0, 0]))
    assert tree.values == {1: True, 2: False, 3: [True, False, False]}
    with pytest.raises(ThriftError, match="bools"):
        read_struct(bytes([0x19, 0x11, 7, 0]))


def test_doubles_and_small_integers_keep_sign_and_nan() -> None:
    data = bytes([0x17]) + struct.pack("<d", math.nan) + bytes([0x13, 0xFF, 0])
    tree = read_struct(data)
    assert math.isnan(tree[1])
    assert tree[2] == -1
    assert write_struct(tree) == data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes([0x1B, 0x00, 0x00]), id="map"),
        pytest.param(bytes([0x1A, 0x15, 0x02, 0x00]), id="set"),
        pytest.param(bytes([0x1D]) + bytes(17), id="uuid"),
        pytest.param(bytes([0x10, 0x00]), id="stop with a number"),
        pytest.param(bytes([0x15, 2, 0x05, 2, 2, 0]), id="a field twice"),
        pytest.param(bytes([0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0x00]), id="string longer than the input"),
        pytest.param(bytes([0x19, 0xF5, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0x00]), id="list longer than the input"),
        pytest.param(bytes([0x16]) + b"\xff" * 9 + bytes([0x7F, 0x00]), id="integer of more than 64 bits"),
        pytest.param(bytes([0x16]) + b"\x80" * 20 + bytes([0x00, 0x00]), id="integer without end"),
        pytest.param(bytes([0x15, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F, 0x00]), id="i32 of more than 32 bits"),
        pytest.param(bytes([0x05, 0xFE, 0xFF, 0x07, 2, 0]), id="field number of more than 16 bits"),
        pytest.param(bytes([0x1C]) * 100_000, id="structs in structs"),
        pytest.param(bytes([0x19]) * 100_000, id="lists in lists"),
    ],
)
def test_malformed_input_is_one_error(data: bytes) -> None:
    with pytest.raises(ThriftError):
        read_struct(data)
    with pytest.raises(ThriftError):
        list(thrift.scan_fields(bytes([0x1C]) + data))


def test_a_struct_spec_refuses_unknown_fields() -> None:
    tree = read_struct(FOOTER)
    for number, wire in ((10, thrift.I64), (3, thrift.I32)):
        changed = Struct({**tree.values, number: 1}, {**tree.wires, number: wire})
        with pytest.raises(ThriftError, match=f"field {number} "):
            read_struct(write_struct(changed), thrift.FILE_METADATA)
    with pytest.raises(ThriftError, match="fields"):
        read_struct(write_struct(tree.replace({3: None})), thrift.FILE_METADATA)


def test_a_union_holds_one_value() -> None:
    shape = thrift.StructSpec({1: thrift.FieldType(thrift.I32), 2: thrift.FieldType(thrift.I32)}, union=True)
    wires = {1: thrift.I32, 2: thrift.I32}
    assert read_struct(write_struct(Struct({2: 5}, wires)), shape)[2] == 5
    for values in ({}, {1: 1, 2: 2}):
        with pytest.raises(ThriftError):
            read_struct(write_struct(Struct(values, wires)), shape)


def test_a_number_that_does_not_fit_is_not_written() -> None:
    for wire, value in ((thrift.I16, 1 << 15), (thrift.I32, -(1 << 31) - 1), (thrift.I64, 1 << 63)):
        with pytest.raises(ThriftError, match="fit"):
            write_struct(Struct({1: value}, {1: wire}))


def test_replacing_leaves_the_original_alone() -> None:
    tree = Struct({1: 5, 2: b"x"}, {1: thrift.I32, 2: thrift.BINARY})
    assert tree.replace({1: 6, 2: None}).values == {1: 6}
    assert tree.values == {1: 5, 2: b"x"}
