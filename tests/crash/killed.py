"""Run a change in forked processes, each ended at another step; started as a process of its own by the sweep.

This process itself runs no merge, so that a fork carries no thread pool along.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from tests.crash.faults import SCENARIOS, DatasetFolder, Fault, inject

import merganser
from merganser.engines import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.faults import Mode

_MARK = "journaled"
_ENDED = 7


def list_killed_steps(folder: str) -> list[int]:
    """Return the numbers of the steps that were tried."""
    return sorted(int(entry.name) for entry in Path(folder).iterdir())


def was_journaled(folder: str, step: int) -> bool:
    """Return whether the merge that ended at this step had written its journal."""
    return Path(folder, str(step), _MARK).exists()


def main(name: str, mode: Mode, folder: str) -> None:
    """End a change at its first step, then at its second, and so on; each time end a recovery as well."""
    scenario = SCENARIOS[name]
    # What is imported at first use is imported once here, not again in every child.
    open_engine("arrow")
    pa.table({"id": [1]})
    # There is no power cut here, and flushing would take most of the time.
    os.fsync = lambda fd: None  # noqa: ARG005  the name is the system's
    for step in itertools.count(1):
        home = Path(folder, str(step))
        home.mkdir(parents=True)
        place = DatasetFolder(f"{home}/t")
        fault = Fault(step, mode, exits=True, on_journal=(home / _MARK).touch)

        def change(place: DatasetFolder = place, fault: Fault = fault) -> None:
            scenario.setup(place)
            with inject(fault):
                scenario.change(place)

        def recover(place: DatasetFolder = place, at: int = step % 12 + 1) -> None:
            with inject(Fault(at, mode, exits=True)):
                merganser.recover(place.path)

        ended = _forked(change)
        _forked(recover)
        if not ended:
            return


def _forked(work: Callable[[], None]) -> bool:
    """Run work in a forked process; True if a fault ended it, an error if anything else went wrong."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  the exit code reports it to the parent
            import traceback  # noqa: PLC0415

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in {0, _ENDED}:
        raise SystemExit(f"a child ended with {code}")
    return code == _ENDED


if __name__ == "__main__":
    main(sys.argv[1], cast("Mode", sys.argv[2]), sys.argv[3])
