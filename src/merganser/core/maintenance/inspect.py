"""Inspection of a dataset: its files, the ranges of its keys, and possible improvements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.dataset.mixed_schemas import find_differences, find_reordered
from merganser.core.dataset.snapshot import load_existing
from merganser.core.maintenance.duplicates import find_duplicates
from merganser.core.model.keys import normalize_keys, to_python_value
from merganser.core.rows.bounds import rank_bounds
from merganser.core.storage.location import locate
from merganser.display import DisplayMixin, pluralize

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.dataset.mixed_schemas import SchemaDifference
    from merganser.core.dataset.target import Target

# A smaller file costs more to open than to read.
SMALL_FILE_BYTES = 16 << 20
_MIN_FILES = 8
# Bounds prune badly if a key may lie in more than one of so many files.
_POOR_PRUNING_DIVISOR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The bounds of one key column, and how many files may hold one key; every merge reads `unbounded` row groups."""

    column: str
    type: str
    lowest: Any
    highest: Any
    most_files: int
    mean_files: float
    unbounded: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Inspection(DisplayMixin):
    """A dataset as its footers describe it; `findings` suggest improvements.

    `schema_differences` are the columns in which files differ; `columns` are then those of the schema that holds all.
    """

    path: str
    rows: int
    size_bytes: int
    file_count: int
    row_group_count: int
    partition_columns: list[str]
    partition_count: int
    columns: dict[str, str]
    smallest_file: int
    median_file: int
    largest_file: int
    keys: list[KeyRange] = field(default_factory=list)
    duplicate_keys: int | None = None
    schema_differences: list[SchemaDifference] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def inspect(
    path: str | os.PathLike[str],
    key_columns: Sequence[str] | str = (),
    *,
    filesystem: Any = None,
    ignore_table_format: bool = False,
) -> Inspection:
    """Describe a dataset from its listing and footers, with advice on its files.

    With `key_columns`, these columns are read too: the result then reports how well a merge on them can prune files,
    and how many keys are duplicates.

    Args:
        path: Folder or URL of the dataset.
        key_columns: Columns that identify a row.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> result = merganser.merge(pa.table({"id": [1, 2]}), orders, key_columns="id")
    >>> found = inspect(orders, "id")
    >>> found.rows, found.keys[0].lowest, found.keys[0].highest
    (2, 1, 2)
    """
    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    keys = normalize_keys(key_columns) if key_columns else []
    target = load_existing(location, keys)
    sizes, differences = np.array([file.size for file in target.files]), find_differences(target)
    ranges = [_make_key_range(target, name) for name in keys]
    # Ordered by the key itself, rows of one key are equal, so none are refused for differing.
    duplicate_keys = find_duplicates(target, keys, order_by=keys).key_count if keys else None
    return Inspection(
        path=location.display,
        rows=target.rows,
        size_bytes=int(sizes.sum()),
        file_count=len(sizes),
        row_group_count=len(target.group_rows),
        partition_columns=target.partition_columns,
        partition_count=len(set(target.partitions)) if target.partition_columns else 0,
        columns={one.name: str(one.type) for one in target.schema or ()},
        smallest_file=int(sizes.min()),
        median_file=int(np.median(sizes)),
        largest_file=int(sizes.max()),
        keys=ranges,
        duplicate_keys=duplicate_keys,
        schema_differences=differences,
        findings=[
            *_list_schema_findings(target, differences),
            *_list_size_findings(target, sizes),
            *_list_key_findings(ranges, len(sizes)),
            *_list_duplicate_findings(duplicate_keys or 0),
        ],
    )


def _make_key_range(target: Target, name: str) -> KeyRange:
    bounds = target.get_bounds([name])
    low, high = bounds.column("min_0"), bounds.column("max_0")
    known = pc.and_(low.is_valid(), high.is_valid()).to_numpy()
    data_type = target.get_key_type(name)
    make_range = partial(KeyRange, column=name, type=str(data_type), unbounded=int((~known).sum()))
    if not known.any():
        files = len(target.files)
        return make_range(lowest=None, highest=None, most_files=files, mean_files=float(files))
    starts, ends = rank_bounds(low.filter(pa.array(known)), high.filter(pa.array(known)))
    file = np.asarray(target.group_file)[known]
    # One range for each file, from its lowest key to its highest.
    order, first = np.unique(file, return_index=True)
    lowest, highest = np.minimum.reduceat(starts, first), np.maximum.reduceat(ends, first)
    # How many ranges contain the start of each: those that began, less those that ended before.
    opened = np.searchsorted(np.sort(lowest), lowest, side="right") - np.searchsorted(np.sort(highest), lowest)
    return make_range(
        lowest=to_python_value(pc.min(low).as_py(), data_type),
        highest=to_python_value(pc.max(high).as_py(), data_type),
        most_files=int(opened.max()) + len(set(np.asarray(target.group_file)[~known].tolist()) - set(order.tolist())),
        mean_files=float(opened.mean()),
    )


def _list_schema_findings(target: Target, differences: Sequence[SchemaDifference]) -> list[str]:
    location = target.location
    advice = f"Give all files one schema with alter({location.display!r}, unify=True)."
    found = [f"Files differ: {one}. {advice}" for one in differences]
    reordered = [] if differences else find_reordered(target)
    if reordered:
        files = pluralize(len(reordered), "file")
        found.append(f"Columns have another order in {files}, for example {reordered[0]}. {advice}")
    return found + [
        f"{location.to_display(rel)} holds a copy of footers or of the schema, which is wrong once these have changed. "
        "The next commit that changes them removes it."
        for rel in target.summary_files
    ]


def _list_size_findings(target: Target, sizes: np.ndarray[Any, np.dtype[np.int64]]) -> list[str]:
    small = Counter(target.files[at].rel.rpartition("/")[0] for at in np.flatnonzero(sizes < SMALL_FILE_BYTES).tolist())
    crowded = [count for count in small.values() if count >= _MIN_FILES]
    if not crowded:
        return []
    folders, limit = pluralize(len(crowded), "folder"), SMALL_FILE_BYTES >> 20
    advice = "Run compact, or merge larger batches."
    return [f"{sum(crowded):,} files in {folders} are smaller than {limit} MB. {advice}"]


def _list_duplicate_findings(count: int) -> list[str]:
    if not count:
        return []
    keys = pluralize(count, "duplicate key")
    return [f"The dataset has {keys}; a merge changes all rows of a key. Run dedupe to keep one row per key."]


def _list_key_findings(ranges: Sequence[KeyRange], files: int) -> list[str]:
    found = [
        f"{pluralize(one.unbounded, 'row group')} without bounds of {one.column!r}: every merge reads their keys. "
        "Write files with statistics."
        for one in ranges
        if one.unbounded
    ]
    most = min((one.mean_files for one in ranges), default=0.0)
    if files >= _MIN_FILES and most > files / _POOR_PRUNING_DIVISOR:
        names = ", ".join(one.column for one in ranges)
        found.append(
            f"On average {most:,.1f} of the {files:,} files may contain a given key of {names}, so bounds rule out few "
            "files. Sort rows by key with compact, or partition by a column whose values new rows share."
        )
    return found
