"""Expressions: what they see, what they return, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from merganser.core.columnar.expressions import evaluate, parse_expression
from merganser.errors import InvalidArgumentError, UnsupportedTypeError

ROWS = pa.table({"x": pa.array([1, 2, 3], pa.int64()), "tags": [["a", "b"], ["c"], []]})


def evaluate_one(text: str, rows: pa.Table = ROWS) -> pa.ChunkedArray:
    (answer,) = evaluate([parse_expression(text, {"t": rows.column_names})], {"t": rows}, rows.num_rows)
    return answer


@pytest.mark.parametrize(
    "text",
    [
        "geomean(t.x)",
        "wavg(t.x, t.x)",
        "json_group_array(t.x)",
        "generate_subscripts(t.tags, 1)",
        "get_block_size('memory')",
        "ago(INTERVAL 1 DAY)",
    ],
)
def test_a_macro_that_is_no_function_of_one_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"not a function of one row|another value at every call|exist"):
        evaluate_one(text)


def test_other_macros_are_functions() -> None:
    assert evaluate_one("nullif(t.x, 2)").to_pylist() == [1, None, 3]
    assert evaluate_one("array_append(t.tags, 'z')").to_pylist() == [["a", "b", "z"], ["c", "z"], ["z"]]


def test_local_time_is_the_same_for_expressions_that_share_constants() -> None:
    constants: dict[str, str] = {}
    one, other = (parse_expression("current_localtimestamp()", {"t": ["x"]}, constants=constants).sql for _ in "ab")
    assert one == other
    assert "CAST('20" in one


def test_a_nul_character_does_not_end_a_string() -> None:
    with pytest.raises(InvalidArgumentError, match=r"has a NUL character. Write chr\(0\)"):
        evaluate_one("'a\0b'")
    assert evaluate_one("'a' || chr(0) || 'b'").to_pylist() == ["a\0b"] * 3


@pytest.mark.parametrize(
    "text", ["+".join(["t.x"] * 600), "abs(" * 600 + "t.x" + ")" * 600, "(" * 200, "[" * 90 + "]" * 90]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        evaluate_one(text)


def test_long_lists_of_conditions_are_not_deep() -> None:
    assert evaluate_one(" OR ".join(f"t.x = {value}" for value in range(3, 2000))).to_pylist() == [False, False, True]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([Decimal(10) ** 50], pa.decimal256(76, 0)), r"decimal256\(76, 0\)"),
        (pa.array([1.5], pa.float32()).cast(pa.float16()), "halffloat"),
    ],
    ids=["decimal256", "float16"],
)
def test_a_type_that_duckdb_lacks_is_refused_by_column(values: pa.Array, shown: str) -> None:
    rows = pa.table({"x": [1], "wide one": values})
    with pytest.raises(
        UnsupportedTypeError, match=rf"Column 't\.wide one' has type {shown}, which DuckDB does not have"
    ):
        evaluate_one('t."wide one" IS NULL', rows)
    # Beside an expression, it is as good as any other.
    given = [parse_expression(text, {"t": rows.column_names}) for text in ('t."wide one"', "t.x + 1")]
    plain, computed = evaluate(given, {"t": rows}, 1)
    assert plain.chunk(0) == values
    assert computed.to_pylist() == [2]


@pytest.mark.parametrize(
    ("text", "value"), [("0.1e0 + 0.2e0", 0.1 + 0.2), ("2e0 / 3e0", 2 / 3), ("1e400", float("inf")), ("-1e-7", -1e-7)]
)
def test_doubles_stay_doubles(text: str, value: Any) -> None:
    answer = evaluate_one(text)
    assert answer.type == pa.float64()
    assert answer.to_pylist() == [value] * 3


def test_the_zone_of_the_machine_does_not_count() -> None:
    code = (
        "import pyarrow as pa\n"
        "from merganser.core.columnar.expressions import evaluate, parse_expression\n"
        "given = [parse_expression(\"DATE '2026-01-01'::TIMESTAMPTZ\", {'t': ['x']})]\n"
        "(answer,) = evaluate(given, {'t': pa.table({'x': [1]})}, 1)\n"
        "print(answer.type.tz, answer[0].value)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "UTC 1767225600000000\n", done.stderr


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.timestamp("ns"), pa.list_(pa.time64("ns"))], ids=str
)
def test_nanoseconds_are_kept_or_refused(kind: pa.DataType) -> None:
    values = pa.array([1, 2_000], kind.value_type if pa.types.is_list(kind) else kind)
    column = pa.ListArray.from_arrays([0, 1, 2], values) if pa.types.is_list(kind) else values
    rows = pa.table({"x": column})
    if duckdb.__version__ < "2" and kind != pa.timestamp("ns"):
        with pytest.raises(UnsupportedTypeError, match="whose nanoseconds DuckDB discards"):
            evaluate_one("coalesce(t.x, NULL)", rows)
        return
    answer = evaluate_one("coalesce(t.x, NULL)", rows)
    assert answer.cast(kind).combine_chunks() == column


def test_nanoseconds_that_are_whole_microseconds_are_no_loss() -> None:
    rows = pa.table({"x": pa.array([5_000, None], pa.timestamp("ns", "UTC"))})
    assert evaluate_one("coalesce(t.x, NULL)", rows).cast(pa.timestamp("ns", "UTC")).combine_chunks() == rows[
        "x"
    ].chunk(0)
    lost = pa.table({"x": pa.array([5_001], pa.duration("ns"))})
    with pytest.raises(UnsupportedTypeError, match=r"Column 't\.x' has type duration\[ns\], whose nanoseconds"):
        evaluate_one("t.x > INTERVAL 1 SECOND", lost)
