"""The scenarios: the dataset, the incoming rows, and the operation.

Sizes are those of a dataset of ten million rows. A smaller one, `--rows`, has fewer incoming rows in proportion; a
larger one has no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.data import FILES, ROWS, build_once, rows, uuid_rows, wide_rows, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.data import Ids, MakeRows
    from benchmarks.task import Action

BATCH_SEED = 1_000_000
SMALL_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """The target of a scenario."""

    kind: str
    make_rows: MakeRows
    row_count: int
    files: int = FILES
    groups: int = 1

    @property
    def name(self) -> str:
        """Name the folder of the dataset."""
        return f"{self.kind}-{self.row_count}-{self.files}"

    def build(self, root: Path) -> Path:
        """Write the dataset once; later calls reuse it."""
        return build_once(
            root / self.name, lambda path: write(path, self.make_rows, self.row_count, self.files, self.groups)
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: a batch of rows is merged into a dataset.

    `ids` chooses the rows. `before` are rows that the contender merges before the clock starts, in its own process;
    None for none. With `skip_unchanged`, a contender that can detect unchanged rows skips them. `aged` files are some
    seconds old: merganser does not cache statistics of younger ones, which would save it that time.
    """

    id: str
    description: str
    dataset: Callable[[int], Dataset]
    ids: Callable[[Dataset], Ids]
    before: Callable[[Dataset], Ids] | None = None
    action: Action = "merge"
    keys: tuple[str, ...] = ("id",)
    update_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False
    aged: bool = False

    def batch(self, dataset: Dataset, ids: Callable[[Dataset], Ids] | None = None) -> pa.Table:
        """Make the incoming rows."""
        made = dataset.make_rows((ids or self.ids)(dataset), BATCH_SEED)
        return made.select([*self.keys, *self.update_columns]) if self.update_columns else made

    def title(self, dataset: Dataset) -> str:
        """Return what happens, in figures."""
        return self.description.format(batch=len(self.ids(dataset)), rows=dataset.row_count, files=dataset.files)


def orders(row_count: int) -> Dataset:
    """Describe the dataset of most scenarios."""
    return Dataset("orders", rows, row_count)


def five_times(row_count: int) -> Dataset:
    """Describe five times the rows, in files of the same size."""
    return Dataset("orders", rows, 5 * row_count, 5 * FILES)


