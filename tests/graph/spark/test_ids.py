"""Ids of nodes and edges: the same exactly where the keys are equal (G5, G17)."""

from __future__ import annotations

import datetime as dt
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from merganser.graph.spark.ids import make_edge_id, make_node_id
from merganser.graph.spark.properties import to_stored_type
from merganser.graph.values import are_equal, normalize_properties

if TYPE_CHECKING:
    from collections.abc import Callable

INSTANT = dt.datetime(2024, 3, 10, 2, 30, tzinfo=dt.UTC)
# Spark SQL, and what GraphDatabase would be given.
VALUES: list[tuple[str, Any]] = [
    ("1", 1),
    ("1S", 1),
    ("1.0D", 1.0),
    ("CAST(1 AS FLOAT)", 1.0),
    ("0", 0),
    ("-0.0D", -0.0),
    ("true", True),
    ("false", False),
    ("'1'", "1"),
    ("'true'", "true"),
    ("''", ""),
    ("'n1;'", "n1;"),
    ("0.1D", 0.1),
    ("CAST(0.1D AS FLOAT)", 0.10000000149011612),
    ("9223372036854775807", 2**63 - 1),
    ("9.223372036854775807E18D", 2.0**63),
    ("9007199254740993", 2**53 + 1),
    ("9007199254740992D", 2.0**53),
    ("1E300D", 1e300),
    ("array(1, 2)", [1, 2]),
    ("array(1.0D, 2.0D)", [1.0, 2.0]),
    ("array(12)", [12]),
    ("array('1', '2')", ["1", "2"]),
    ("array('1', NULL)", ["1", None]),
    ("array('1', 'z')", ["1", "z"]),
    ("array('a', 'b')", ["a", "b"]),
    ("array('as1:b')", ["as1:b"]),
    ("array(array('a'), array('b'))", [["a"], ["b"]]),
    ("array(array('a', 'b'), CAST(array() AS ARRAY<STRING>))", [["a", "b"], []]),
    ("CAST(array() AS ARRAY<INT>)", []),
    ("DATE'2024-03-10'", dt.date(2024, 3, 10)),
    ("'2024-03-10'", "2024-03-10"),
    ("TIMESTAMP_LTZ'2024-03-10 02:30:00Z'", INSTANT),
    ("TIMESTAMP_LTZ'2024-03-10 03:30:00+01:00'", INSTANT),
    ("'2024-03-10T02:30:00+00:00'", "2024-03-10T02:30:00+00:00"),
    ("TIMESTAMP_LTZ'2024-03-10 02:30:00.05Z'", INSTANT.replace(microsecond=50_000)),
    ("'2024-03-10T02:30:00.050000+00:00'", "2024-03-10T02:30:00.050000+00:00"),
    ("TIMESTAMP_NTZ'2024-03-10 02:30:00'", INSTANT.replace(tzinfo=None)),
    ("'2024-03-10T02:30:00'", "2024-03-10T02:30:00"),
    ("TIMESTAMP_LTZ'1969-12-31 23:59:59.999999Z'", dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)),
    ("'é𝄞'", "é𝄞"),
]


def ids(spark: Any, expressions: list[str]) -> list[str | None]:
    """Return the ids of nodes whose match property `k` has these values."""
    frame = spark.sql("SELECT " + ", ".join(f"{text} AS v{at}" for at, text in enumerate(expressions)))
    kinds = {field.name: to_stored_type(field.dataType, "k", "match") for field in frame.schema.fields}
    columns = [make_node_id("T", {"k": (F.col(name).cast(kind), kind)}) for name, kind in kinds.items()]
    return list(frame.select(*(column.alias(f"i{at}") for at, column in enumerate(columns))).collect()[0])


# G5, G17
def test_ids_are_the_same_exactly_where_values_are_equal(spark: Any, configured: Callable[..., None]) -> None:
    found = ids(spark, [text for text, _ in VALUES])
    values = [normalize_properties({"k": value}, "match")["k"] for _, value in VALUES]
    for (text, _), one, value in zip(VALUES, found, values, strict=True):
        assert one is not None
        assert len(one) == 32
        same = [other for (other, _), two in zip(VALUES, found, strict=True) if one == two]
        assert same == [other for (other, _), two in zip(VALUES, values, strict=True) if are_equal(value, two)], text
    configured({"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"})
    assert ids(spark, [text for text, _ in VALUES]) == found


# G17: as they are today, so that a graph of today is found again tomorrow
def test_ids_stay_what_they_are(spark: Any) -> None:
    frame = spark.sql("SELECT 'a' x, 1L y, CAST(NULL AS STRING) n")
    kinds = {field.name: (F.col(field.name), field.dataType) for field in frame.schema.fields}
    node = make_node_id("T", {"y": kinds["y"], "x": kinds["x"]})
    same = make_node_id("T", {"x": kinds["x"], "y": kinds["y"]})
    others = [
        make_node_id("U", {"x": kinds["x"], "y": kinds["y"]}),
        make_node_id("T", {"x": kinds["y"], "y": kinds["x"]}),
        make_node_id("T", {"x": kinds["x"]}),
        make_edge_id("T", node, same, {}),
        make_edge_id("T", node, make_node_id("U", {"x": kinds["x"]}), {}),
        make_edge_id("T", make_node_id("U", {"x": kinds["x"]}), node, {}),
        make_edge_id("T", node, same, {"x": kinds["x"]}),
    ]
    unknown = [make_node_id("T", {"n": kinds["n"]}), make_edge_id("T", node, same, {"n": kinds["n"]})]
    first, second, *rest = frame.select(
        *(column.alias(f"i{at}") for at, column in enumerate([node, same, *others, *unknown]))
    ).collect()[0]
    assert first == second == sha256(b"nodes1:Ts1:xs1:as1:yn1;").hexdigest()[:32]
    assert rest[-2:] == [None, None]
    assert len({first, *rest[:-2]}) == 1 + len(others)
