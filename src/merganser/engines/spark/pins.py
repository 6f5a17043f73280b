"""Snapshots that DataFrames read, each kept while Java can still reach its plan.

A DataFrame of Python does not hold those that are made from it; only their plans in Java share the function that reads
the snapshot. Spark Connect shows no plans, so there a snapshot is kept until this process ends.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from merganser.core.commit.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class _Pin:
    snapshot: Snapshot
    reader: Any | None  # Java's weak reference to the function that reads it


_ERRORS: tuple[type[Exception], ...] = (AttributeError, TypeError, OSError, PySparkException)
# The client of Spark Connect alone has no Java.
with suppress(ImportError):
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    _ERRORS += (Py4JError,)

_pins: list[_Pin] = []
_lock = threading.Lock()


def hold_snapshot(frame: DataFrame, snapshot: Snapshot) -> None:
    """Keep a snapshot while this DataFrame, or one made from it, can be used; release those that no other can."""
    pin = _Pin(snapshot, _find_reader(frame))
    with _lock:
        _pins.append(pin)
    release_unused()


def release_unused() -> None:
    """Remove the snapshots whose DataFrames Java has collected."""
    with _lock:
        unused = [pin for pin in _pins if pin.reader is not None and _is_collected(pin.reader)]
        _pins[:] = [pin for pin in _pins if pin not in unused]
    for pin in unused:
        pin.snapshot.remove()


def _find_reader(frame: DataFrame) -> Any | None:
    """Refer weakly to the function of a plan, which other plans share; None if this Spark has no such plans."""
    with suppress(*_ERRORS):
        reader = frame._jdf.queryExecution().analyzed().functionExpr().func()  # noqa: SLF001  the one way to Java
        java: Any = frame.sparkSession._jvm  # noqa: SLF001  as above
        return java.java.lang.ref.WeakReference(reader)
    return None


def _is_collected(reader: Any) -> bool:
    with suppress(*_ERRORS):
        return reader.get() is None
    # Its session has ended.
    return True