def one_file(row_count: int) -> Dataset:
    """Describe one file of many row groups, each as large as DuckDB makes them."""
    return Dataset("one-file", rows, row_count // 2, files=1, groups=41)


def wide(row_count: int) -> Dataset:
    """Describe one file of many columns."""
    return Dataset("wide", wide_rows, row_count // 10, files=1, groups=10)


def by_uuid(row_count: int) -> Dataset:
    """Describe orders that are not sorted by their keys."""
    return Dataset("uuid", uuid_rows, row_count)


def small_files(row_count: int) -> Dataset:
    """Describe a dataset of very many small files."""
    files = _scale_batch_size(SMALL_FILES, row_count)
    return Dataset("small", rows, 100 * files, files)


def _scale_batch_size(count: int, row_count: int) -> int:
    """Scale the size of a batch with the dataset."""
    return max(10, min(count, count * row_count // ROWS))


def _pick_evenly(dataset: Dataset, count: int, start: int = 0, stop: int | None = None) -> Ids:
    """Choose ids in equal steps."""
    width = (dataset.row_count if stop is None else stop) - start
    count = min(count, width)
    return start + np.arange(count) * (width // count)


def _in_files(dataset: Dataset, count: int, *numbers: int) -> Ids:
    """Choose the first ids of some files, or, of one file, ids in equal steps."""
    size = dataset.row_count // dataset.files
    if len(numbers) == 1:
        return _pick_evenly(dataset, count, numbers[0] * size, (numbers[0] + 1) * size)
    return np.concatenate([np.arange(min(count // len(numbers), size)) + number * size for number in numbers])


def _one_file(dataset: Dataset) -> Ids:
    return _in_files(dataset, _scale_batch_size(10_000, dataset.row_count), 7)


def _two_files(dataset: Dataset) -> Ids:
    return _in_files(dataset, _scale_batch_size(120_000, dataset.row_count), 3, 20)


def _every_file(dataset: Dataset) -> Ids:
    return _pick_evenly(dataset, max(dataset.files, _scale_batch_size(100_000, dataset.row_count)))


def _new(dataset: Dataset) -> Ids:
    return np.arange(_scale_batch_size(100_000, dataset.row_count)) + dataset.row_count


def _one_group(dataset: Dataset) -> Ids:
    size = -(-dataset.row_count // dataset.groups)
    return _pick_evenly(dataset, _scale_batch_size(10_000, 2 * dataset.row_count), 20 * size, 21 * size)


def _all_over(dataset: Dataset) -> Ids:
    return _pick_evenly(dataset, _scale_batch_size(10_000, 10 * dataset.row_count))


def _half_known(dataset: Dataset) -> Ids:
    half = _scale_batch_size(1_000, dataset.row_count) // 2
    known = np.random.default_rng(BATCH_SEED).choice(dataset.row_count, half, replace=False)
    return np.concatenate([known, np.arange(half) + dataset.row_count])


def _half_recent(dataset: Dataset) -> Ids:
    half = _scale_batch_size(1_000, dataset.row_count) // 2
    return np.concatenate([_in_files(dataset, half, dataset.files - 1), np.arange(half) + dataset.row_count])


def _day_before(dataset: Dataset) -> Ids:
    half = _scale_batch_size(1_000, dataset.row_count) // 2
    return np.concatenate([_in_files(dataset, half, dataset.files - 2), np.arange(half) + 2 * dataset.row_count])


def _some_files(dataset: Dataset) -> Ids:
    return _pick_evenly(dataset, dataset.files // 100 + 1)


def _other_files(dataset: Dataset) -> Ids:
    return _some_files(dataset) + 150


SCENARIOS = {
    scenario.id: scenario
    for scenario in (
        Scenario("A", "{batch:,} rows, all in one file", orders, _one_file),
        Scenario("B", "{batch:,} rows in two files", orders, _two_files),
        Scenario("C", "{batch:,} rows, in every file", orders, _every_file),
        Scenario("D", "{batch:,} rows in two files, two key columns", orders, _two_files, keys=("day", "id")),
        Scenario("E", "{batch:,} new rows", orders, _new),
        Scenario("F", "B again, nothing changed", orders, _two_files, before=_two_files, skip_unchanged=True),
        Scenario("G", "{batch:,} rows in one of 41 row groups of one file", one_file, _one_group),
        Scenario("H", "2 of 50 columns of {batch:,} rows", wide, _all_over, update_columns=("c1", "c2")),
        Scenario("I-cold", "{batch:,} UUIDs, half of them in one file", by_uuid, _half_recent, aged=True),
        Scenario("I-warm", "the same, after a merge", by_uuid, _half_recent, before=_day_before),
        Scenario("I-wide", "{batch:,} UUIDs, half of them in any file", by_uuid, _half_known, aged=True),
        Scenario("J-cold", "a plan for {files:,} small files", small_files, _some_files, action="plan"),
        Scenario("J-warm", "the same, after a merge", small_files, _some_files, before=_other_files, action="plan"),
        Scenario("K-A", "A in {rows:,} rows", five_times, _one_file),
        Scenario("K-C", "C in {rows:,} rows", five_times, _every_file),
    )
}


def find_scenarios(names: Iterable[str]) -> list[Scenario]:
    """Find scenarios by id or letter; all by default.

    >>> [scenario.id for scenario in find_scenarios(["B", "J"])]
    ['B', 'J-cold', 'J-warm']
    """
    wanted = list(names)
    for name in wanted:
        if not any(name in (id_, id_[0]) for id_ in SCENARIOS):
            known = ", ".join(dict.fromkeys(id_[0] for id_ in SCENARIOS))
            raise ValueError(f"There is no scenario {name}. Choose of {known}.")
    return [one for one in SCENARIOS.values() if not wanted or one.id in wanted or one.id[0] in wanted]
