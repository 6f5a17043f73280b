"""Helpers of many tests: write datasets by hand, read them back, compare them byte for byte."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import struct
import sys
import warnings
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from unittest import mock

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from merganser import DuckDBDatasetIO
from merganser.core.merge.operation import OperationContext
from merganser.core.model.options import Options
from merganser.core.model.schema import is_same_logical_type
from merganser.core.parquet import thrift
from merganser.core.storage.local import LocalStore
from merganser.engines import ENGINES, open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pytest

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.model.result import MergeResult
    from merganser.core.storage.store import Store

AnyDatasetIO: TypeAlias = "DatasetIO"
FIXTURES = Path(__file__).parent / "fixtures"


class DuckDBUnionIO(DuckDBDatasetIO):
    """DuckDB with the fallback instead of MERGE."""

    def merge(self, *arguments: Any, **options: Any) -> MergeResult:
        return super().merge(*arguments, **{"use_merge": False, **options})


QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@cache
def get_spark_session() -> Any:
    """Start the one Spark session of this process: no listening port, no more threads than cores.

    With SPARK_TEST_REMOTE=local[2] it is one of Spark Connect.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  slow to import

    from merganser.engines.spark.java import check_java  # noqa: PLC0415  as above

    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # Else each task waits 40 ms for TCP's delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        # A compiler and a collector that are quick to start: no query here runs for long.
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.log.level": "OFF",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    remote = os.environ.get("SPARK_TEST_REMOTE")
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        # Connect starts its server with these settings and then warns that they cannot be changed.
        warnings.simplefilter("ignore")
        return builder.getOrCreate()


def open_spark() -> AnyDatasetIO:
    from merganser import SparkDatasetIO  # noqa: PLC0415  as above

    return SparkDatasetIO(get_spark_session())


def open_spark_broadcast() -> AnyDatasetIO:
    """Spark with a target that is too large for one task."""
    return decide_here(open_spark())


def decide_here(io: AnyDatasetIO) -> AnyDatasetIO:
    """Let this process decide between the jobs of Spark, as if the target were large: what a test patches is here."""
    from merganser.core.model.engine import TargetSize  # noqa: PLC0415  slow to import

    if runs_on_executors(io):
        io._task_limit = TargetSize(files=-1, rows=-1, bytes=-1)  # type: ignore[attr-defined]
    return io


def open_spark_shuffle() -> AnyDatasetIO:
    """Spark with a source that is too large to broadcast, and whose keys are matched by several tasks."""
    io = open_spark()
    io._broadcast_limit, io._group_rows = -1, 25  # type: ignore[attr-defined]
    return io


ENGINE_OPENERS: dict[str, Callable[[], DatasetIO]] = {
    **{name: partial(open_engine, name) for name in ENGINES if name != "spark"},
    "duckdb-union": DuckDBUnionIO,
    "spark": open_spark,
    "spark-broadcast": open_spark_broadcast,
    "spark-shuffle": open_spark_shuffle,
}


def open_dataset_io(name: str) -> AnyDatasetIO:
    """Open the dataset IO of an engine or of a variant of one."""
    return ENGINE_OPENERS[name]()


def runs_on_executors(io: AnyDatasetIO) -> bool:
    """Return whether rows are read and written outside this process."""
    return get_engine_type(io).__name__ == "SparkEngine"


