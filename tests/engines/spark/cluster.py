"""Runs merges on a cluster of real executor processes, some of which it kills, and prints what came of them as JSON.

A process of its own, since one process has one Spark session: `python -m tests.engines.spark.cluster FOLDER`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  everyone calls it that
from tests.pipeline.postings import load_demo
from tests.support import QUICK_JAVA, list_data_files, put

from merganser import MissingExtraError, SparkDatasetIO
from merganser.demo.feed import write_day
from merganser.engines.spark import ship
from merganser.pipeline import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARQUET, ARROW = b"PAR1", b"ARROW1"
ROWS, SOURCE, STAGED_FILES, POSTINGS = 1_000_000, 40_000, 4, 400


# Executors need neither a lock nor an installed merganser.
BARE = """import os, sys
sys.modules["filelock"] = None
sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "merganser"))]
"""


def start_session(bare: Path) -> SparkSession:
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(BARE, "utf-8")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": str(bare),
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.sql.codegen.wholeStage": "false",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# -------------------- who to kill


def get_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def find_executor(pid: int) -> int | None:
    """Find the executor that a Python worker belongs to, if it is one of ours."""
    line: list[int] = []
    while pid > 1:
        line.append(pid)
        pid = get_parent(pid)
    for one in line:
        try:
            if os.getpid() in line and b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
                return one
        except OSError:
            continue
    return None


def find_writer(path: Path) -> int | None:
    """Find the process that has a file open."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(link) == str(path) for link in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:
            continue
    return None


def begins(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def find_rewriting_executor(control: Path) -> int | None:
    """Find the executor that is writing a Parquet file."""
    for path in control.glob(".staging_*/*.staged"):
        worker = find_writer(path) if begins(path, PARQUET) else None
        if worker:
            return find_executor(worker)
    return None


def find_executor_after_staging(control: Path) -> int | None:
    """Find an executor, once every part of the source is staged."""
    staged = [path for path in control.glob(".staging_*/*.staged") if begins(path, ARROW)]
    if len(staged) < STAGED_FILES or any(find_writer(path) for path in staged):
        return None
    found = (find_executor(int(folder.name)) for folder in Path("/proc").glob("[0-9]*"))
    return next((pid for pid in found if pid), None)


@contextmanager
def kill_executor(find: Callable[[], int | None]) -> Iterator[Callable[[], bool]]:
    """Kill the first executor that is found."""
    done, killed = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            executor = find()
            if executor is not None:
                os.kill(executor, signal.SIGKILL)
                killed.set()
                return
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed.is_set
    finally:
        done.set()
        thread.join()


# -------------------- what to merge


def read(path: Path) -> pa.Table:
    return pads.dataset([str(path / name) for name in list_data_files(str(path))]).to_table().sort_by("id")


def merge_with_killed_rewrite(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A file of many row groups is rewritten, all of them, by an executor that does not live to finish it."""
    path = folder / "rewritten"
    ids = pa.array(range(ROWS))
    table = pa.table({"id": ids, "v": pc.cast(ids, pa.string()), "w": pc.multiply(ids, 3)})
    put(str(path / "a.parquet"), table, row_group_size=ROWS // 20)
    frame = spark.range(0, ROWS + 1000, 100).selectExpr("id", "'new' v", "-id w")
    with kill_executor(partial(find_rewriting_executor, folder / ".rewritten.merganser")) as was_killed:
        result = SparkDatasetIO(spark).merge(frame, path, "upsert", "id")
        killed = was_killed()
    after = read(path)
    new = after.filter(pc.equal(after.column("v"), "new"))
    return {
        "killed": killed,
        "counts": [result.inserted, result.updated, after.num_rows],
        "files": len(list_data_files(str(path))),
        "right": pc.all(pc.equal(pc.add(new.column("w"), new.column("id")), 0)).as_py() and new.num_rows,
        "kept": pc.count_distinct(after.column("id")).as_py(),
        "left": [one.name for one in (folder / ".rewritten.merganser").glob(".staging_*")],
    }


def random_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return other keys each time it is asked."""
    for batch in batches:
        noise = os.urandom(8 * batch.num_rows)
        yield pa.record_batch([pa.array(memoryview(noise).cast("q")), batch.column(0)], names=["id", "v"])


def merge_random_source(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Every evaluation of the source gives other keys, and what an executor held of it is lost between stages."""
    path = folder / "random"
    io = SparkDatasetIO(spark)
    io._broadcast_limit = -1
    io.merge(pa.table({"id": pa.array([0, 1], pa.int64()), "v": pa.array([0, 1], pa.int64())}), path, key_columns="id")
    frame = spark.range(0, SOURCE, 1, STAGED_FILES - 1).mapInArrow(random_rows, "id long, v long")
    known = spark.range(0, 2, 1, 1).select("id", F.lit(7).cast("long").alias("v"))
    with kill_executor(partial(find_executor_after_staging, folder / ".random.merganser")) as was_killed:
        result = io.merge(frame.unionAll(known), path, "upsert", "id", audit=True)
        killed = was_killed()
    after = read(path)
    assert result.audit is not None
    changed = sorted(result.audit.column("id").to_pylist())
    return {
        "killed": killed,
        "counts": [result.inserted, result.updated, after.num_rows],
        "every row once": sorted(set(after.column("v").to_pylist())) == list(range(SOURCE)),
        "one evaluation": changed == after.column("id").to_pylist(),
    }


def run_pipeline(spark: SparkSession, folder: Path) -> list[list[int]]:
    """A day of postings goes through the whole pipeline."""
    write_day(str(folder / "feed"), date(2026, 1, 5), POSTINGS)
    outcome = run(load_demo(folder), spark=spark, run_id="day")
    return [[step.rows_in, step.rows_merged, step.inserted] for step in outcome.steps]


def locate_package(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import merganser  # noqa: PLC0415  on the executor

    for batch in batches:
        yield pa.record_batch([pa.repeat(merganser.__file__, batch.num_rows)], names=["path"])


def merge_without_package(spark: SparkSession, folder: Path) -> list[str]:
    """Executors without the package are reported before anything is written."""
    try:
        SparkDatasetIO(spark).merge(spark.range(1), folder / "lacking", "upsert", "id")
    except MissingExtraError as error:
        return [str(error), *sorted(path.name for path in folder.iterdir())]
    return []


def main(folder: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = start_session(folder / "bare")
    found: dict[str, Any] = {"lacking": merge_without_package(spark, folder)}
    ship(spark)
    found |= {"package": spark.range(2).mapInArrow(locate_package, "path string").distinct().toArrow().to_pylist()}
    found["rewrite"] = merge_with_killed_rewrite(spark, folder)
    found["random"] = merge_random_source(spark, folder)
    found["pipeline"] = run_pipeline(spark, folder / "postings")
    spark.stop()
    print(json.dumps(found))  # noqa: T201  the parent process reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
