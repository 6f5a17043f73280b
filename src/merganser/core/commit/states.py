"""Past states of a dataset: its files as they were after a commit, from what later commits retained."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from merganser.core.commit.history import is_record_id, read_records
from merganser.core.commit.retained import is_fully_retained, make_retained_path
from merganser.errors import InvalidArgumentError, NotRetainedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from merganser.core.commit.history import HistoryRecord
    from merganser.core.storage.location import Location

    AsOf: TypeAlias = str | int | datetime


@dataclass(frozen=True, slots=True)
class State:
    """The data files of a dataset: their paths in the store by their paths in the dataset.

    `partitions` is the partition record, if it differs from the present one; {} if there was none.
    """

    paths: Mapping[str, str]
    partitions: Mapping[str, Any] | None = None


def go_back(location: Location, control: str, state: State, as_of: AsOf | None) -> State:
    """Return the state after a commit, from the present one; raises NotRetainedError if it is not retained."""
    if as_of is None:
        return state
    wanted = parse_as_of(as_of)
    for record, undone, found in _walk_back(location, control, state):
        if _is_wanted(wanted, record, undone):
            if found is None:
                break
            return found
    raise _make_error(location, control, state, as_of)


def parse_as_of(as_of: AsOf) -> AsOf:
    """Read a commit id, a number of commits to go back, or a time; one without a zone is UTC."""
    if isinstance(as_of, str) and not is_record_id(as_of):
        with suppress(ValueError):
            as_of = datetime.fromisoformat(as_of)
    if isinstance(as_of, datetime):
        return as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
    if isinstance(as_of, str) and is_record_id(as_of):
        return as_of
    if isinstance(as_of, int) and not isinstance(as_of, bool) and as_of >= 0:
        return as_of
    raise InvalidArgumentError(
        f"{as_of!r} is not a commit: give the id of a record of history(path), the number of commits to go back, or a "
        "time as a datetime or in the form of ISO 8601."
    )


def _is_wanted(wanted: AsOf, record: HistoryRecord, number: int) -> bool:
    if isinstance(wanted, datetime):
        return record.committed_at <= wanted
    return wanted == (number if isinstance(wanted, int) else record.id)


def _walk_back(location: Location, control: str, state: State) -> Iterator[tuple[HistoryRecord, int, State | None]]:
    """Yield each commit, newest first, its number and the state after it; None if that is not retained."""
    undone, is_retained = set[str](), True
    for number, record in enumerate(read_records(location.store, control)):
        # What an undo took away is not retained, so the states between it and its commit are lost.
        yield record, number, state if is_retained and not undone else None
        if record.undoes is not None:
            undone.add(record.undoes)
        elif record.id in undone:
            undone.remove(record.id)
        elif is_retained:
            is_retained = is_fully_retained(location.store, control, record)
            if is_retained:
                state = _revert(control, state, record)


def _revert(control: str, state: State, record: HistoryRecord) -> State:
    paths = dict(state.paths)
    for file in record.files:
        if file.retained is None:
            paths.pop(file.path, None)
        else:
            paths[file.path] = make_retained_path(control, record.id, file.retained)
    if record.partitions_before is None:
        return replace(state, paths=paths)
    return State(paths, record.partitions_before)


def _make_error(location: Location, control: str, state: State, as_of: AsOf) -> NotRetainedError:
    retained = [record for record, _, found in _walk_back(location, control, state) if found is not None]
    problem = f"The state of {location.display} as of {as_of!s} is not retained"
    if not retained:
        message = f"{problem}: the dataset has no history. Merge with retain=1 or more to be able to go back."
        return NotRetainedError(message)
    oldest = retained[-1]
    return NotRetainedError(
        f"{problem}. States are retained from {oldest.committed_at:%Y-%m-%d %H:%M:%S} UTC on, after commit "
        f"{oldest.id}. Ask for a later one; merge with a larger retain to keep more."
    )
