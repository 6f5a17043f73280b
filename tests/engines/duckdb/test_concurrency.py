"""Many merges at once, in threads and in forked processes, and files that change quickly."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import DuckDBUnionIO, load, put, read_rows

from merganser import DuckDBDatasetIO
from merganser.core import DuplicateKeyError, LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import AnyDatasetIO

THREADS = 4


def pairs(ids: list[int], value: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.int64())})


def values(io: AnyDatasetIO, path: str) -> dict[int, int]:
    return {row["id"]: row["v"] for row in read_rows(io, path)}


def side_by_side(*works: Callable[[], object]) -> None:
    """Run works in threads that begin at the same moment, to their ends; the first error is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        start.wait(30)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """The caller's connection, in a transaction and with a table of its own."""
    with duckdb.connect() as made:
        made.execute("CREATE TEMP TABLE mine AS SELECT 42 AS answer")
        made.execute("BEGIN")
        made.execute("INSERT INTO mine VALUES (43)")
        yield made
        # Whatever was done beside it, it is where it was.
        assert made.execute("SELECT sum(answer) FROM mine").fetchall() == [(85,)]
        made.execute("ROLLBACK")
        assert made.execute("SELECT sum(answer) FROM mine").fetchall() == [(42,)]


@pytest.fixture
def shared(connection: duckdb.DuckDBPyConnection) -> DuckDBDatasetIO:
    """One dataset IO on one connection, shared by all threads."""
    return DuckDBDatasetIO(connection)


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder of a filesystem that is not local."""
    path = f"memory://{uuid.uuid4().hex}"
    yield path
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, lake: str, memory: str) -> str:
    """A folder for datasets, on disk or on another filesystem."""
    return memory if request.param == "memory" else lake


# -------------------- threads


# R3, C5
@pytest.mark.parametrize("way", [DuckDBDatasetIO, DuckDBUnionIO], ids=["merge", "union"])
def test_threads_merge_into_datasets_of_their_own(
    connection: duckdb.DuckDBPyConnection, place: str, way: type[DuckDBDatasetIO]
) -> None:
    shared = way(connection)

    def work(number: int) -> None:
        path = f"{place}/{number}"
        for step in range(3):
            # Every thread has the same keys and other values, so that rows of another would show.
            result = shared.merge(pairs([*range(step, step + 50)], 100 * number + step), path, "upsert", "id")
            assert (result.inserted, result.updated) == ((50, 0) if step == 0 else (1, 49))
            plan = shared.plan(pairs([0, 1000], 7), path, "update", "id")
            assert (plan.updated, plan.target_count_after) == (1, 50 + step)

    side_by_side(*(lambda number=number: work(number) for number in range(THREADS)))
    for number in range(THREADS):
        expected = {key: 100 * number + min(key, 2) for key in range(52)}
        assert values(shared, f"{place}/{number}") == expected


# C5
def test_threads_that_merge_into_one_dataset_lose_nothing(shared: DuckDBDatasetIO, place: str) -> None:
    path = f"{place}/t"
    shared.merge(pairs([*range(THREADS)], 0), path, "upsert", "id")

    def work(number: int) -> None:
        for step in range(1, 3):
            result = shared.merge(pairs([number, 100 * number + 100 + step], step), path, "upsert", "id")
            assert (result.inserted, result.updated) == (1, 1)

    side_by_side(*(lambda number=number: work(number) for number in range(THREADS)))
    added = {100 * number + 100 + step: step for number in range(THREADS) for step in range(1, 3)}
    assert values(shared, path) == dict.fromkeys(range(THREADS), 2) | added


# C5, C7: a merge that fails, or that may not wait, does not disturb others
def test_a_merge_that_fails_does_not_disturb_the_others(shared: DuckDBDatasetIO, lake: str) -> None:
    def good(number: int) -> None:
        for step in range(3):
            shared.merge(pairs([1, 2, 3], step), f"{lake}/{number}", "upsert", "id")

    def bad() -> None:
        for _ in range(5):
            with pytest.raises(DuplicateKeyError):
                shared.merge(pairs([1, 1], 5), f"{lake}/bad", "upsert", "id")

    side_by_side(*(lambda number=number: good(number) for number in range(3)), bad)
    for number in range(3):
        assert values(shared, f"{lake}/{number}") == {1: 2, 2: 2, 3: 2}
    assert not os.path.exists(f"{lake}/bad")


# C5
def test_a_merge_that_may_not_wait_for_another_thread_is_an_error(shared: DuckDBDatasetIO, lake: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pairs([1], 1).to_batches()[0]
        # The dataset is held by now: its rows are read inside the lock.
        begun.set()
        assert ended.wait(30)
        yield pairs([2], 1).to_batches()[0]

    def slow() -> None:
        reader = pa.RecordBatchReader.from_batches(pairs([], 0).schema, batches())
        shared.merge(reader, f"{lake}/t", "upsert", "id")

    def hasty() -> None:
        try:
            assert begun.wait(30)
            with pytest.raises(LockTimeoutError):
                shared.merge(pairs([3], 3), f"{lake}/t", "upsert", "id", lock_timeout=0)
        finally:
            ended.set()

    side_by_side(slow, hasty)
    assert values(shared, f"{lake}/t") == {1: 1, 2: 1}


# D3
def test_a_merge_beside_a_query_of_the_caller(lake: str) -> None:
    with duckdb.connect() as connection:
        io = DuckDBDatasetIO(connection)
        io.merge(pairs([*range(100)], 0), f"{lake}/t", "upsert", "id")
        result = connection.execute("SELECT i FROM range(100_000) AS r (i)")
        assert result.fetchmany(10) == [(number,) for number in range(10)]
        io.merge(pairs([1, 100], 1), f"{lake}/t", "upsert", "id")
        # A result that is being read goes on where it was.
        assert result.fetchmany(2) == [(10,), (11,)]
        assert len(result.fetchall()) == 100_000 - 12


# -------------------- forked processes


def in_a_fork(work: Callable[[], None]) -> int | None:
    """Run work in a forked process; gives its exit code, None if it hung."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(40)
    if child.is_alive():
        child.kill()
        child.join(10)
        return None
    return child.exitcode


