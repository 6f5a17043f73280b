"""docs/errors.md lists every error class, and each error has the message shown there."""

from __future__ import annotations

import builtins
import errno
import inspect
import json
import os
import re
import shutil
import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from tests.support import FIXTURES, get_spark_session, put, put_int96

import merganser as mg
from merganser import core, engines, errors
from merganser.core.columnar import arrow_versions
from merganser.core.commit import staged_files as staged
from merganser.core.dataset.snapshot import check_listing
from merganser.core.merge.attempt import Stager
from merganser.core.rows.key_scan import OpenFile
from merganser.core.rows.table_source import TableMatches
from merganser.core.storage import check_platform
from merganser.core.storage.lease import Lease
from merganser.core.storage.local import LocalStore
from merganser.core.storage.lock import hold_lock
from merganser.core.storage.remote import RemoteStore
from merganser.errors import MerganserError
from merganser.graph import EdgeType, Endpoint, GraphDatabase, GraphSchema, NodeType
from merganser.pipeline import Check, Dataset, Pipeline, RunOutcome, Source, load, run

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ROW = re.compile(r"^\| `(\w+)`(?:, an? `(\w+)`)? \| (.+?) \| `(.+?)` \| (.+?) \|$", re.MULTILINE)
ORDERS = "lake/orders"
SPARK = {"QualityError", "AccountingError", "PipelineError"}


def upsert(rows: dict[str, Any], path: str = ORDERS, **options: Any) -> mg.MergeResult:
    """Merge rows on `id` with PyArrow."""
    return mg.merge(pa.table(rows), path, **{"key_columns": "id", "engine": "arrow", **options})


def graph(**options: Any) -> GraphDatabase:
    """Two people with one name, and one company."""
    db = GraphDatabase("graph.db", **options)
    for name in ("Ada", "Ada"):
        db.create_node("Person", {"name": name})
    db.create_node("Company", {"name": "Acme"})
    return db


# What provokes each row of the page, class by class and in its order. They run in a folder that holds the dataset
# `lake/orders`: the columns id (int32, 1 to 3), status and day, of which day is the partition column.


def unknown_strategy(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1]}, strategy="upsrt")


def no_exclusive_creation(_: pytest.MonkeyPatch) -> None:
    filesystem = ArrowFSWrapper(pafs.SubTreeFileSystem(str(Path.cwd()), pafs.LocalFileSystem()))
    upsert({"id": [1]}, path="new/orders", filesystem=filesystem)


def not_together(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1]}, strategy="insert", update_columns="status")


def no_source(_: pytest.MonkeyPatch) -> None:
    mg.merge("feed/*.csv", ORDERS, key_columns="id")


def two_sources(_: pytest.MonkeyPatch) -> None:
    mg.merge(pa.table({"id": [1]}), ORDERS, data=pa.table({"id": [1]}), key_columns="id")


def neither_source_nor_data(_: pytest.MonkeyPatch) -> None:
    mg.merge(path=ORDERS, key_columns="id")


def clauses(rows: dict[str, Any]) -> Any:
    """Begin a merge by clauses with PyArrow."""
    return mg.merge_into(ORDERS, pa.table(rows), "id", engine="arrow", batch_id="one")


def no_expression(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1], "status": ["paid"]}).when_matched_delete("s.status = ").execute()


def no_such_column_in_an_expression(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1], "status": ["paid"]}).when_matched_delete("s.state = 'paid'").execute()


def no_function_of_one_row(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1]}).when_matched_delete("random() < 0.5").execute()


def unreachable_clause(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1]}).when_matched_delete().when_matched_update({"status": "'paid'"}).execute()


def updated_key(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1]}).when_matched_update({"id": "s.id + 1"}).execute()


def failing_expression(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1], "n": ["x"]}).when_matched_delete("CAST(s.n AS INTEGER) = 1").execute()


def clauses_of_several_rows(_: pytest.MonkeyPatch) -> None:
    rows = {"id": [1, 1], "status": ["sent", "paid"]}
    clauses(rows).when_matched_update({"status": "s.status"}, where="s.status <> 'new'").execute()


def no_condition_but_a_number(_: pytest.MonkeyPatch) -> None:
    clauses({"id": [1], "n": [1]}).when_matched_delete("s.n").execute()


