"""Writers that are stopped before any request while another takes over, and go on afterwards."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any, cast

import pytest
from tests.object_stores.histories import (
    BASE,
    CHANGES,
    THEIRS,
    list_outcomes,
    make_rows,
    prepare,
    read_rows,
    take_over,
    upsert,
    without_heartbeats,
)
from tests.object_stores.schedules import Stop, stop

import merganser
from merganser.core.storage import liveness
from merganser.core.storage.lease import BEAT, LEASE
from merganser.core.storage.location import locate
from merganser.core.storage.remote import RemoteStore
from merganser.core.storage.staging import JOURNAL, choose_control_folder, find_staging
from merganser.errors import ConcurrentWriteError, DatasetMergeError, MerganserError


def change_with_stop(name: str, path: str, one: Stop) -> MerganserError | None:
    """Do a change with a stop in it; returns its error, which must say that nothing was published."""
    with without_heartbeats(), stop(one):
        try:
            CHANGES[name][0](path)
        except ConcurrentWriteError as error:
            told = error
        else:
            return None
    assert "Nothing was published; run" in str(told)
    return told


def check_outcome(name: str, path: str, error: MerganserError | None) -> None:
    assert read_rows(path) in list_outcomes(name, happened=error is None), (name, error)
    assert merganser.recover(path) is False
    upsert(path, {1001: "after"})
    assert (1001, "after") in read_rows(path)


def test_a_lease_that_a_crash_left_does_not_block(lake: str) -> None:
    # N2: some servers refuse to create what exists with an error that s3fs does not translate
    path = f"{lake}/t"
    prepare(path)
    store, control = cast("RemoteStore", locate(path).store), choose_control_folder(locate(path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(30)
    left = json.dumps({**liveness.describe_process(), "pid": ended.pid}).encode()
    assert store.create_exclusively(f"{control}/{LEASE}3", left)
    assert not store.create_exclusively(f"{control}/{LEASE}3", b"other")
    take = upsert(path, {50: "mine"})
    assert [record.lease for record in merganser.history(path)][:1] == [4], take
    assert read_rows(path) == sorted((BASE | {50: "mine"}).items())


def test_a_heartbeat_after_a_takeover_does_not_bring_the_lease_back(lake: str) -> None:
    # N1, N4: the holder is stopped between the two requests of a heartbeat, and again before its journal
    path = f"{lake}/t"
    prepare(path)
    store, control = locate(path).store, choose_control_folder(locate(path))

    def meanwhile() -> None:
        take_over(path)
        store.write_small(f"{control}/{BEAT}3", b"late")

    error = change_with_stop("upsert", path, Stop(meanwhile, matches=lambda _, at: at.endswith(JOURNAL)))
    assert error is not None
    check_outcome("upsert", path, error)
    assert [record.inserted for record in merganser.history(path)][:2] == [1, 1]


def test_a_commit_that_a_successor_completed_is_reported_as_done(lake: str) -> None:
    # N4: once its journal is written, the change happens, whoever publishes it
    path = f"{lake}/t"
    prepare(path)
    error = change_with_stop("append", path, Stop(lambda: take_over(path), matches=lambda name, _: name == "replace"))
    assert error is None
    check_outcome("append", path, None)
    assert [record.operation for record in merganser.history(path)][:3] == ["merge", "merge", "write_dataset"]


def stop_everywhere(name: str, home: str, step: int) -> None:
    seen: set[bool] = set()
    for number in itertools.count(1, step):
        path = f"{home}/{number}/t"
        prepare(path)
        one = Stop(lambda path=path: take_over(path), at=number)  # type: ignore[misc]
        error = change_with_stop(name, path, one)
        if not one.fired:
            break
        check_outcome(name, path, error)
        seen.add(error is None)
    assert seen == {True, False}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_happens_or_not_wherever_its_writer_is_stopped(request: pytest.FixtureRequest, name: str) -> None:
    # N1, N4: before every seventh of its requests, or before each one with --all-stores
    stop_everywhere(name, f"memory://{name}", 1 if request.config.getoption("--all-stores") else 7)


@pytest.mark.all_stores
@pytest.mark.parametrize("name", CHANGES)
def test_the_same_on_a_real_store(lake: str, name: str) -> None:
    # N1, N4
    stop_everywhere(name, lake, 9)


@pytest.mark.parametrize("name", CHANGES)
def test_a_recovery_that_is_stopped_harms_no_later_commit(name: str) -> None:
    # N1: the recovery of a journal sleeps while others complete it, and commit more
    for number in itertools.count(1, 5):
        path = f"memory://{name}/{number}/t"
        prepare(path)
        leave_journal(name, path)
        one = Stop(lambda path=path: take_over(path), at=number)  # type: ignore[misc]
        with without_heartbeats(), stop(one):
            merganser.recover(path)
        assert read_rows(path) in list_outcomes(name, happened=True) or not one.fired
        if not one.fired:
            break


def leave_journal(name: str, path: str) -> None:
    """Do a change that dies when it has written its journal."""

    class KilledError(BaseException):
        pass

    def die() -> Any:
        raise KilledError

    def is_next(method: str, at: str) -> bool:
        return method in {"duplicate", "replace", "list_names"} and ".staging_" in at and has_journal()

    def has_journal() -> bool:
        location = locate(path)
        control = choose_control_folder(location)
        filesystem = cast("RemoteStore", location.store).filesystem
        return any(filesystem.exists(one.journal) for one in find_staging(location, control))

    with without_heartbeats(), stop(Stop(die, matches=is_next)), pytest.raises(KilledError):
        CHANGES[name][0](path)
    assert has_journal()


class ClientError(Exception):
    """What some clients of stores raise, which is no OSError."""


@pytest.mark.parametrize("error", [OSError, ClientError])
def test_a_commit_that_was_journaled_is_never_reported_as_not_published(error: type[Exception]) -> None:
    # N4: the store fails while the commit is published, and meanwhile the lease was lost
    path = "memory://journaled/t"
    prepare(path)
    store, control = cast("RemoteStore", locate(path).store), choose_control_folder(locate(path))

    def meanwhile() -> None:
        for name in store.list_names(control):
            if name.startswith(LEASE):
                store.remove(f"{control}/{name}")
        raise error("no route to the store")

    one = Stop(meanwhile, matches=lambda name, _: name == "replace")
    with without_heartbeats(), stop(one), pytest.raises(DatasetMergeError, match="journaled but not fully published"):
        upsert(path, {1: "mine"})
    assert merganser.recover(path)
    assert (1, "mine") in read_rows(path)


def test_a_stalled_writer_removes_nothing_that_later_commits_retain() -> None:
    # N1: it is stopped between the publication of its files and that of its record
    path = "memory://retained/t"
    prepare(path)

    def meanwhile() -> None:
        take_over(path)
        upsert(path, {0: "theirs"})

    one = Stop(meanwhile, matches=lambda name, at: name == "write_small" and "/history/" in at)
    with without_heartbeats(), stop(one):
        merganser.merge(make_rows({1: "mine"}), path, "upsert", "id", engine="arrow")
    assert one.fired
    assert dict(read_rows(path)) == BASE | THEIRS | {0: "theirs", 1: "mine"}
    merganser.undo(path)
    assert dict(read_rows(path)) == BASE | THEIRS | {1: "mine"}


@pytest.mark.parametrize("error", [OSError, ClientError])
@pytest.mark.parametrize("method", ["remove_folder", "remove"])
def test_a_commit_is_done_although_its_staged_files_cannot_be_removed(
    method: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # N4: the store fails after the commit was published
    path = f"memory://left-{method}-{error.__name__}/t"
    prepare(path)
    original, failed = getattr(RemoteStore, method), list[str]()

    def fail(self: RemoteStore, given: str) -> None:
        if len(merganser.history(path)) == 3 and "/.t.merganser/" in given:
            failed.append(given)
            raise error("no route to the store")
        original(self, given)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, method, fail)
        upsert(path, {1: "mine"})
    assert failed
    assert dict(read_rows(path)) == BASE | {1: "mine"}
    upsert(path, {2: "mine"})
    assert dict(read_rows(path)) == BASE | {1: "mine", 2: "mine"}
    assert not find_staging(locate(path), choose_control_folder(locate(path)))


def test_the_error_of_a_merge_is_that_of_its_first_request_that_failed() -> None:
    # N4: not that of the removal of what it staged
    path = "memory://first-error/t"
    prepare(path)
    before = read_rows(path)

    def fail(_: RemoteStore, given: str, *_others: object) -> None:
        raise ClientError(f"no route to {given.rpartition('/')[2]}")

    def meanwhile() -> None:
        for method in ("create", "read_small", "remove_folder"):
            patch.setattr(RemoteStore, method, fail)

    with pytest.MonkeyPatch.context() as patch:
        one = Stop(meanwhile, matches=lambda name, _: name == "create")
        with without_heartbeats(), stop(one), pytest.raises(ClientError, match=r"no route to .*\.staged"):
            upsert(path, {1: "mine"})
    assert read_rows(path) == before