def put(path: str, table: pa.Table, **options: Any) -> str:
    """Write one Parquet file with PyArrow, making its folder; gives the path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def put_int96(path: str, days: Sequence[int]) -> str:
    """Write a file of an `id` and a `ts` of INT96, the midnights of these Julian days."""
    stored = pa.array([struct.pack("<qi", 0, day) for day in days], pa.binary(12))
    table = pa.table({"id": range(len(days)), "ts": stored})
    put(path, table, store_schema=False, write_statistics=False)
    with edit_footer(path) as tree:
        tree[2][2] = tree[2][2].replace({1: 3, 2: None})
        for group in tree[4]:
            chunk = group[1][1]
            chunk.values[3] = chunk[3].replace({1: 3})
    return path


@contextmanager
def edit_footer(path: str) -> Iterator[thrift.Struct]:
    """Change the footer of a Parquet file in place."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    tree = thrift.read_struct(data[-8 - length : -8])
    yield tree
    footer = thrift.write_struct(tree)
    Path(path).write_bytes(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def load(io: AnyDatasetIO, path: str) -> pa.Table:
    """Read a dataset back as an Arrow table, whichever engine wrote it."""
    return open_engine("arrow").read(path, io.filesystem).to_table()


def read_table(io: AnyDatasetIO, path: str | os.PathLike[str]) -> pa.Table:
    """Read a dataset with the engine's own `read`: an Arrow dataset or a relation."""
    found = io.read(path)
    for name in ("toArrow", "to_arrow_table", "to_table"):
        if hasattr(found, name):
            return getattr(found, name)()
    raise AssertionError(f"{type(found)} cannot be read")


def break_pages(file: str, group: int, column: int, *, kind: str) -> None:
    """Break the data of one column chunk, leaving the footer whole."""
    chunk = pq.read_metadata(file).row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(Path(file).read_bytes())
    end = start + chunk.total_compressed_size
    if kind == "ones":
        data[start:end] = b"\xff" * (end - start)
    elif kind == "zeros":
        data[start:end] = b"\x00" * (end - start)
    else:
        # The page header stays, so that it is the page itself that cannot be read.
        middle = start + 24
        data[middle:end] = b"\xab" * (end - middle)
    Path(file).write_bytes(data)


def read_rows(io: AnyDatasetIO, path: str, order: Sequence[str] = ("id",)) -> list[dict[str, Any]]:
    """Read a dataset back as plain rows in a fixed order."""
    found: list[dict[str, Any]] = load(io, path).to_pylist()
    return sorted(found, key=lambda row: [(row[name] is None, row[name]) for name in order])


def get_engine_type(io: AnyDatasetIO) -> type:
    """Return the class of a dataset IO's engine."""
    with io._open_engine(OperationContext("merge", "t", Options())) as engine:
        return type(engine)


# Where the verbs of each engine are: opened sources, conformed sources, matched sources.
VERB_CLASSES = {
    "arrow": (
        "merganser.engines.arrow:OpenedTable",
        "merganser.engines.arrow:ArrowSource",
        "merganser.core.rows.table_source:TableMatches",
    ),
    "duckdb": (
        "merganser.engines.duckdb.engine:OpenedStream",
        "merganser.engines.duckdb.engine:DuckDBSource",
        "merganser.core.rows.table_source:TableMatches",
    ),
    "spark": (
        "merganser.engines.spark.source:OpenedSource",
        "merganser.engines.spark.broadcast:BroadcastSource",
        "merganser.engines.spark.broadcast:BroadcastMatches",
        "merganser.engines.spark.shuffle:ShuffleSource",
        "merganser.engines.spark.shuffle:ShuffleMatches",
    ),
}


def wrap_verb(
    io: AnyDatasetIO, verb: str, wrap: Callable[[Callable[..., Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a verb of an engine by what `wrap` makes of it."""
    classes = [resolve_name(name) for name in VERB_CLASSES[get_engine_type(io).name]]  # type: ignore[attr-defined]
    owners = [one for one in classes if hasattr(one, verb)]
    assert owners, verb
    for one in owners:
        monkeypatch.setattr(one, verb, wrap(getattr(one, verb)))


def list_data_files(path: str) -> list[str]:
    """List the data files below a folder by their relative paths, in order."""
    root = Path(path)
    return sorted(str(file.relative_to(root)) for file in root.rglob("*.parquet"))


def read_everywhere(path: str) -> list[dict[str, Any]]:
    """Read the data files of a local dataset with PyArrow, DuckDB and Polars, without options (E1).

    All files must have one schema, whose copies in the footers agree with it (E6), and all readers the same rows.
    """
    files = [f"{path}/{name}" for name in list_data_files(path)]
    schemas = {pq.read_schema(file).remove_metadata() for file in files}
    assert len(schemas) == 1, schemas
    for file in files:
        check_schema_copies(file, schemas.copy().pop())
    with duckdb.connect() as connection:
        relation = connection.read_parquet(files, hive_partitioning=False).to_arrow_table()
    tables = {
        "pyarrow": pa.concat_tables([pq.ParquetFile(file).read() for file in files]),
        "duckdb": relation,
        "polars": pl.read_parquet(files, hive_partitioning=False).to_arrow(),
    }
    rows = {reader: sorted(table.to_pylist(), key=repr) for reader, table in tables.items()}
    assert rows["duckdb"] == rows["pyarrow"]
    assert rows["polars"] == rows["pyarrow"]
    return rows["pyarrow"]


def check_schema_copies(file: str, schema: pa.Schema) -> None:
    """Assert that the copies of the schema in a footer have its columns (E6)."""
    stored = pq.read_metadata(file).metadata or {}
    if b"ARROW:schema" in stored:
        copy = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored[b"ARROW:schema"])))
        assert copy.names == schema.names
        assert [is_same_logical_type(*pair) for pair in zip(copy.types, schema.types, strict=True)] == [True] * len(
            copy
        )
    if b"pandas" in stored:
        assert {one["field_name"] for one in json.loads(stored[b"pandas"])["columns"]} <= {*schema.names}
    spark = stored.get(b"org.apache.spark.sql.parquet.row.metadata")
    assert spark is None or [one["name"] for one in json.loads(spark)["fields"]] == schema.names


def copy_fixture(name: str, lake: str) -> str:
    """Copy a dataset that Spark wrote; gives the copy's path."""
    return shutil.copytree(FIXTURES / name, f"{lake}/{name}")


def read_fixture_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a dataset that Spark wrote, as `expected.json` spells them."""
    found: list[dict[str, Any]] = json.loads((FIXTURES / "expected.json").read_text("utf-8"))[name]["rows"]
    return found


def snapshot(path: str) -> dict[str, bytes]:
    """Return every file below a folder with its bytes, but for snapshots; an absent folder has none."""
    found = {}
    for folder, folders, names in os.walk(path):
        # A snapshot that `read` made is removed as soon as what it returned is collected.
        folders[:] = [name for name in folders if name != "snapshots"]
        for file in (Path(folder, name) for name in names):
            found[str(file.relative_to(path))] = file.read_bytes()
    return dict(sorted(found.items()))


def snapshot_without_locks(lake: str) -> dict[str, bytes]:
    """Return every file of datasets and control folders with its bytes, but for locks."""
    return {name: data for name, data in snapshot(lake).items() if not name.endswith(".merganser/lock")}


def assert_unchanged(path: str) -> AbstractContextManager[None]:
    """Assert that a dataset is byte-identical after the block, which may fail as it likes inside."""

    @contextmanager
    def check() -> Iterator[None]:
        before = snapshot(path)
        yield
        assert snapshot(path) == before
        control = Path(path).parent / f".{Path(path).name}.merganser"
        assert not list(control.glob(".staging_*"))

    return check()


@contextmanager
def record_opened_files(store: type[Store] = LocalStore) -> Iterator[list[str]]:
    """List the names of the data files that a store opens in the block, in no order."""
    names: list[str] = []
    original = store.open_input

    def note(self: Store, path: str) -> pa.NativeFile:
        names.append(path.rpartition("/")[2])
        return original(self, path)

    with mock.patch.object(store, "open_input", note):
        yield names


def to_plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values that lose nothing: times of every unit as integers, UUIDs as bytes."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in to_plain_values(chunk)]
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        return to_plain_values(column.dictionary_decode())
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64())
    elif pa.types.is_struct(kind):
        fields = [to_plain_values(child) for child in column.flatten()]
        names = [field.name for field in kind]
        return [
            dict(zip(names, values, strict=True)) if valid else None
            for valid, *values in zip(column.is_valid().to_pylist(), *fields, strict=True)
        ]
    elif pa.types.is_nested(kind):
        return [to_plain_values(value.values) if value.is_valid else None for value in column]
    found: list[Any] = column.to_pylist()
    return found


def to_plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return a table as rows of plain values, in their order."""
    columns = {name: to_plain_values(table.column(name)) for name in table.column_names}
    return [{name: values[row] for name, values in columns.items()} for row in range(table.num_rows)]


class _MakesFolder:
    """What makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def make_hostile_cell(folder: Path) -> str:
    """Return a string that creates the folder if it is unpickled, inside a forged error of merganser."""
    made = base64.b64encode(pickle.dumps(_MakesFolder(str(folder)))).decode()
    forged = base64.b64encode(b'{"class": "LockTimeoutError", "fields": ["forged"]}').decode()
    return f"merganser-error:{made}: merganser-error:{'0' * 64}:{made}: merganser-error:{'0' * 64}:{forged}:"


class VaultFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory behind a password in the URL, as with FTP; call `open_vault` first."""

    protocol = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, username: str = "", password: str = "", **options: Any) -> None:
        super().__init__(**options)
        if (username, password) != ("ada", SECRET):
            raise PermissionError(f"vault://{username}:{password}@host lets nobody in")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = path.removeprefix("vault://")
        return "/" + path[path.rfind("@") + 1 :].strip("/") if path.strip("/") else ""

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        username, _, password = path.removeprefix("vault://").partition("@")[0].partition(":")
        return {"username": username, "password": password}


SECRET = "s3cr3t"  # noqa: S105  of nothing


def open_vault() -> str:
    """Empty the vault, and give the URL of a folder in it."""
    fsspec.register_implementation("vault", VaultFileSystem, clobber=True)
    VaultFileSystem.store.clear()
    VaultFileSystem.pseudo_dirs[:] = [""]
    return f"vault://ada:{SECRET}@host/lake"
