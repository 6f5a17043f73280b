"""A change feed from a database (CDC): inserts, updates and deletes, with late and repeated ones, in one merge.

Pass a folder to keep the result: `python examples/change_feed.py lake`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile

import pyarrow as pa

import merganser

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("lsn", pa.int64()), ("op", pa.string())])


def main(lake: str) -> None:
    """Run all steps in a folder; results of an earlier run are replaced."""
    for name in ("customers", ".customers.merganser"):
        shutil.rmtree(os.path.join(lake, name), ignore_errors=True)
    path = os.path.join(lake, "customers")
    start = make_events((1, "Alba", 1, "r"), (2, "Bona", 2, "r"), (3, "Cera", 3, "r"))
    merganser.write_dataset(start.drop_columns("op"), path)
    print("The snapshot:", *read_names(path))

    feed = make_events(
        (2, "Bona Ltd", 10, "u"),
        (2, "Bona & Co", 11, "u"),
        (3, None, 12, "d"),
        (4, "Dora", 13, "c"),
    )
    print("\nA batch: one customer changes twice, one is deleted, one is new. The highest lsn of a key is used.")
    merge_batch(feed, path, "batch 1")
    print("  ", *read_names(path))

    print("\nThe same batch again, as a broker sends it after a timeout:")
    merge_batch(feed, path, "batch 1")

    print("\nA late change, with an older lsn than the customer has:")
    merge_batch(make_events((2, "Bona", 9, "u"), (1, "Alba Inc", 14, "u")), path, "batch 2")
    print("  ", *read_names(path))


def merge_batch(feed: pa.Table, path: str, batch: str) -> None:
    """Merge a batch of the feed; a batch that was merged before is skipped."""
    result = merganser.merge(feed, path, key_columns="id", operation_column="op", sequence_column="lsn", batch_id=batch)
    counts = f"{result.inserted} inserted, {result.updated} updated, {result.deleted} deleted, {result.skipped} late"
    print(f"   {counts}{', merged before' if result.replayed else ''}")


def make_events(*rows: tuple[int, str | None, int, str]) -> pa.Table:
    """Make rows of the feed: the key, the name, the position in the log, and the operation."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def read_names(path: str) -> list[str]:
    """Read the customers, in order."""
    relation = merganser.DuckDBDatasetIO().read(path).order("id")
    return [f"{number}={name!r}" for number, name, *_ in relation.fetchall()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Merge a change feed from a database.")
    parser.add_argument("lake", nargs="?", help="folder for the dataset; without it, a temporary one")
    lake = parser.parse_args().lake
    if lake:
        main(lake)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-feed-") as folder:
            main(folder)
