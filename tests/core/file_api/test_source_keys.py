"""Keys by themselves: whatever a merge takes as a source, and Python values, find the files that hold them."""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import duckdb
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from tests.support import put

import merganser
from merganser.core import (
    ColumnTypeError,
    ConservativeMembershipChecker,
    InvalidArgumentError,
    KeyColumnError,
    MerganserError,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    confirm_affected_files,
    list_dataset_files,
    plan_incremental_rewrite,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Capsule:
    """Anything with the Arrow PyCapsule interface, to be read once only."""

    def __init__(self, table: pa.Table) -> None:
        self._reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)


class CapsuleArray:
    """One batch, or one array, by the same interface."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._array.__arrow_c_array__(requested_schema)


SINGLE: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "generator": lambda keys: (key for key in keys),
    "map": lambda keys: map(int, keys),
    "range": lambda keys: range(keys[0], keys[-1] + 1, keys[1] - keys[0]),
    "tuples": lambda keys: [(key,) for key in keys],
    "dicts": lambda keys: [{"id": key, "more": None} for key in keys],
    "generator of dicts": lambda keys: ({"id": key} for key in keys),
    "repeated": lambda keys: keys * 3,
    "numpy": np.array,
    "numpy of objects": lambda keys: np.array(keys, dtype=object),
    "numpy scalars": lambda keys: list(np.array(keys, np.int16)),
    "array": pa.array,
    "chunked": lambda keys: pa.chunked_array([[key] for key in keys]),
    "dictionary": lambda keys: pa.array(keys).dictionary_encode(),
    "decimals": lambda keys: [Decimal(key) for key in keys],
    "table": lambda keys: pa.table({"more": keys, "id": keys}),
    "record batch": lambda keys: pa.record_batch({"id": keys}),
    "reader": lambda keys: pa.table({"id": keys}).to_reader(max_chunksize=1),
    "struct array": lambda keys: pa.array([{"id": key} for key in keys]),
    "dataset": lambda keys: pads.dataset(pa.table({"id": keys})),
    "pandas frame": lambda keys: pd.DataFrame({"id": keys}),
    "pandas series": pd.Series,
    "pandas index": pd.Index,
    "polars frame": lambda keys: pl.DataFrame({"id": keys}),
    "polars series": pl.Series,
    "relation": lambda keys: duckdb.sql("select unnest($1) as id", params=[keys]),
    "capsule": lambda keys: Capsule(pa.table({"id": keys})),
    "capsule of a batch": lambda keys: CapsuleArray(pa.record_batch({"id": keys})),
    "capsule of an array": lambda keys: CapsuleArray(pa.array(keys)),
}


def answers(lake: str, keys: Sequence[str] | str, make: Callable[[], Any]) -> list[list[str]]:
    """Ask all four for the files of a dataset that hold a key, each with keys of its own."""
    files = ParquetMetadataAnalyzer().analyze_dataset_files(lake)
    check, once = ConservativeMembershipChecker().file_might_contain_keys, make()
    found = [
        plan_incremental_rewrite(lake, make(), keys).affected_files,
        confirm_affected_files(list_dataset_files(lake), keys, make()),
        [file.path for file in files if check(file, keys, once)],
        PartitionPruner().identify_candidate_files(files, keys, make()),
    ]
    return [[path.removeprefix(f"{lake}/") for path in some] for some in found]


# P1
@pytest.mark.parametrize("kind", SINGLE)
def test_every_kind_of_keys_finds_its_files(lake: str, kind: str) -> None:
    for name, ids in (("a", [1, 2]), ("b", [11, 12]), ("c", [21, 22])):
        put(f"{lake}/t/{name}.parquet", pa.table({"id": ids, "v": ["x", "y"]}))
    plan, confirmed, might, kept = answers(f"{lake}/t", "id", lambda: SINGLE[kind]([2, 22]))
    assert plan == confirmed == might == ["a.parquet", "c.parquet"]
    assert kept == ["a.parquet", "b.parquet", "c.parquet"]


Named = namedtuple("Named", ["day", "id"])  # noqa: PYI024  as pandas makes them
COMPOSITE: dict[str, Callable[[list[tuple[int, str]]], Any]] = {
    "tuples": list,
    "lists": lambda keys: [list(key) for key in keys],
    "generator": lambda keys: (key for key in keys),
    "dicts": lambda keys: [{"day": day, "id": number} for number, day in keys],
    "named tuples": lambda keys: [Named(day, number) for number, day in keys],
    "rows of pandas": lambda keys: pd.DataFrame(keys, columns=["id", "day"])[["day", "id"]].itertuples(),
    "pandas multi-index": pd.MultiIndex.from_tuples,
    "table": lambda keys: pa.table({"day": [day for _, day in keys], "id": [number for number, _ in keys]}),
    "reader": lambda keys: pa.Table.from_pylist([{"id": n, "day": d} for n, d in keys]).to_reader(),
    "pandas": lambda keys: pd.DataFrame(keys, columns=["id", "day"]),
    "polars": lambda keys: pl.DataFrame(keys, schema=["id", "day"], orient="row"),
    "capsule": lambda keys: Capsule(pa.Table.from_pylist([{"id": n, "day": d} for n, d in keys])),
}


# K10, P1
@pytest.mark.parametrize("kind", COMPOSITE)
def test_every_kind_of_composite_keys_finds_its_files(lake: str, kind: str) -> None:
    for day in ("mon", "tue", "wed"):
        put(f"{lake}/t/day={day}/a.parquet", pa.table({"id": [1, 2]}))
    plan, confirmed, might, kept = answers(
        f"{lake}/t", ["id", "day"], lambda: COMPOSITE[kind]([(1, "tue"), (9, "mon")])
    )
    assert plan == confirmed == ["day=tue/a.parquet"]
    assert might == ["day=mon/a.parquet", "day=tue/a.parquet", "day=wed/a.parquet"]
    assert kept == ["day=mon/a.parquet", "day=tue/a.parquet"]


# S3
def test_a_path_is_read_as_a_source_is(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2]}))
    keys = put(f"{lake}/keys.parquet", pa.table({"id": [2]}))
    assert plan_incremental_rewrite(f"{lake}/t", keys, "id").affected_files == [path]
    assert confirm_affected_files(path, "id", Path(keys)) == [path]
    with pytest.raises(InvalidArgumentError, match="absent"):
        plan_incremental_rewrite(f"{lake}/t", f"{lake}/absent.parquet", "id")


TYPES: list[tuple[pa.DataType, list[Any], list[Any], Any]] = [
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("3.00")], [Decimal("1.5")], [Decimal("1.55")]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("7.00")], [7], [6]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], *(
        [dt.datetime(2024, 1, 1, hour, tzinfo=ZoneInfo("Europe/Paris"))] for hour in (1, 0)
    )),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1)], [dt.datetime(2024, 1, 1)], [dt.datetime(2024, 1, 2)]),  # noqa: DTZ001
    (pa.timestamp("ns"), [pd.Timestamp(5), pd.Timestamp(999)], [pd.Timestamp(999)], [pd.Timestamp(998)]),
    (pa.date32(), [dt.date(2024, 1, 1)], [dt.date(2024, 1, 1)], [dt.date(2024, 1, 2)]),
    (pa.string(), ["a", "é"], ["é"], ["e", "A"]),
    (pa.binary(), [b"a"], [b"a"], [b"b"]),
    (pa.uint64(), [2**64 - 1], [2**64 - 1], [2**63]),
    (pa.bool_(), [True], [True], [False]),
    (pa.float64(), [-0.0, 2.5], [0.0], [1.0]),
    (pa.uuid(), [UUID(int=7).bytes], [UUID(int=7)], [UUID(int=8)]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], ["b"], ["c"]),
]  # fmt: skip


# K6, S3
@pytest.mark.parametrize(("kind", "have", "found", "other"), TYPES, ids=range(len(TYPES)))
def test_values_of_every_type_find_their_file(
    lake: str, kind: pa.DataType, have: list[Any], found: list[Any], other: list[Any]
) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": pa.array(have, kind)}))
    for keys, answer in ((found, [path]), (other, [])):
        assert plan_incremental_rewrite(f"{lake}/t", keys, "id").affected_files == answer
        assert confirm_affected_files([path], "id", keys) == answer
        (file,) = ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")
        assert ConservativeMembershipChecker().file_might_contain_keys(file, "id", keys) or not answer


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    ("id", [1, None], ValueError, "'id' in 1 row"),
    ("id", [None], ValueError, "'id' in 1 row"),
    ("id", [1.0, float("nan")], ValueError, "'id' in 1 row"),
    ("id", pd.Series([1, None], dtype="Int64"), ValueError, "'id' in 1 row"),
    ("id", [pd.Timestamp(5), pd.NaT], ValueError, "'id'"),
    ("id", pa.DictionaryArray.from_arrays([0, 1], pa.array([1, None])), ValueError, "'id' in 1 row"),
    (["id", "v"], [(1, None), (2, None)], ValueError, "'v' in 2 rows"),
    ("id", [1, "a"], TypeError, "'id' have no common type.*Give values of one type"),
    ("id", [dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)], TypeError, "'id' are date and datetime"),  # noqa: DTZ001
    ("id", [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], TypeError, "with a zone and without"),  # noqa: DTZ001
    ("id", ["a", b"a"], TypeError, "'id' are bytes and str"),
    ("id", [2**70], TypeError, "'id'"),
    ("id", [object()], TypeError, "'id'"),
    ("id", ["\ud800"], TypeError, "'id'"),
    ("id", np.array([[1, 2]]), TypeError, "'id'"),
    ("id", [[1, 2]], ValueError, r"The key \[1, 2\] should have 1 values, one for each of id"),
    (["id", "v"], [(1, "x"), (1,)], ValueError, r"The key \(1,\) should have 2 values, one for each of id, v"),
    (["id", "v"], [1, 2], ValueError, "source_keys holds int; the key columns are id, v"),
    (["id", "v"], [(1, "x"), {"id": 1, "v": "x"}], ValueError, "dict and tuple"),
    ("id", [1, (2,)], ValueError, "int and tuple"),
    (["id", "v"], pa.array([1]), ValueError, "one column, but the key has 2: id, v"),
    (["id", "v"], np.array([1]), ValueError, "one column, but the key has 2: id, v"),
    ("id", [{"id": 1}, {"v": 2}], ValueError, r"'id' is missing from the key \{'v': 2\}"),
    ("id", pa.table({"v": [1]}), ValueError, "'id' is missing from the source"),
    ("id", pd.DataFrame({"v": [1]}), ValueError, "'id' is missing from the source"),
    ("id", pa.table([[1], [2]], names=["id", "id"]), ValueError, "several columns named 'id'"),
    ("id", pa.table({"id": [[1]]}), TypeError, "'id' has type list"),
    ("id", pd.DataFrame({"id": [1, "a"]}), ValueError, "Cannot read keys from DataFrame"),
    ("id", {"id": [1]}, ValueError, "source_keys is a dict"),
    ("id", b"ab", ValueError, "source_keys is a bytes"),
    ("id", 5, ValueError, "Cannot read rows from int"),
    ("id", None, ValueError, "Cannot read rows from NoneType"),
    ([], [1], ValueError, "key_columns is empty"),
]


# K2, K3, K7, S3
@pytest.mark.parametrize(("keys", "given", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_invalid_keys_are_refused_by_name(
    lake: str, keys: Any, given: Any, error: type[Exception], message: str
) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1, 2], "v": ["x", "y"]}))
    files = ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")
    calls: list[Callable[[], Any]] = [
        lambda: plan_incremental_rewrite(f"{lake}/t", given, keys),
        lambda: plan_incremental_rewrite(f"{lake}/absent", given, keys),
        lambda: confirm_affected_files([path], keys, given),
        lambda: PartitionPruner().identify_candidate_files(files, keys, given),
        lambda: ConservativeMembershipChecker().file_might_contain_keys(files[0], keys, given),
    ]
    for call in calls:
        with pytest.raises(error, match=message) as caught:
            call()
        assert isinstance(caught.value, MerganserError)


# K6, S3
@pytest.mark.parametrize(
    ("kind", "given", "error", "message"),
    [
        (pa.int64(), ["1"], TypeError, "'id' has type string in the source and int64 in the target"),
        (pa.string(), [1], TypeError, "'id' has type int64 in the source and string in the target"),
        (pa.int8(), [300], ValueError, "'id' holds 300"),
        (pa.int64(), [1.5], ValueError, "'id' holds 1.5"),
        (pa.timestamp("us"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], TypeError, "with a time zone and one without"),
    ],
)
def test_keys_of_another_type_are_refused_as_a_merge_refuses_them(
    lake: str, kind: pa.DataType, given: list[Any], error: type[Exception], message: str
) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([], kind)}))
    for keys in (given, pa.array(given), pa.table({"id": given})):
        for call in (plan_incremental_rewrite, lambda path, keys, name: confirm_affected_files([path], name, keys)):
            with pytest.raises(error, match=message):
                call(f"{lake}/t" if call is plan_incremental_rewrite else path, keys, "id")


# K2
def test_a_key_column_that_no_file_has_is_refused(lake: str) -> None:
    path = put(f"{lake}/t/a.parquet", pa.table({"id": [1]}))
    with pytest.raises(KeyColumnError, match="'di' is missing from the target"):
        plan_incremental_rewrite(f"{lake}/t", [1], "di")
    with pytest.raises(KeyColumnError, match="'di' is missing from every candidate file"):
        confirm_affected_files([path], "di", [1])


# H2, H6
def test_confirm_reads_a_folder_in_the_type_of_the_keys_or_not_at_all(lake: str) -> None:
    seven = put(f"{lake}/t/day=007/a.parquet", pa.table({"id": [1]}))
    odd = put(f"{lake}/t/day=two/a.parquet", pa.table({"id": [1], "day": [7]}))
    assert confirm_affected_files([seven, odd], "day", [7]) == [seven, odd]
    assert confirm_affected_files([seven, odd], "day", ["7"]) == []
    assert confirm_affected_files([seven, odd], "day", pa.array(["007"]).dictionary_encode()) == [seven]


# H1
def test_confirm_takes_files_of_several_types_and_places(lake: str) -> None:
    narrow = put(f"{lake}/t/a.parquet", pa.table({"id": pa.array([1], pa.int8())}))
    wide = put(f"{lake}/t/b.parquet", pa.table({"id": pa.array([1], pa.int64())}))
    with fsspec.open("memory://far/c.parquet", "wb") as stream:
        pq.write_table(pa.table({"id": [1]}), stream)
    far = "memory://far/c.parquet"
    assert confirm_affected_files([narrow, far, wide], "id", [1]) == [narrow, far, wide]
    assert confirm_affected_files((path for path in (narrow, wide)), "id", iter([1])) == [narrow, wide]
    for bad in (5, [5], None):
        with pytest.raises(InvalidArgumentError, match="candidate_files must be a path"):
            confirm_affected_files(bad, "id", [1])  # type: ignore[arg-type]


# H2
def test_strings_are_read_in_the_type_of_the_partition_schema(lake: str) -> None:
    for day in ("007", "8"):
        put(f"{lake}/t/day={day}/a.parquet", pa.table({"id": [1]}))
    schema = pa.schema([("day", pa.int32())])
    for keys in (["7"], [7], pa.array(["7"]).dictionary_encode()):
        plan = plan_incremental_rewrite(f"{lake}/t", keys, "day", partition_schema=schema)
        assert plan.affected_files == [f"{lake}/t/day=007/a.parquet"]
    with pytest.raises(ColumnTypeError, match="'day' has type double in the source and string"):
        plan_incremental_rewrite(f"{lake}/t", [1.5], "day", partition_schema=pa.schema([("day", pa.string())]))
    with pytest.raises(InvalidArgumentError, match=r"partition_schema must be a pyarrow\.Schema, not dict"):
        plan_incremental_rewrite(f"{lake}/t", [7], "day", partition_schema={"day": "int"})
    assert plan_incremental_rewrite(f"{lake}/t", [], "day").affected_files == []


# P1, H2
@pytest.mark.parametrize("statistics", [True, False])
def test_a_plan_names_the_files_that_a_merge_would_change(lake: str, statistics: bool) -> None:
    rows = pa.table({"id": range(40), "day": pa.array([n % 4 for n in range(40)], pa.int16())})
    merganser.write_dataset(rows, f"{lake}/t", partition_columns="day", max_rows_per_file=4, engine="arrow")
    if not statistics:
        for path in list_dataset_files(f"{lake}/t"):
            put(path, pq.read_table(path, partitioning=None), write_statistics=False)
    for names, at in ((["id"], [3, 5, 31]), (["id", "day"], [3, 5, 31]), (["day"], [0, 1]), (["day"], [])):
        keys = rows.take(pa.array(at, pa.int64())).select(names)
        expected = merganser.plan(keys, f"{lake}/t", "delete", names, engine="arrow")
        plan = plan_incremental_rewrite(f"{lake}/t", keys, names)
        assert plan.affected_files == [file.path for file in expected.files if file.action != "preserve"]
        assert plan.unaffected_files == [file.path for file in expected.files if file.action == "preserve"]
        assert plan.affected_rows == sum(file.rows for file in expected.files if file.action != "preserve")


# P5
def test_a_generator_that_was_read_before_is_refused(lake: str) -> None:
    put(f"{lake}/t/a.parquet", pa.table({"id": [1]}))
    keys = (key for key in [1])
    assert len(plan_incremental_rewrite(f"{lake}/t", keys, "id").affected_files) == 1
    with pytest.raises(InvalidArgumentError, match="an exhausted generator"):
        plan_incremental_rewrite(f"{lake}/t", keys, "id")


class Counted(list[int]):
    """Keys that count how often they are read."""

    reads = 0

    def __iter__(self) -> Any:
        self.reads += 1
        return super().__iter__()


# P1
@pytest.mark.parametrize("count", [1, 12])
def test_keys_are_read_and_made_canonical_once_however_many_files_there_are(
    lake: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from merganser.core.file_api import rewrite_plan as doors  # noqa: PLC0415  to count its calls

    for number in range(count):
        put(f"{lake}/t/{number:02}.parquet", pa.table({"id": [number, number + 100]}))
    calls = dict.fromkeys(("to_canonical_keys", "conform_keys", "might_match", "match_keys"), 0)

    def counted(name: str, original: Callable[..., Any], *arguments: Any) -> Any:
        calls[name] += 1
        return original(*arguments)

    for name in calls:
        monkeypatch.setattr(doors, name, partial(counted, name, getattr(doors, name)))
    keys = Counted([0, 50])
    plan = plan_incremental_rewrite(f"{lake}/t", keys, "id")
    assert plan.affected_files == [f"{lake}/t/00.parquet"]
    assert (keys.reads, calls) == (1, {"to_canonical_keys": 2, "conform_keys": 1, "might_match": 1, "match_keys": 1})
    keys, files = Counted([0, 50]), list_dataset_files(f"{lake}/t")
    assert confirm_affected_files(files, "id", keys) == files[:1]
    assert (keys.reads, calls) == (1, {"to_canonical_keys": 3, "conform_keys": 2, "might_match": 1, "match_keys": 2})
    keys = Counted([0, 50])
    metadata = ParquetMetadataAnalyzer().analyze_dataset_files(f"{lake}/t")
    assert PartitionPruner().identify_candidate_files(metadata, "id", keys) == files
    assert (keys.reads, calls["to_canonical_keys"], calls["might_match"]) == (1, 4, 2)


def test_no_keys_are_in_no_file_whatever_the_folders(lake: str) -> None:
    merganser.write_dataset(pa.table({"id": [1], "day": ["mon"]}), f"{lake}/t", partition_columns="day", engine="arrow")
    files = list_dataset_files(f"{lake}/t")
    assert confirm_affected_files(files, ["id", "day"], []) == []
    # A folder whose value does not have the key's type contains no such key, but exists.
    assert confirm_affected_files(files, ["id", "day"], [(1, 7)]) == []
