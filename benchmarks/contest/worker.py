"""Run a contender, or read its lake, in this process: `python -m benchmarks.contest.worker TASK`.

The result is the last line on standard output, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.contest import open_contender
from benchmarks.contest.contents import read_contents
from benchmarks.watch import read_processor_seconds


def main() -> None:
    """Run the task in the argument."""
    task = json.loads(sys.argv[1])
    begin = time.perf_counter()
    folder = Path(task["folder"])
    with closing(open_contender(task["contender"], Path(task["feed"]), folder)) as contender:
        started = time.perf_counter() - begin
        result: dict[str, Any]
        if task["step"] == "read":
            result = {name: asdict(found) for name, found in read_contents(contender, folder).items()}
        else:
            result = {"start": started, "days": [], "processor": []}
            for day, again in [*((day, False) for day in task["days"]), (task["days"][-1], True)]:
                print(f"{day}{' again' if again else ''}", flush=True)
                begin, used = time.perf_counter(), read_processor_seconds(os.getpid())
                contender.run_day(day, again=again)
                result["days"].append(time.perf_counter() - begin)
                result["processor"].append(read_processor_seconds(os.getpid()) - used)
                print(f"{day}: {result['days'][-1]:.2f} s, processor {result['processor'][-1]:.2f} s", flush=True)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
