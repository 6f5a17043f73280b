"""Spark gives the answer of the other engines: rows, counts, files to the byte, plans, audits and errors (R3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.engines.test_merge_property import cases
from tests.engines.test_same_answer import KEYS, STRATEGIES, DatasetLayout, check_case, make, same_answer
from tests.support import open_dataset_io
from tests.values import is_carried_by_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.test_merge_property import Case
    from tests.support import AnyDatasetIO

ENGINE_OPENERS: dict[str, Callable[[], AnyDatasetIO]] = {
    "arrow": lambda: open_dataset_io("arrow"),
    "spark": lambda: open_dataset_io("spark"),
    "spark-broadcast": lambda: open_dataset_io("spark-broadcast"),
    "spark-shuffle": lambda: open_dataset_io("spark-shuffle"),
}
shapes = st.builds(
    DatasetLayout,
    st.lists(st.sampled_from([kind for kind in KEYS if is_carried_by_spark(kind)]), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(STRATEGIES),
    st.integers(0, 1 << 32),
)


# R3
@settings(max_examples=3, phases=[Phase.generate])
@given(case=cases("spark"), pieces=st.none() | st.integers(1, 4))
def test_spark_agrees_on_every_type_that_it_carries(case: Case, pieces: int | None) -> None:
    check_case(case, pieces, ENGINE_OPENERS)


# R3
@settings(max_examples=1, phases=[Phase.generate])
@given(shape=shapes)
def test_spark_agrees_on_larger_datasets(shape: DatasetLayout, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = f"{tmp_path_factory.mktemp('lake')}/t"
    same_answer(path, make(shape, path), ENGINE_OPENERS)


# R3, X1
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_spark_agrees_on_each_strategy(strategy: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = f"{tmp_path_factory.mktemp('lake')}/t"
    same_answer(
        path,
        make(DatasetLayout([pa.int32(), pa.string()], partitioned=True, strategy=strategy, seed=7), path),
        ENGINE_OPENERS,
    )