def no_merge(_: pytest.MonkeyPatch) -> None:
    mg.sql("MERGE INTO 'lake/orders' AS t USING s ON t.id = s.id\nWHEN NOT MATCHED THEN UPDATE SET status = s.status")


def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("far_engine.py").write_text("import pyspark_of_the_future\n", "utf-8")
    monkeypatch.syspath_prepend(".")
    monkeypatch.setitem(engines.ENGINES, "spark", engines._Entry("far_engine", "IO", "merganser[spark]"))
    upsert({"id": [1]}, engine="spark")


def no_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    upsert({"id": [1]}, path="s3://bucket/orders")


def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    from merganser.engines.spark.java import check_java  # noqa: PLC0415  PySpark is slow to import

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    check_java()


def windows(_: pytest.MonkeyPatch) -> None:
    check_platform("win32")


def other_executors(_: pytest.MonkeyPatch) -> None:
    from merganser.engines.spark.package_probe import find_versions  # noqa: PLC0415  as above
    from merganser.engines.spark.versions import compare_versions  # noqa: PLC0415  as above

    here = find_versions()
    compare_versions(here, {**here, "packages": {**here["packages"], "pyarrow": "1.0.0"}})


def no_key_column(_: pytest.MonkeyPatch) -> None:
    upsert({"number": [1], "status": ["new"], "day": ["mon"]})


def null_key(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1, None], "status": ["new", "new"], "day": ["mon", "mon"]})


def repeated_key(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1, 1], "status": ["new", "paid"], "day": ["mon", "mon"]})


def repeated_key_of_an_update(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1, 1], "status": ["new", "paid"], "day": ["mon", "mon"]}, strategy="update")


def repeated_key_of_clauses(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["new"], "day": ["mon"]})
    source = pa.table({"id": [1, 1], "status": ["new", "paid"]})
    mg.merge_into("lake/orders", source, on="id").when_matched_update({"status": "s.status"}).execute()


def other_columns(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "state": ["new"], "day": ["mon"]})


def files_differ(_: pytest.MonkeyPatch) -> None:
    put("lake/mixed/a.parquet", pa.table({"id": [1]}))
    put("lake/mixed/b.parquet", pa.table({"id": pa.array([2], pa.int32())}))
    upsert({"id": [1]}, "lake/mixed")


def no_column_to_widen(_: pytest.MonkeyPatch) -> None:
    mg.alter("lake/orders", widen={"prize": "int64"})


def a_type_that_loses_values(_: pytest.MonkeyPatch) -> None:
    mg.alter("lake/orders", widen={"status": "int64"})


def files_disagree(_: pytest.MonkeyPatch) -> None:
    put("lake/mixed/a.parquet", pa.table({"id": [1]}))
    put("lake/mixed/b.parquet", pa.table({"id": ["one"]}))
    upsert({"id": [1]}, "lake/mixed")


def other_type(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": [7], "day": ["mon"]})


def nested_key(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [[1]]}, "lake/nested")


def deep_column(_: pytest.MonkeyPatch) -> None:
    kind = pa.int64()
    for _level in range(99):
        kind = pa.struct([("a", kind)])
    mg.merge(pa.table({"id": [1], "v": pa.nulls(1, kind)}), "lake/nested", key_columns="id")


def too_large(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [2**31], "status": ["new"], "day": ["mon"]})


def null_fixed_size_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_versions, "PYARROW", 25)
    upsert({"id": [1], "v": pa.array([None], pa.list_(pa.int64(), 2))}, "lake/vectors")


def unknown_operation(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["new"], "day": ["mon"], "op": ["x"]}, operation_column="op")


def empty_partition(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [9], "status": ["new"], "day": [""]})


def out_of_scope(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["new"], "day": ["mon"]}, strategy="full_merge", scope={"day": "tue"})


def moves(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["new"], "day": ["tue"]})


def a_file(_: pytest.MonkeyPatch) -> None:
    put("lake/orders.parquet", pa.table({"id": [1]}))
    upsert({"id": [1]}, "lake/orders.parquet")


def dataset_below(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1]}, "lake", strategy="full_merge")


def dataset_above(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1]}, "lake/orders/day=mon")


def two_mounts(_: pytest.MonkeyPatch) -> None:
    Path("lake/orders/.orders.merganser").mkdir()
    upsert({"id": [1]})


def no_dataset(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1]}, "lake/order", strategy="update")


