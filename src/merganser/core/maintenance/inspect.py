"""What a dataset looks like from outside: its files, the ranges of its keys, and what could be better about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.dataset.snapshot import load_existing
from merganser.core.maintenance.duplicates import find_duplicates
from merganser.core.model.keys import normalize_keys, to_python_value
from merganser.core.rows.bounds import rank_bounds
from merganser.core.storage.location import locate
from merganser.display import DisplayMixin, pluralize

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.dataset.snapshot import Target

# A file below this many bytes costs more to open than to read.
SMALL_FILE_BYTES = 16 << 20
_MIN_FILES = 8
# Files that hold a key, if no better can be told than one in so many, are many.
_POOR_PRUNING_DIVISOR = 3


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The bounds of one key column over all row groups: lowest, highest, and in how many files one key may lie.

    `unbounded` row groups tell no bounds, so that every merge has to read their keys.
    """

    column: str
    type: str
    lowest: Any
    highest: Any
    most_files: int
    mean_files: float
    unbounded: int


@dataclass(frozen=True, slots=True)
class Inspection(DisplayMixin):
    """A dataset as its footers describe it; `findings` say what could be better, and how."""

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
    findings: list[str] = field(default_factory=list)


def inspect(
    path: str | os.PathLike[str],
    key_columns: Sequence[str] | str = (),
    *,
    filesystem: Any = None,
    ignore_table_format: bool = False,
) -> Inspection:
    """Describe a dataset from its listing and footers, and say what could be better about it.

    With keys, which are then read, also how well a merge on them can leave files out, and how many stand in several
    rows. `ignore_table_format` is that of `merge`.

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
    sizes = np.array([file.size for file in target.files])
    ranges = [_make_key_range(target, name) for name in keys]
    # Any row of a key could stay: they do not differ in it.
    repeated = find_duplicates(target, keys, order_by=keys).key_count if keys else None
    return Inspection(
        location.display,
        target.rows,
        int(sizes.sum()),
        len(sizes),
        len(target.group_rows),
        target.partition_columns,
        len(set(target.partitions)) if target.partition_columns else 0,
        {one.name: str(one.type) for one in target.schema or ()},
        int(sizes.min()),
        int(np.median(sizes)),
        int(sizes.max()),
        ranges,
        repeated,
        [
            *_list_size_findings(target, sizes),
            *_list_key_findings(ranges, len(sizes)),
            *_list_duplicate_findings(repeated or 0),
        ],
    )


def _make_key_range(target: Target, name: str) -> KeyRange:
    """Lay the bounds of all row groups beside each other."""
    bounds = target.get_bounds([name])
    low, high = bounds.column("min_0"), bounds.column("max_0")
    known = pc.and_(low.is_valid(), high.is_valid()).to_numpy()
    kind = target.get_key_type(name)
    unbounded = int((~known).sum())
    if not known.any():
        files = len(target.files)
        return KeyRange(name, str(kind), None, None, files, float(files), unbounded)
    starts, ends = rank_bounds(low.filter(pa.array(known)), high.filter(pa.array(known)))
    file = np.asarray(target.group_file)[known]
    # Of each file one range, from its lowest key to its highest.
    order, first = np.unique(file, return_index=True)
    lowest, highest = np.minimum.reduceat(starts, first), np.maximum.reduceat(ends, first)
    # At the start of a range, as many ranges are open as have begun and not ended.
    opened = np.searchsorted(np.sort(lowest), lowest, side="right") - np.searchsorted(np.sort(highest), lowest)
    return KeyRange(
        name,
        str(kind),
        to_python_value(pc.min(low).as_py(), kind),
        to_python_value(pc.max(high).as_py(), kind),
        int(opened.max()) + len(set(np.asarray(target.group_file)[~known].tolist()) - set(order.tolist())),
        float(opened.mean()),
        unbounded,
    )


def _list_size_findings(target: Target, sizes: np.ndarray[Any, np.dtype[np.int64]]) -> list[str]:
    small = Counter(target.files[at].rel.rpartition("/")[0] for at in np.flatnonzero(sizes < SMALL_FILE_BYTES).tolist())
    crowded = [count for count in small.values() if count >= _MIN_FILES]
    if not crowded:
        return []
    told = (
        f"{sum(crowded):,} files in {pluralize(len(crowded), 'folder')} are smaller than {SMALL_FILE_BYTES >> 20} "
        "MB. Put them "
        "together with compact, or merge larger batches."
    )
    return [told]


def _list_duplicate_findings(count: int) -> list[str]:
    if not count:
        return []
    told = "1 key is" if count == 1 else f"{count:,} keys are"
    return [f"{told} there more than once, and a merge changes all rows of such a key. Keep one with dedupe."]


def _list_key_findings(ranges: Sequence[KeyRange], files: int) -> list[str]:
    found = [
        f"{one.unbounded:,} row groups tell no bounds of {one.column!r}, so every merge reads their keys. Write files "
        "with statistics."
        for one in ranges
        if one.unbounded
    ]
    most = min((one.mean_files for one in ranges), default=0.0)
    if files >= _MIN_FILES and most > files / _POOR_PRUNING_DIVISOR:
        names = ", ".join(one.column for one in ranges)
        found.append(
            f"A key of {names} may lie in {most:,.1f} of the {files:,} files, so bounds leave few of them out. Sort "
            "rows by key, with compact, or partition them by what new rows have in common."
        )
    return found
