"""Rows of a DataFrame that are applied in order: where it is told by the sequence column only (Q8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, load

from merganser.errors import DuplicateKeyError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

    from merganser.core.merge.builder import MergeBuilder

STOCK = pa.table({"id": [1, 2], "qty": [10, 20], "seq": [5, 5]})


def begin(io: AnyDatasetIO, spark: Any, lake: str, rows: list[Any]) -> MergeBuilder:
    io.write_dataset(STOCK, f"{lake}/t")
    frame = spark.createDataFrame(rows, "id long, qty long, seq long").repartition(3)
    options: dict[str, Any] = {"sequence_column": "seq", "repeated_keys": "apply_in_order", "batch_id": "one"}
    merge = io.merge_into(f"{lake}/t", frame, "id", **options)
    return merge.when_matched_update({"qty": "t.qty * 2 + s.qty", "seq": "s.seq"}).when_not_matched_insert()


# Q8
def test_the_partitions_of_a_frame_do_not_matter(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    rows = [(key, 1, seq) for seq in range(6, 10) for key in range(1, 60)]
    merge = begin(io, spark, lake, rows)
    plan = merge.plan()
    result = merge.execute()
    assert (result.inserted, result.updated) == (plan.inserted, plan.updated) == (57, 2)
    found = {row["id"]: row["qty"] for row in load(io, f"{lake}/t").to_pylist()}
    assert found == {1: 175, 2: 335} | dict.fromkeys(range(3, 60), 15)


# Q8
def test_rows_of_a_frame_that_tie_are_refused(io: AnyDatasetIO, spark: Any, lake: str) -> None:
    merge = begin(io, spark, lake, [(1, 1, 6), (2, 1, 7), (2, 2, 7), (1, 1, None)])
    with assert_unchanged(f"{lake}/t"), pytest.raises(DuplicateKeyError, match=r"1 key has several .* example id=2"):
        merge.execute()