def delta_table(_: pytest.MonkeyPatch) -> None:
    Path("lake/orders/_delta_log").mkdir()
    Path("lake/orders/_delta_log/00000000000000000000.json").write_text("{}", "utf-8")
    upsert({"id": [1]})


def nothing_there(_: pytest.MonkeyPatch) -> None:
    mg.DuckDBDatasetIO().read("lake/order")


def cut_short(_: pytest.MonkeyPatch) -> None:
    Path("lake/orders/day=mon/cut.parquet").write_bytes(b"PAR1")
    upsert({"id": [1], "status": ["new"], "day": ["mon"]})


def bad_source(_: pytest.MonkeyPatch) -> None:
    Path("monday.csv").write_text("id,status\n1\n", "utf-8")
    mg.merge("monday.csv", ORDERS, key_columns="id")


def not_of_its_type(_: pytest.MonkeyPatch) -> None:
    Path("monday.csv").write_text("id,status\n1,new\nNA,new\n", "utf-8")
    mg.merge("monday.csv", ORDERS, key_columns="id", column_types={"id": "BIGINT"})


def too_many_digits(_: pytest.MonkeyPatch) -> None:
    Path("monday.csv").write_text("id,status\n12345678901234567890,new\n", "utf-8")
    mg.merge("monday.csv", ORDERS, key_columns="id")


def no_such_column_type(_: pytest.MonkeyPatch) -> None:
    mg.merge("monday.csv", ORDERS, key_columns="id", column_types={"id": "number"})


def no_condition(_: pytest.MonkeyPatch) -> None:
    mg.read(ORDERS, where="statu = 'new'")


def bare_parquet(_: pytest.MonkeyPatch) -> None:
    put("lake/orders/day=mon/part-0", pa.table({"id": [1]}))
    upsert({"id": [1], "status": ["new"], "day": ["mon"]})


def old_timestamps(_: pytest.MonkeyPatch) -> None:
    shutil.copytree(FIXTURES / "arrow21_int96_far", "lake/old")
    mg.PyArrowDatasetIO().read("lake/old")


def far_timestamp(_: pytest.MonkeyPatch) -> None:
    put_int96("lake/old/a.parquet", [2_440_588, 2**31 - 1])
    instants = pa.array([0], pa.timestamp("us", "UTC"))
    upsert({"id": [0], "ts": instants}, "lake/old")


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 4096 failed")

    monkeypatch.setattr(OpenFile, "read", fail)
    upsert({"id": [1], "status": ["sent"], "day": ["mon"]})


def no_memory_in_duckdb(_: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"memory_limit": "1MB", "threads": 1, "max_temp_directory_size": "0MB"}
    many = range(100_000)
    rows = pa.table(
        {"id": pa.array(many, pa.int32()), "status": [str(row) for row in many], "day": ["mon"] * len(many)}
    )
    mg.DuckDBDatasetIO(duckdb.connect(config=config)).merge(rows, ORDERS, key_columns="id")


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(_: LocalStore, path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(LocalStore, "create", create)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_folder(_: LocalStore, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{path}/new")

    monkeypatch.setattr(LocalStore, "make_folder", make_folder)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def not_publishable(monkeypatch: pytest.MonkeyPatch) -> None:
    def access(path: str, _: int) -> bool:
        return not path.endswith("day=mon")

    monkeypatch.setattr(os, "access", access)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(_: LocalStore, folder: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(LocalStore, "list_names", names)
    mg.history(ORDERS)


def held_dataset(_: pytest.MonkeyPatch) -> None:
    with hold_lock(LocalStore(), "lake/.orders.merganser", ORDERS, 1):
        upsert({"id": [1], "status": ["paid"], "day": ["mon"]}, lock_timeout=0.1)


def changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def interfere(target: Any) -> None:
        put("lake/orders/day=mon/stranger.parquet", pa.table({"id": [7]}))
        check_listing(target)

    monkeypatch.setattr(staged, "check_listing", interfere)
    mg.write_dataset(pa.table({"id": [1], "day": ["mon"]}), ORDERS, mode="overwrite")


def altered_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Stager.stage_early

    def stage_early(self: Stager[Any]) -> Any:
        attempt = original(self)
        mg.alter(ORDERS, widen={"id": "decimal128(20, 0)"})
        return attempt

    monkeypatch.setattr(Stager, "stage_early", stage_early)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def changed_after_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LocalStore.write_small

    def write_small(self: LocalStore, path: str, data: bytes) -> None:
        original(self, path, data)
        for file in Path("lake/orders/day=mon").iterdir():
            put(str(file), pa.table({"id": [7]}))

    monkeypatch.setattr(LocalStore, "write_small", write_small)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Lease, display: str, original: Any = Lease.check) -> None:
        self._store.remove(self._get_path(self.number))
        original(self, display)

    monkeypatch.setattr(Lease, "check", lose)
    upsert({"id": [1]}, path="memory://lake/orders")


def taken_over_before_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: RemoteStore, path: str, data: bytes) -> bool:
        mine = original(self, path, b"abandoned by another" if path.endswith("/journal.json") else data)
        return mine and not path.endswith("/journal.json")

    original = RemoteStore.create_exclusively
    monkeypatch.setattr(RemoteStore, "create_exclusively", create)
    upsert({"id": [1]}, path="memory://lake/orders")


def no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: RemoteStore, path: str, data: bytes, original: Any = RemoteStore.create_exclusively) -> Any:
        if path.endswith("/journal.json"):
            raise ConnectionError("the network is gone")
        return original(self, path, data)

    monkeypatch.setattr(RemoteStore, "create_exclusively", create)
    upsert({"id": [1]}, path="memory://lake/orders")


