"""`merganser alter`, and merges whose schema evolves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, put, snapshot

import merganser

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.fixture
def orders(tmp_path: Any) -> str:
    path = str(tmp_path / "orders")
    merganser.write_dataset(pa.table({"id": pa.array([1, 2], pa.int32()), "price": [1.5, 2.5]}), path, engine="arrow")
    return path


# E2
def test_several_changes_are_one_commit_that_can_be_undone(orders: str, cli: Callable[..., Result]) -> None:
    before = snapshot(orders)
    changes = [
        "--add",
        "fee=decimal(12, 2)",
        "--default",
        "fee=1.50",
        "--rename",
        "price=amount",
        "--widen",
        "id=BIGINT",
    ]
    planned = cli("alter", orders, *changes, "--dry-run").stdout
    assert planned.startswith(f"{orders}: would rename column 'price' to 'amount'; change column 'id' from int32 to ")
    assert snapshot(orders) == before
    assert "files: 1 rewritten, 0 left alone" in cli("alter", orders, *changes, "--retain", "1").stdout
    found = merganser.read(orders)
    assert [str(field.type) for field in found.schema] == ["int64", "double", "decimal128(12, 2)"]
    assert [str(row["fee"]) for row in found.to_pylist()] == ["1.50", "1.50"]
    assert cli("alter", orders, *changes).stdout == f"{orders}: nothing to change in 1 file\n"
    assert "alter: no row changed, columns changed" in cli("history", orders).stdout
    cli("undo", orders, "--yes")
    assert snapshot(orders) == before


@pytest.mark.parametrize(
    ("text", "data_type", "value"),
    [("2025-01-06", "date", "2025-01-06"), ("7", "int64", "7"), ("true", "boolean", "True"), ("7", "string", "7")],
)
def test_a_default_is_parsed_as_its_type(
    text: str, data_type: str, value: str, orders: str, cli: Callable[..., Result]
) -> None:
    cli("alter", orders, "--add", f"new={data_type}", "--default", f"new={text}")
    assert str(merganser.read(orders)["new"][0].as_py()) == value


def test_dropping_a_column_for_good_asks_first(orders: str, cli: Callable[..., Result]) -> None:
    with assert_unchanged(orders):
        assert "pass --yes to confirm" in cli("alter", orders, "--drop", "price", code=2).stderr
    cli("alter", orders, "--drop", "price", "--yes")
    assert merganser.read(orders).column_names == ["id"]


# S2
def test_an_error_has_the_command_that_makes_it_fit(
    orders: str, tmp_path: Any, cli: Callable[..., Result], answer: Callable[..., Any]
) -> None:
    source = tmp_path / "feed.csv"
    source.write_text("id,price,note\n2,9.5,late\n")
    refused = cli("merge", str(source), orders, "--key", "id", code=1).stderr
    assert f"merganser alter {orders} --add note=string, or pass --schema-mode evolve." in refused
    told = answer("merge", str(source), orders, "--key", "id", "--schema-mode", "evolve")
    assert (told["updated"], len(told["rewritten_files"])) == (1, 1)
    assert merganser.read(orders, where="note = 'late'")["price"].to_pylist() == [9.5]


# E5
def test_files_that_differ_are_listed_and_unified(orders: str, tmp_path: Any, cli: Callable[..., Result]) -> None:
    put(f"{orders}/other.parquet", pa.table({"id": [3]}))
    found = cli("inspect", orders).stdout
    assert f"'id' is int64 in 1 file ({orders}/other.parquet), int32 in 1 file" in found
    source = tmp_path / "feed.csv"
    source.write_text("id,price\n2,9.5\n")
    refused = cli("merge", str(source), orders, "--key", "id", code=1).stderr
    assert f"merganser alter {orders} --unify, or pass --schema-mode evolve." in refused
    assert "schema: unify files: 'id'" in cli("plan", str(source), orders, "--key", "id").stdout
    cli("alter", orders, "--unify")
    assert {str(pq.read_schema(file)) for file in merganser.core.list_dataset_files(orders)} == {
        "id: int64\nprice: double"
    }
    assert "Files differ" not in cli("inspect", orders).stdout


# E6
def test_summary_files_are_reported_and_removed(orders: str, cli: Callable[..., Result]) -> None:
    for name in ("_metadata", "_common_metadata", "._metadata.crc"):
        (open(f"{orders}/{name}", "wb")).close()
    assert cli("inspect", orders).stdout.count("holds a copy of footers or of the schema") == 2
    merganser.merge(pa.table({"id": [9], "price": [0.5]}), orders, key_columns="id", engine="arrow")
    assert {name.rpartition("/")[2] for name in snapshot(orders)} & {
        "_metadata",
        "_common_metadata",
        "._metadata.crc",
    } == {"_common_metadata"}
    cli("alter", orders, "--rename", "price=amount")
    assert not any("_common_metadata" in name for name in snapshot(orders))
