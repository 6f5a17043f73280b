"""Changes in forked processes, each killed or stopped by a signal before a request; a process of its own runs this.

This process itself sends no request, so that a fork carries no thread and no connection along.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import s3fs
from tests.object_stores.histories import CHANGES, prepare, take_over

import merganser
from merganser.engines import open_engine
from merganser.errors import ConcurrentWriteError

if TYPE_CHECKING:
    from collections.abc import Callable

DONE, NOT_PUBLISHED, FAILED = 0, 3, 4


def main(home: str, name: str, kind: str, numbers: list[int]) -> None:
    """Interrupt a change before each of these requests; prints the path of its dataset, and what the change said."""
    # What is imported at first use is imported once here, not again in every child.
    open_engine("arrow")
    for number in numbers:
        path = f"{home}/{name}-{kind}-{number}/t"
        finish(fork(lambda path=path: prepare(path)))  # type: ignore[misc]
        child = fork(lambda path=path, number=number: change(name, path, number, kind))  # type: ignore[misc]
        _, status = os.waitpid(child, os.WUNTRACED)
        finish(fork(lambda path=path: take_over(path)))  # type: ignore[misc]
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGCONT)
            _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps([path, "killed" if code == -signal.SIGKILL else code]), flush=True)  # noqa: T201  its result


def change(name: str, path: str, number: int, kind: str) -> None:
    """Do a change, and send this process a signal before a request."""
    count, original = 0, s3fs.S3FileSystem._call_s3

    async def call(self: Any, *given: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
            await asyncio.sleep(0)
        return await original(self, *given, **options)

    s3fs.S3FileSystem._call_s3 = call
    try:
        CHANGES[name][0](path)
    except (ConcurrentWriteError, merganser.UndoError) as error:
        told = str(error)
        sys.exit(NOT_PUBLISHED if "Nothing was published; run" in told or "undo" in told else FAILED)


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except SystemExit as ended:
            os._exit(int(str(ended.code)))
        except BaseException:  # noqa: BLE001  the exit code reports it to the parent
            import traceback  # noqa: PLC0415

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def finish(child: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise SystemExit(f"a child ended with {code}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