def staged_file_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_small(self: LocalStore, path: str, data: bytes, original: Any = LocalStore.write_small) -> None:
        original(self, path, data)
        for file in Path(path).parent.glob("*.staged") if path.endswith("/journal.json") else ():
            if file.name != "mark.staged":
                file.unlink()

    monkeypatch.setattr(LocalStore, "write_small", write_small)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def nothing_retained(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})
    mg.undo(ORDERS)


def nothing_to_undo(_: pytest.MonkeyPatch) -> None:
    shutil.rmtree("lake/.orders.merganser/history")
    mg.undo(ORDERS)


def rows_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TableMatches.stage

    def stage(*arguments: Any) -> Any:
        rewritten, appended = original(*arguments)
        return rewritten, [*appended, *appended]

    monkeypatch.setattr(TableMatches, "stage", stage)
    upsert({"id": [9], "status": ["new"], "day": ["mon"]})


def not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalStore, "replace", replace)
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]})


def old_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merganser.engines.duckdb.connection.detect_version", lambda _: (1, 3, 2))
    upsert({"id": [1], "status": ["paid"], "day": ["mon"]}, engine="duckdb", use_merge=True)


def no_keys(_: pytest.MonkeyPatch) -> None:
    core.plan_incremental_rewrite(ORDERS, {"id": [1]}, "id")


def short_key(_: pytest.MonkeyPatch) -> None:
    core.plan_incremental_rewrite(ORDERS, [(1, "mon"), (2,)], ["id", "day"])


def no_file_has_the_key(_: pytest.MonkeyPatch) -> None:
    core.confirm_affected_files(core.list_dataset_files(ORDERS), "number", [1])


def keys_of_two_types(_: pytest.MonkeyPatch) -> None:
    core.plan_incremental_rewrite(ORDERS, [1, "2"], "id")


def not_staged(_: pytest.MonkeyPatch) -> None:
    with core.IncrementalFileManager() as manager:
        manager.create_staging_directory(ORDERS)
        manager.atomic_replace_files(put("lake/new.parquet", pa.table({"id": [1]})), f"{ORDERS}/day=mon/a.parquet")


def two_onto_one(_: pytest.MonkeyPatch) -> None:
    with core.IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(ORDERS)
        new = [put(f"{folder}/{name}", pa.table({"id": [1]})) for name in "ab"]
        manager.atomic_replace_files(new, [f"{ORDERS}/day=mon/a.parquet"] * 2)


def not_published_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalStore, "replace", replace)
    with core.IncrementalFileManager() as manager:
        folder = manager.create_staging_directory(ORDERS)
        new = put(f"{folder}/new", pa.table({"id": [1]}))
        for _attempt in range(2):
            try:
                manager.atomic_replace_files(new, f"{ORDERS}/day=mon/a.parquet")
            except core.DatasetMergeError as error:
                if "was journaled" not in str(error):
                    raise


def two_match(_: pytest.MonkeyPatch) -> None:
    graph().merge_node("Person", {"name": "Ada"}, warn_on_missing_index=False)


