"""JSON that is nested too deeply is refused, and strings full of brackets are not."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merganser import safe_json as json_text
from merganser.safe_json import MAX_NESTING, DepthLimitedJson, load_json


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


TEXTS = st.text(st.sampled_from('[]{}"\\\n a:,é'), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def is_refused(text: bytes, sizes: list[int]) -> bool:
    """Read a text in pieces of these sizes, the last one again and again."""
    stream = DepthLimitedJson(io.BytesIO(text))
    try:
        while stream.read(sizes.pop(0) if len(sizes) > 1 else sizes[0]):
            pass
    except pa.ArrowInvalid:
        return True
    return False


@given(
    st.lists(VALUES, max_size=4), st.integers(0, 6), st.lists(st.integers(1, 9), min_size=1, max_size=9), st.booleans()
)
def test_the_depth_is_counted_across_reads(rows: list[Any], deepest: int, sizes: list[int], ascii_only: bool) -> None:
    text = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "MAX_NESTING", deepest)
        assert is_refused(text, sizes) == (max(map(depth, rows), default=0) > deepest)


@pytest.mark.parametrize("between", ["", "\n", " \n\t"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_what_would_crash_the_reader_of_pyarrow_is_refused(opening: str, closing: str, between: str) -> None:
    text = f'{{"id": 1, "v": {(opening + between) * 20_000}1{closing * 20_000}}}'.encode()
    with pytest.raises(pa.ArrowInvalid, match="nested over 200 levels deep"):
        pajson.read_json(DepthLimitedJson(io.BytesIO(text)))


def is_sound(text: bytes, deepest: int) -> bool:
    """Go through a text byte by byte."""
    depth, in_string, escaped = 0, False, False
    for sign in map(chr, text):
        if in_string and sign in "\r\n":
            return False
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif sign == '"':
            in_string = not in_string
        elif not in_string:
            depth += (sign in "[{") - (sign in "]}")
            if not 0 <= depth <= deepest:
                return False
    return True


@given(
    st.text(st.sampled_from('[]{}"\\\r\na'), max_size=40),
    st.integers(0, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_what_is_not_json_hides_no_depth(text: str, deepest: int, sizes: list[int]) -> None:
    data = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "MAX_NESTING", deepest)
        passed = not is_refused(data, sizes)
    assert passed == is_sound(data, deepest)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("]" * 30_000, "closes nothing"),
        ("}" * 30_000, "closes nothing"),
        ('"', "inside a string"),
        ('"\\', "inside a string"),
        ('{"a": "', "inside a string"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r", "\r\n"])
def test_what_is_not_json_does_not_crash_the_reader_of_pyarrow(before: str, reason: str, newline: str) -> None:
    text = f'{{"a": 1}}{newline}{before}{newline}{{"a": {"[" * 20_000}1{"]" * 20_000}}}{newline}'.encode()
    with pytest.raises(pa.ArrowInvalid, match=f"not valid JSON: .*{reason}"):
        pajson.read_json(DepthLimitedJson(io.BytesIO(text)))


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    rows = [{"id": 1, "v": "[" * 20_000}, {"id": 2, "v": '\\"{' * 20_000}]
    text = "\n".join(map(json.dumps, rows)).encode()
    assert pajson.read_json(DepthLimitedJson(io.BytesIO(text))).to_pylist() == rows


def test_what_json_cannot_read_is_a_value_error() -> None:
    assert load_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 20_000 + "]" * 20_000, '{"a":' * 20_000, "9" * 100_000, "{"):
        with pytest.raises(ValueError, match=r"nested too deeply|limit|Expecting"):
            load_json(text)
    assert MAX_NESTING < 1000
