"""What a dataset costs by its number of files: `python -m benchmarks.scale` prints the table of docs/scale.md.

Seconds and bytes per file were measured with 10,000 and 100,000 files of 100 rows; those of object stores are assumed.
tests/test_scale.py compares requests, bytes and time per file with this model.
"""

from __future__ import annotations

import math

from benchmarks.table import markdown_table

FILES = (10_000, 100_000, 1_000_000)
ROWS_PER_FILE = 10_000
# Measured: processor time of one process, and bytes of one int64 key column.
WARM_MERGE_SECONDS = 17.5e-6
COLD_PLAN_SECONDS = 94e-6
REWRITE_SECONDS = 2.3e-3
MEMORY_BYTES = 1_700
MEMORY_BASE = 160 << 20
CACHE_BYTES = 131
# Counted: listings of the dataset, and requests that do not depend on the number of files.
MERGE_LISTINGS, PLAN_LISTINGS = 3, 1
MERGE_REQUESTS = 60
# Assumed of an object store: keys of a page, seconds of a request, dollars of a thousand requests.
PAGE_KEYS = 1_000
REQUEST_SECONDS, PARALLEL_READS = 0.03, 8
LIST_PRICE, GET_PRICE = 0.005, 0.0004


def count_list_requests(files: int) -> int:
    """Return how many pages a merge lists."""
    return MERGE_LISTINGS * math.ceil(files / PAGE_KEYS)


def count_reads(files: int, *, cached: bool) -> int:
    """Return how many files a one-row merge opens: every footer once, unless the statistics cache has it."""
    return 14 if cached else files + 12


def make_table() -> list[list[str]]:
    """Make the rows of the table, with a column for each number of files."""
    lines = {
        "rows, at 10,000 per file": [f"{files * ROWS_PER_FILE:,}" for files in FILES],
        "one-row merge, statistics cached: CPU s": [f"{files * WARM_MERGE_SECONDS:,.1f}" for files in FILES],
        "plan without the cache: CPU s": [f"{files * COLD_PLAN_SECONDS:,.1f}" for files in FILES],
        "more for 1,000 rewritten files of 100 rows: CPU s": [f"{1000 * REWRITE_SECONDS:.1f}"] * len(FILES),
        "memory of the process, MB": [f"{(MEMORY_BASE + files * MEMORY_BYTES) / 1e6:,.0f}" for files in FILES],
        "statistics cache, MB": [f"{files * CACHE_BYTES / 1e6:,.1f}" for files in FILES],
        "object store: LIST requests of a merge": [f"{count_list_requests(files):,}" for files in FILES],
        "their time, one after the other: s": [
            f"{count_list_requests(files) * REQUEST_SECONDS:,.0f}" for files in FILES
        ],
        "object store: files opened, cached": [f"{count_reads(files, cached=True):,}" for files in FILES],
        "object store: files opened, not cached": [f"{count_reads(files, cached=False):,}" for files in FILES],
        "their time, eight at a time: s": [
            f"{count_reads(files, cached=False) * REQUEST_SECONDS / PARALLEL_READS:,.0f}" for files in FILES
        ],
        "price of a merge, cached, dollars": [f"{_price(files, cached=True):.3f}" for files in FILES],
        "price of a merge, not cached, dollars": [f"{_price(files, cached=False):.3f}" for files in FILES],
    }
    return [[name, *cells] for name, cells in lines.items()]


def _price(files: int, *, cached: bool) -> float:
    lists = count_list_requests(files) * LIST_PRICE
    return (lists + (count_reads(files, cached=cached) + MERGE_REQUESTS) * GET_PRICE) / 1000


if __name__ == "__main__":
    print(markdown_table(("files", *(f"{files:,}" for files in FILES)), make_table()))
