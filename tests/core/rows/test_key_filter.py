"""Filters of keys: none forgets a key, and a damaged one is none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merganser.core.columnar.hashing import hash_keys, xxh64
from merganser.core.rows.key_filter import decode_filters, encode_filters, make_filter

CHANCE = np.random.default_rng(7)


def random_hashes(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return CHANCE.integers(0, 1 << 64, count, dtype=np.uint64)


# From the description of the hash.
@pytest.mark.parametrize(
    ("value", "told"),
    [(b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)],
)
def test_the_hash_is_the_one_that_parquet_uses(value: bytes, told: int) -> None:
    assert hash_keys([pa.chunked_array([pa.array([value], pa.large_binary())])]).tolist() == [told]


@given(st.lists(st.lists(st.binary(max_size=70), max_size=5), max_size=4))
def test_a_hash_depends_on_the_value_alone(chunks: list[list[bytes]]) -> None:
    column = pa.chunked_array([pa.array([b"x", *chunk], pa.large_binary())[1:] for chunk in chunks], pa.large_binary())
    alone = [xxh64(np.frombuffer(value, np.uint8).reshape(1, -1)).tolist()[0] for chunk in chunks for value in chunk]
    assert hash_keys([column]).tolist() == alone


def test_keys_of_several_columns_are_hashed_together() -> None:
    first, second = (pa.chunked_array([pa.array(values, pa.int64())]) for values in ([1, 2], [2, 1]))
    both = hash_keys([first, second])
    assert len({*both.tolist(), *hash_keys([first]).tolist()}) == 4


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=300), st.data())
def test_a_filter_admits_every_key_of_the_file(hashes: list[int], data: st.DataObject) -> None:
    made = make_filter(np.array(hashes, np.uint64))
    assert made is not None
    (read,) = decode_filters(encode_filters({3: made}, "name"), "name").values()
    for one in hashes:
        others = data.draw(st.lists(st.integers(0, (1 << 64) - 1), max_size=2))
        assert read.might_hold(np.array([*others, one], np.uint64))
    assert not read.might_hold(np.empty(0, np.uint64))


def test_few_other_keys_pass() -> None:
    made = make_filter(random_hashes(100_000))
    assert made is not None
    passed = sum(made.might_hold(random_hashes(10)) for _ in range(20_000))
    # Some 5 are to be expected; of a bloom filter of this size, some 86.
    assert passed < 30
    assert len(encode_filters({0: made}, "")) < 2.51 * 100_000


def test_keys_chosen_to_fill_a_bucket_have_no_filter() -> None:
    assert make_filter(np.arange(256, dtype=np.uint64)) is None
    assert make_filter(np.arange(255, dtype=np.uint64)) is not None


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(["flip", "cut", "name"]))
def test_a_damaged_filter_is_ignored(at: int, bits: int, how: str) -> None:
    made = make_filter(np.arange(0, 1 << 60, 1 << 54, dtype=np.uint64))
    assert made is not None
    data = bytearray(encode_filters({0: made, 2: made}, "name"))
    at %= len(data)
    if how == "flip":
        data[at] ^= bits
    elif how == "cut":
        del data[at:]
    assert decode_filters(bytes(data), "other" if how == "name" else "name") == {}
