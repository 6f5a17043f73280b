"""A daily upsert with DuckDB: a few days of merges into one dataset, with each step printed.

Pass a folder to keep the result: `python examples/daily_upsert.py lake`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import tempfile
from decimal import Decimal

import pyarrow as pa

from merganser import DatasetMergeError, DuckDBDatasetIO, MergeResult

MONDAY, TUESDAY = dt.date(2025, 1, 6), dt.date(2025, 1, 7)
SCHEMA = pa.schema(
    [("order", pa.int64()), ("status", pa.string()), ("price", pa.decimal128(9, 2)), ("day", pa.date32())]
)
io = DuckDBDatasetIO()


def main(lake: str) -> None:
    """Run all steps in a folder; results of an earlier run are replaced."""
    path = os.path.join(lake, "orders")

    say("Monday: the first load, one folder for each day.")
    monday = batch((1, "new", "9.90", MONDAY), (2, "new", "5.00", MONDAY), (3, "new", "7.50", MONDAY))
    written = io.write_dataset(monday, path, mode="overwrite", partition_columns="day")
    print(f"  rows: {written.row_count}; files: {len(written.files)} new")

    say("Tuesday: an order was paid, two are new. The plan shows what will happen to each file, and why:")
    tuesday = batch((2, "paid", "5.00", MONDAY), (4, "new", "1.25", TUESDAY), (5, "new", "3.00", TUESDAY))
    print(io.plan(tuesday, path, key_columns="order"))
    show(io.merge(tuesday, path, key_columns="order"))

    say("The same batch again: rows are replaced with equal ones, and none is added.")
    before = rows(path)
    show(io.merge(tuesday, path, key_columns="order"))
    print(f"  the same {len(before)} rows as before: {rows(path) == before}")

    say("A batch that would move an order to another day is refused, and nothing changes.")
    expect_refusal(batch((1, "paid", "9.90", TUESDAY)), path)

    say("So is a batch with a duplicate order ...")
    twice = batch((5, "packed", "3.00", TUESDAY), (5, "sent", "3.00", TUESDAY))
    expect_refusal(twice, path)
    say("... unless the strategy keeps the last of them.")
    show(io.merge(twice, path, strategy="deduplicate", key_columns="order"))

    say("At night the full list arrives. Orders that it lacks were cancelled, and are deleted.")
    full = batch((1, "paid", "9.90", MONDAY), (2, "paid", "5.00", MONDAY), (5, "sent", "3.00", TUESDAY))
    show(io.merge(full, path, strategy="full_merge", key_columns="order"))

    say(f"What is left in {path}:")
    for row in rows(path):
        print(f"  {row['day']}  order {row['order']}  {row['status']}  {row['price']}")


def batch(*orders: tuple[int, str, str, dt.date]) -> pa.Table:
    """Make a batch of orders."""
    named = [
        {"order": number, "status": status, "price": Decimal(price), "day": day}
        for number, status, price, day in orders
    ]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def rows(path: str) -> list[dict[str, object]]:
    """Read the dataset back, in order."""
    table = io.read(path).to_arrow_table().sort_by("order")
    found: list[dict[str, object]] = table.to_pylist()
    return found


def expect_refusal(source: pa.Table, path: str) -> None:
    """Try a merge that fails, and print why."""
    try:
        io.merge(source, path, key_columns="order")
    except DatasetMergeError as error:
        print(f"  {type(error).__name__}: {error}")


def show(result: MergeResult) -> None:
    """Print the counts of rows and files."""
    counts = ", ".join(f"{count} {name}" for name, count in result.stats.items())
    files = {
        "rewritten": result.rewritten_files,
        "new": result.inserted_files,
        "untouched": result.preserved_files,
        "removed": result.removed_files,
    }
    counts_of_files = ", ".join(f"{len(paths)} {name}" for name, paths in files.items() if paths)
    print(f"  rows: {counts}; files: {counts_of_files}")


def say(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n{text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A few days of merges into one dataset, with each step printed.")
    parser.add_argument("lake", nargs="?", help="folder for the dataset; without it, a temporary one")
    lake = parser.parse_args().lake
    if lake:
        main(lake)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-orders-") as folder:
            main(folder)