def no_node(_: pytest.MonkeyPatch) -> None:
    graph().merge_edge(1, "KNOWS", 99)


def no_nodes(_: pytest.MonkeyPatch) -> None:
    ada, acme = Endpoint("Person", {"name": "person"}), Endpoint("Company", {"name": "company"})
    rows = [{"person": "Eve", "company": "Acme"}]
    options: dict[str, Any] = {"from_node": ada, "to_node": acme, "warn_on_missing_index": False}
    GraphDatabase(":memory:").bulk_merge_edges("WORKS_AT", rows, **options)


def has_edges(_: pytest.MonkeyPatch) -> None:
    db = GraphDatabase(":memory:")
    ada = db.create_node("Person", {"name": "Ada"}).id
    db.create_edge(ada, "KNOWS", ada)
    rows = [{"name": "Eve"}]
    db.bulk_merge_nodes("Person", rows, match_on="name", missing="delete", warn_on_missing_index=False)


def no_edge(_: pytest.MonkeyPatch) -> None:
    graph().update_edge(7, {"since": 2026})


def duplicates(_: pytest.MonkeyPatch) -> None:
    graph().create_property_index("Person", "name", unique=True)


def not_unique(_: pytest.MonkeyPatch) -> None:
    db = graph()
    db.create_property_index("Company", "name", unique=True)
    db.create_node("Company", {"name": "Acme"})


def not_in_the_schema(_: pytest.MonkeyPatch) -> None:
    schema = GraphSchema(nodes={"Person": NodeType(required=["name"])}, edges={"KNOWS": EdgeType()})
    GraphDatabase("graph.db", schema=schema).create_node("Person", {"nickname": "Ada"})


def no_such_type(_: pytest.MonkeyPatch) -> None:
    graph().create_node("Person", {"photo": b"..."})


def not_finite(_: pytest.MonkeyPatch) -> None:
    graph().create_node("Person", {"height": float("nan")})


def no_supported_query(_: pytest.MonkeyPatch) -> None:
    graph().query("MATCH (p:Job) WITH p RETURN p")


def too_large_a_query(_: pytest.MonkeyPatch) -> None:
    graph().nodes("Job").where({f"p{number}": 1 for number in range(1200)}).exec()


def no_graph(_: pytest.MonkeyPatch) -> None:
    Path("notes.txt").write_text("This is no database." * 100, "utf-8")
    GraphDatabase("notes.txt")


