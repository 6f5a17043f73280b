"""Merge into a file, and from it, with one byte of its footer after another changed; run as a process of its own.

`python mutated.py FILE KEY ENGINE COUNT`: prints the number of each mutation before it is tried, so that the caller
knows over which one the process ended. An error that is not ours, or a refusal that changed a byte, ends it as well.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merganser.engines import open_engine
from merganser.errors import MerganserError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


def mutate(data: bytes, number: int) -> bytes:
    """Change one byte of the footer, or of its length: to any other, or by one bit."""
    chance = random.Random(number)
    (length,) = struct.unpack("<I", data[-8:-4])
    at = len(data) - 8 - length + chance.randrange(length + 4)
    value = data[at] ^ (1 << chance.randrange(8) if chance.random() < 0.4 else chance.randrange(1, 256))
    return data[:at] + bytes([value]) + data[at + 1 :]


def refused(action: Callable[[], object]) -> bool:
    try:
        action()
    except MerganserError:
        return True
    return False


def attempt(io: Any, data: bytes, source: pa.Table, key: str, folder: Path) -> None:
    target, beside = folder / "t", folder / "source.parquet"
    for path in (target / "a.parquet", beside):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    refused(lambda: io.plan(source, str(target), "upsert", key))
    refused(lambda: io.read(str(target)))
    if refused(lambda: io.merge(source, str(target), "upsert", key)):
        assert [path.name for path in target.iterdir()] == ["a.parquet"]
        assert (target / "a.parquet").read_bytes() == data
    refused(lambda: io.merge(str(beside), str(folder / "other"), "upsert", key))


def main(file: str, key: str, engine: str, count: int) -> None:
    io, data = open_engine(engine), Path(file).read_bytes()
    with tempfile.TemporaryDirectory() as whole:
        path = Path(whole, "t", "a.parquet")
        path.parent.mkdir()
        path.write_bytes(data)
        source = open_engine("arrow").read(str(path.parent)).to_table().slice(1, 2)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(count):
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            folder = Path(scratch, str(number))
            folder.mkdir()
            attempt(io, mutate(data, number), source, key, folder)
            shutil.rmtree(folder)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
