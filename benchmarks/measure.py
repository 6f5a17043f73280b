"""Contenders in turns on fresh copies of a dataset, each in its own process."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from benchmarks import oracle
from benchmarks.contenders import FLOOR
from benchmarks.data import build_once
from benchmarks.digest import Digest
from benchmarks.environments import Failed
from benchmarks.process import in_process
from benchmarks.report_lines import Figures, Line
from benchmarks.task import CHANGED_TYPES, Merge, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.contenders import Contender
    from benchmarks.scenarios import Dataset, Scenario
    from benchmarks.task import Measured

# Inode, size and time of change of each file, by path.
State: TypeAlias = "dict[Path, tuple[int, int, int]]"
MB = 1_000_000
# A table, its copy and what a merge writes, each as large as the Parquet files.
LEAST_ROOM = 3
# Seconds. A contender that takes longer for a merge has one run.
LONG = 20.0
# Seconds after which a file's modification time identifies its version.
SETTLED = 2.5


@dataclass(frozen=True, slots=True)
class Setting:
    """A scenario at one size: its files, and the expected rows after the merge; None if nothing is merged."""

    scenario: Scenario
    dataset: Dataset
    files: Path
    batch: Path
    before: Path | None
    warm_files: Path
    warm_batch: Path
    wanted: Digest | None

    @property
    def title(self) -> str:
        """Return what happens, in figures."""
        return self.scenario.title(self.dataset)


@dataclass
class Bench:
    """A folder for datasets, and how often and how long contenders may try.

    A contender's table is always in the folder `live` while it is created, merged into and read, because some tables
    store their absolute path.
    """

    root: Path
    row_count: int
    repeat: int = 3
    limit: float = 150.0
    start: Callable[[Contender, Task], Measured] = in_process
    versions: dict[str, str] = field(default_factory=dict)
    _failed: dict[tuple[str, str], str] = field(default_factory=dict)
    _roomy: bool = True

    def setting(self, scenario: Scenario) -> Setting:
        """Write the files of a scenario, and compute the expected rows."""
        dataset = scenario.dataset(self.row_count)
        files = dataset.build(self.root)
        batch = scenario.batch(dataset)
        before, merged = None, batch
        if scenario.before is not None:
            earlier = scenario.batch(dataset, scenario.before)
            before = self._write(f"{scenario.id}-before", earlier)
            merged = oracle.later(earlier, batch, scenario.keys[-1])
        wanted = None
        if scenario.action == "merge":
            wanted = oracle.expected(files, merged, scenario.keys[-1], scenario.update_columns)
        elif scenario.action in CHANGED_TYPES:
            wanted = oracle.expected_altered(files, CHANGED_TYPES[scenario.action])
        small = replace(dataset, row_count=1_000, files=2, groups=1)
        known = replace(scenario, ids=lambda _: np.arange(250, 750 if scenario.update_columns else 1_250))
        warm_batch = self._write(f"{scenario.id}-warm", known.batch(small))
        warm_files = small.build(self.root)
        saved = self._write(scenario.id, batch)
        return Setting(scenario, dataset, files, saved, before, warm_files, warm_batch, wanted)

    def compare(self, setting: Setting, contenders: Sequence[Contender]) -> list[Line]:
        """Measure contenders in turns, so that a slow minute affects all; a failed or slow one has no further runs."""
        found: dict[str, Figures] = {}
        failed: dict[str, str] = {}
        self._roomy = self._has_room(setting, {contender.form for contender in contenders} - {"plain"})
        for turn in range(self.repeat):
            for contender in contenders:
                known = found.get(contender.id)
                if contender.id in failed or (known is not None and known.seconds > LONG):
                    continue
                try:
                    figures = self.run(setting, contender, compare=turn == 0 and contender.kind != FLOOR)
                except (Failed, oracle.WrongResultError) as error:
                    failed[contender.id] = str(error)
                    found.pop(contender.id, None)
                    continue
                found[contender.id] = figures if known is None else known.best(figures)
        return [
            Line(setting.scenario.id, setting.title, one.id, one.name, one.kind, found.get(one.id), failed.get(one.id))
            for one in contenders
        ]

    def run(self, setting: Setting, contender: Contender, *, compare: bool) -> Figures:
        """Measure a contender on a fresh copy."""
        self._copy(setting, contender)
        if setting.before is not None or setting.scenario.aged:
            time.sleep(SETTLED)
        if setting.before is not None:
            self._step("merge", setting, contender, batch=setting.before)
        before = list_file_states(self._live)
        measured = self._step("measure", setting, contender, compare=compare)
        written = sum(size for _, size, _ in list_changed_files(before, list_file_states(self._live)).values())
        shutil.rmtree(self._live)
        self.versions |= measured.versions
        if setting.wanted is not None and measured.rows is not None:
            wanted = setting.wanted
            total = wanted.total if measured.total is None else measured.total
            oracle.check(Digest(measured.rows, total), wanted)
        if compare:
            oracle.check_types(measured.types, CHANGED_TYPES.get(setting.scenario.action, {}))
        return Figures(measured.seconds, measured.peak_mb, written, measured.scan_seconds)

    def forget(self, dataset: Dataset) -> None:
        """Remove the tables that were created from a dataset."""
        for folder in self.root.glob(f"forms/*/{dataset.name}*"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()

    @property
    def _live(self) -> Path:
        return self.root / "live"

    def _write(self, name: str, batch: pa.Table) -> Path:
        path = self.root / "batches" / f"{name}-{self.row_count}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(batch, path)
        return path

    def _copy(self, setting: Setting, contender: Contender) -> None:
        """Copy the contender's table to its working folder; if disk space is short, move it."""
        shutil.rmtree(self._live, ignore_errors=True)
        if shutil.disk_usage(self.root).free < (needed := LEAST_ROOM * _size(setting.files)):
            raise Failed(f"it may need {needed / MB:,.0f} MB of disk, and there are not as many")
        source, target = setting.files, self._live / "t"
        if contender.form != "plain":
            source, target = self._form(setting, contender), self._live
        target.parent.mkdir(parents=True, exist_ok=True)
        if contender.form == "plain" or self._roomy:
            subprocess.run(["cp", "-r", "--reflink=auto", str(source), str(target)], check=True)  # noqa: S607
        else:
            source.with_name(f"{source.name}.done").unlink()
            source.rename(target)

    def _form(self, setting: Setting, contender: Contender) -> Path:
        """Convert a dataset to a contender's own form once; later calls reuse it, or the reason of the failure."""
        known = (contender.form, setting.dataset.name)
        if known in self._failed:
            raise Failed(self._failed[known])

        def make(path: Path) -> None:
            self._step("prepare", setting, contender)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._live.rename(path)

        try:
            return build_once(self.root / "forms" / contender.form / setting.dataset.name, make)
        except Failed as error:
            self._failed[known] = f"its table could not be made: {error}"
            raise Failed(self._failed[known]) from None

    def _has_room(self, setting: Setting, forms: set[str]) -> bool:
        """Return whether there is room to keep every form for the next run."""
        missing = [form for form in forms if not (self.root / "forms" / form / setting.dataset.name).exists()]
        return shutil.disk_usage(self.root).free > (LEAST_ROOM + len(missing)) * _size(setting.files)

    def _step(
        self,
        step: Literal["prepare", "merge", "measure"],
        setting: Setting,
        contender: Contender,
        *,
        batch: Path | None = None,
        compare: bool = False,
    ) -> Measured:
        """Run one step."""
        scenario = setting.scenario
        task = Task(
            step,
            contender.id,
            str(self._live),
            Merge(scenario.keys, scenario.update_columns, scenario.skip_unchanged),
            str(setting.files),
            str(batch or setting.batch),
            str(setting.warm_files),
            str(setting.warm_batch),
            scenario.action,
            compare,
            self.limit,
        )
        return self.start(contender, task)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def list_file_states(folder: Path) -> State:
    """List every file of a folder."""
    found = {file: file.stat() for file in folder.rglob("*") if file.is_file()}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found.items()}


def list_changed_files(before: State, after: State) -> State:
    """Find the files that are new or changed."""
    return {path: facts for path, facts in after.items() if before.get(path) != facts}