def kept_locked(_: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        db = stack.enter_context(graph(timeout=0.1))
        other = sqlite3.connect("graph.db", isolation_level=None)
        stack.callback(other.close)
        other.execute("BEGIN IMMEDIATE")
        db.create_node("Person", {"name": "Eve"})


def closed(_: pytest.MonkeyPatch) -> None:
    db = graph()
    db.close()
    db.create_node("Person", {"name": "Eve"})


def misspelt_key(_: pytest.MonkeyPatch) -> None:
    text = '[pipeline]\nname = "jobs"\nstate = "state"\n[[source]]\nname = "postings"\npaht = "feed/*.json"\n'
    Path("jobs.toml").write_text(text, "utf-8")
    load("jobs.toml")


def no_parameter(_: pytest.MonkeyPatch) -> None:
    Path("jobs.toml").write_text('[pipeline]\nname = "jobs"\nstate = "state"\nparameters = ["date"]\n', "utf-8")
    load("jobs.toml")


def pipeline(**source: Any) -> RunOutcome:
    """Run a pipeline whose one of two rows fails its check."""
    Path("feed.json").write_text('{"url": "/1", "pay": 1}\n{"url": "/2", "pay": -1}\n', "utf-8")
    given = {"name": "postings", "path": "feed.json", "format": "json", "schema": "url STRING, pay INT", **source}
    configuration = Pipeline(
        name="jobs",
        state="state",
        source=[Source(**given)],
        check=[Check(name="pay is positive", source="postings", rule="pay > 0")],
        dataset=[Dataset(name="jobs", source="postings", path="lake/jobs", key_columns="url")],
    )
    return run(configuration, spark=get_spark_session())


def too_many_fail(_: pytest.MonkeyPatch) -> None:
    pipeline(fail_above=0.1)


def spark_fails(_: pytest.MonkeyPatch) -> None:
    pipeline(derive={"yearly": "raise_error('no rate')"})


def rows_not_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    balanced = RunOutcome.unbalanced

    def unbalanced(self: RunOutcome) -> list[str]:
        facts = json.loads(self.to_json())
        facts["steps"][0]["rows_quarantined"] = 0
        return balanced(RunOutcome.from_dict(facts))

    monkeypatch.setattr(RunOutcome, "unbalanced", unbalanced)
    pipeline()


DEEP = "[" * 20_000 + "]" * 20_000


def deep_source(_: pytest.MonkeyPatch) -> None:
    Path("monday.json").write_text(f'{{"id": {DEEP}}}', "utf-8")
    mg.merge("monday.json", ORDERS, key_columns="id", engine="arrow")


def unbalanced_source(_: pytest.MonkeyPatch) -> None:
    Path("monday.json").write_text('{"id": 1}]', "utf-8")
    mg.merge("monday.json", ORDERS, key_columns="id", engine="arrow")


def deep_record(_: pytest.MonkeyPatch) -> None:
    (record,) = Path("lake/.orders.merganser/history").iterdir()
    record.write_text(DEEP, "utf-8")
    mg.history(ORDERS)


def no_journal(_: pytest.MonkeyPatch) -> None:
    staging = Path("lake/.orders.merganser/.staging_0123456789abcdef0123456789abcdef")
    staging.mkdir()
    (staging / "journal.json").write_text("{}", "utf-8")
    mg.recover(ORDERS)


def no_json(_: pytest.MonkeyPatch) -> None:
    graph().close()
    connection = sqlite3.connect("graph.db")
    connection.execute("UPDATE nodes SET properties = ?", [DEEP])
    connection.commit()
    connection.close()
    with GraphDatabase("graph.db") as db:
        db.get_node(1)


def deep_list(_: pytest.MonkeyPatch) -> None:
    Path("jobs.toml").write_text(f"pipeline = {DEEP}", "utf-8")
    load("jobs.toml")


def deep_table(_: pytest.MonkeyPatch) -> None:
    Path("jobs.toml").write_text(f"pipeline.{'.'.join('a' * 5000)} = 1", "utf-8")
    load("jobs.toml")


def no_state(_: pytest.MonkeyPatch) -> None:
    mg.read(ORDERS, as_of="yesterday")


def no_keys_to_compare(_: pytest.MonkeyPatch) -> None:
    mg.write_dataset({"id": [1]}, "lake/sales")
    mg.changes("lake/sales", 0)


def repeated_key_of_changes(_: pytest.MonkeyPatch) -> None:
    upsert({"id": [1], "status": ["paid"]}, strategy="update", update_columns="status", retain=1)
    mg.changes(ORDERS, 1, "day")


def key_of_now(_: pytest.MonkeyPatch) -> None:
    mg.alter(ORDERS, rename={"id": "number"}, retain=1)
    mg.changes(ORDERS, 1, "number")


def type_of_now(_: pytest.MonkeyPatch) -> None:
    rows = {"id": [1], "status": [1], "day": ["mon"]}
    mg.write_dataset(rows, ORDERS, mode="overwrite", partition_columns="day", retain=1)
    mg.changes(ORDERS, 1, "id")


def state_not_retained(_: pytest.MonkeyPatch) -> None:
    mg.read(ORDERS, as_of=9)


def changed_beside_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merganser.core.commit.snapshots._try_to_fill", lambda *_: False)
    mg.snapshot(ORDERS).__enter__()


PROVOKED: dict[str, list[Callable[[pytest.MonkeyPatch], object]]] = {
    "InvalidArgumentError": [
        unknown_strategy,
        no_exclusive_creation,
        not_together,
        no_source,
        two_sources,
        neither_source_nor_data,
        no_expression,
        no_such_column_in_an_expression,
        no_function_of_one_row,
        unreachable_clause,
        updated_key,
        failing_expression,
        no_keys,
        short_key,
        not_staged,
        two_onto_one,
        no_such_column_type,
        no_condition,
        no_state,
        no_keys_to_compare,
        no_supported_query,
        too_large_a_query,
    ],
    "SqlError": [no_merge],
    "MissingExtraError": [no_package, no_filesystem, no_java, other_executors, windows],
    "KeyColumnError": [no_key_column, null_key, key_of_now, no_file_has_the_key],
    "DuplicateKeyError": [
        repeated_key,
        repeated_key_of_clauses,
        repeated_key_of_an_update,
        clauses_of_several_rows,
        repeated_key_of_changes,
    ],
    "SchemaMismatchError": [other_columns, files_differ, files_disagree, no_column_to_widen],
    "ColumnTypeError": [
        a_type_that_loses_values,
        other_type,
        no_condition_but_a_number,
        type_of_now,
        keys_of_two_types,
    ],
    "UnsupportedTypeError": [nested_key, deep_column],
    "ColumnValueError": [too_large, null_fixed_size_list, unknown_operation, not_of_its_type, too_many_digits],
    "PartitionValueError": [empty_partition, out_of_scope],
    "PartitionMoveError": [moves],
    "TargetPathError": [a_file, dataset_below, dataset_above, two_mounts, no_dataset, nothing_there],
    "UnreadableFileError": [cut_short, bad_source, deep_source, unbalanced_source, deep_record, no_journal],
    "UnsupportedFileError": [bare_parquet, delta_table, old_timestamps, far_timestamp],
    "OutOfMemoryError": [no_memory, no_memory_in_duckdb],
    "StagingError": [full_disk],
    "DatasetPermissionError": [not_allowed, not_publishable, not_readable],
    "LockTimeoutError": [held_dataset],
    "ConcurrentWriteError": [
        *(changed_meanwhile, altered_meanwhile, changed_after_the_decision, taken_over, taken_over_before_the_journal),
        changed_beside_a_snapshot,
    ],
    "UndoError": [nothing_retained, nothing_to_undo],
    "NotRetainedError": [state_not_retained],
    "CountMismatchError": [rows_lost],
    "DatasetMergeError": [not_published, staged_file_missing, no_answer, old_duckdb, not_published_before],
    "MergeConflictError": [two_match],
    "NodeNotFoundError": [no_node, no_nodes],
    "EdgeNotFoundError": [no_edge],
    "UniqueConstraintError": [duplicates, not_unique],
    "GraphSchemaError": [not_in_the_schema],
    "PropertyTypeError": [no_such_type],
    "PropertyValueError": [not_finite],
    "GraphFileError": [no_graph, no_json],
    "GraphLockedError": [kept_locked],
    "GraphError": [closed, has_edges],
    "ConfigurationError": [misspelt_key, no_parameter, deep_list, deep_table],
    "QualityError": [too_many_fail],
    "PipelineError": [spark_fails],
    "AccountingError": [rows_not_accounted_for],
}


def written() -> dict[str, list[tuple[str, str]]]:
    """Read the page: each class with the builtin and the message of each of its rows."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, builtin, _, message, _ in ROW.findall(PAGE.read_text("utf-8")):
        found.setdefault(name, []).append((builtin, message))
    return found


def cases() -> list[Any]:
    return [
        pytest.param(
            getattr(errors, name),
            builtin,
            message,
            provoke,
            id=f"{name}-{provoke.__name__}",
            marks=[pytest.mark.spark] * (name in SPARK),
        )
        for name, rows in written().items()
        for (builtin, message), provoke in zip(rows, PROVOKED.get(name, []), strict=True)
    ]


@pytest.mark.parametrize(("kind", "builtin", "message", "provoke"), cases())
def test_each_error_is_raised_as_documented(
    kind: type[MerganserError],
    builtin: str,
    message: str,
    provoke: Callable[[pytest.MonkeyPatch], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = pa.array([1, 2, 3], pa.int32())
    upsert({"id": ids, "status": ["new"] * 3, "day": ["mon", "mon", "tue"]}, partition_columns="day")
    with pytest.raises(kind) as raised:
        provoke(monkeypatch)
    assert type(raised.value) is kind
    pattern = ".+".join(re.escape(part) for part in message.split("…"))
    assert re.fullmatch(pattern, str(raised.value), re.DOTALL), str(raised.value)
    if builtin:
        assert isinstance(raised.value, getattr(builtins, builtin))
    else:
        assert {base for base in kind.__mro__ if base.__module__ == "builtins"} == {Exception, BaseException, object}


def test_the_page_has_every_error() -> None:
    classes = {
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, MerganserError) and found is not MerganserError
    }
    assert set(written()) == set(PROVOKED) == classes


def test_every_line_of_a_table_is_read() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == sum(map(len, written().values()))