# C5: threads of the parent do not exist in its child, which must not wait for them
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("given_", [False, True], ids=["own connection", "caller's connection"])
def test_a_forked_process_merges_after_its_parent(lake: str, given_: bool) -> None:
    io = DuckDBDatasetIO(duckdb.connect() if given_ else None)
    # Enough rows for more than one thread of DuckDB's.
    count = 300_000
    table = pa.table({"id": pa.array(range(count)), "v": pa.repeat(pa.scalar(0), count)})
    io.merge(table, f"{lake}/t", "upsert", "id", row_group_size=50_000)
    io.merge(pairs([1, count], 1), f"{lake}/t", "upsert", "id")

    def child() -> None:
        result = io.merge(pairs([*range(0, count, 3)], 2), f"{lake}/t", "upsert", "id")
        assert (result.inserted, result.updated) == (0, count // 3)

    assert in_a_fork(child) == 0
    # The parent goes on with what it had.
    result = io.merge(pairs([0, 1, count + 1], 3), f"{lake}/t", "upsert", "id")
    assert (result.inserted, result.updated) == (1, 2)
    found = load(io, f"{lake}/t").column("v").to_numpy()
    assert (found == 2).sum() == count // 3 - 1


# C5
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_processes_merge_at_once(lake: str) -> None:
    io = DuckDBDatasetIO()
    io.merge(pairs([0, 1, 2], 0), f"{lake}/t", "upsert", "id")

    def work(number: int) -> None:
        for step in range(3):
            io.merge(pairs([number, 100 * number + 100 + step], step), f"{lake}/t", "upsert", "id")

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(number,)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(40)
    assert [child.exitcode for child in children] == [0, 0, 0]
    added = {100 * number + 100 + step: step for number in range(3) for step in range(3)}
    assert values(io, f"{lake}/t") == dict.fromkeys(range(3), 2) | added


# -------------------- files that change quickly


CACHES = ("parquet_metadata_cache", "enable_object_cache", "enable_external_file_cache", "enable_http_metadata_cache")


@pytest.fixture
def caching() -> Iterator[DuckDBDatasetIO]:
    """A dataset IO on a connection that caches as much as it can."""
    with duckdb.connect() as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM duckdb_settings()").fetchall()}
        chosen = [name for name in CACHES if name in known]
        assert chosen
        for name in chosen:
            connection.execute(f"SET {name} = true")
        yield DuckDBDatasetIO(connection)


def same_sized(number: int) -> pa.Table:
    """Return rows that differ from those of another number in their values, and in nothing that a listing shows."""
    return pairs([1000 * number + at for at in range(1000, 1040)], number)


def overwrite(path: str, table: pa.Table) -> int:
    """Write a file in the place of another, as if at the same moment; gives its size."""
    filesystem, plain = fsspec.core.url_to_fs(path)
    with filesystem.open(plain, "wb") as stream:
        pq.write_table(table, stream, row_group_size=10, compression="none", use_dictionary=False)
    if "://" not in path:
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return int(filesystem.size(plain))


# R3, C6
def test_a_file_that_another_program_writes_again_is_read_again(caching: DuckDBDatasetIO, place: str) -> None:
    path = f"{place}/t"
    caching.merge(same_sized(0), path, "upsert", "id")
    (file,) = caching.plan(same_sized(0), path, "upsert", "id").files
    sizes = set()
    for number in range(1, 6):
        sizes.add(overwrite(file.path, same_sized(number)))
        plan = caching.plan(same_sized(number), path, "upsert", "id")
        assert (plan.inserted, plan.updated) == (0, 40)
        assert caching.plan(same_sized(number - 1), path, "upsert", "id").updated == 0
        assert caching.read(path).aggregate("min(id), max(v)").fetchall() == [(1000 * number + 1000, number)]
    assert len(sizes) == 1


# R3
def test_merges_in_quick_succession_see_each_other(caching: DuckDBDatasetIO, place: str) -> None:
    path = f"{place}/t"
    caching.merge(pairs([*range(100)], 0), path, "upsert", "id", row_group_size=10)
    for number in range(1, 5):
        # Each changes the keys that the one before has left, and none of the others.
        result = caching.merge(pairs([*range(number, 100)], number), path, "full_merge", "id")
        assert (result.inserted, result.updated, result.deleted) == (0, 100 - number, 1)
        assert len(result.rewritten_files) == 1
        again = caching.merge(pairs([*range(number, 100)], number), path, "upsert", "id")
        assert (again.inserted, again.updated) == (0, 100 - number)
    assert values(caching, path) == dict.fromkeys(range(4, 100), 4)


# C6, P7: what one registers, another does not see, nor does the caller's own filesystem go
def test_filesystems_of_the_caller_stay_registered(memory: str) -> None:
    mine: Any = fsspec.filesystem("memory")
    with duckdb.connect() as connection:
        connection.register_filesystem(mine)
        io = DuckDBDatasetIO(connection)
        side_by_side(
            lambda: io.merge(pairs([1, 2], 1), f"{memory}/a", "upsert", "id"),
            lambda: io.merge(pairs([1, 2], 1), f"{memory}/b", "upsert", "id"),
        )
        result = io.merge(pairs([2, 3], 2), f"{memory}/a", "upsert", "id")
        assert (result.inserted, result.updated) == (1, 1)
        assert connection.list_filesystems() == ["memory"]
        found = connection.execute("SELECT sum(v) FROM read_parquet(?)", [f"{memory}/a/*.parquet"]).fetchall()
        assert found == [(5,)]


# R3: a file in memory, one on disk, of one name and size
def test_files_of_one_name_in_two_places(lake: str, caching: DuckDBDatasetIO, memory: str) -> None:
    put(f"{lake}/t/a.parquet", same_sized(1))
    with fsspec.open(f"{memory}/t/a.parquet", "wb") as stream:
        pq.write_table(same_sized(2), stream)
    for _ in range(2):
        assert caching.plan(same_sized(1), f"{lake}/t", "update", "id").updated == 40
        assert caching.plan(same_sized(2), f"{memory}/t", "update", "id").updated == 40
        assert caching.plan(same_sized(1), f"{memory}/t", "update", "id").updated == 0
