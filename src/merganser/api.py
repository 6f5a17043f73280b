"""The calls of an engine's `DatasetIO`, with the engine chosen by name, and `read`.

Signatures and `Args:` of `merge`, `plan` and `write_dataset` are written by scripts/options.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from merganser.core.model.options import pick_options, suggest_names
from merganser.core.storage.location import locate
from merganser.core.storage.lock import LOCK_TIMEOUT
from merganser.engines import open_engine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from merganser.core.commit.states import AsOf
    from merganser.core.merge.builder import MergeBuilder
    from merganser.core.merge.driver import WriteMode
    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.merge.operation import MergeOptions
    from merganser.core.model.options import NullKeys, PartitionMove, RepeatedKeys, SchemaMode, UpdateMode
    from merganser.core.model.result import AlterResult, MergeResult, WriteResult
    from merganser.core.model.strategy import MergeStrategy
    from merganser.progress import ProgressCallback


DEFAULT_ENGINE = "auto"


@suggest_names
def merge(
    source: Any = None,
    path: str | os.PathLike[str] = "",
    strategy: MergeStrategy = "upsert",
    key_columns: Sequence[str] | str = (),
    *,
    engine: str = DEFAULT_ENGINE,
    data: Any = None,
    partition_columns: Sequence[str] | str | None = None,
    filesystem: Any = None,
    compression: str = "snappy",
    max_rows_per_file: int = 5_000_000,
    row_group_size: int = 500_000,
    partition_by: Sequence[str] | str | None = None,
    column_types: Mapping[str, str | pa.DataType] | None = None,
    null_values: Sequence[str] | str | None = None,
    schema_mode: SchemaMode = "strict",
    null_keys: NullKeys = "refuse",
    update_columns: Sequence[str] | str | None = None,
    update_mode: UpdateMode = "all",
    insert_columns: Sequence[str] | str | None = None,
    dedup_order_by: Sequence[str] | str | None = None,
    sequence_column: str | None = None,
    repeated_keys: RepeatedKeys = "refuse",
    operation_column: str | None = None,
    operation_values: Mapping[str, Any] | None = None,
    skip_unchanged: bool | Sequence[str] | str = False,
    scope: Mapping[str, Any] | None = None,
    on_partition_move: PartitionMove = "refuse",
    check_partition_moves: bool = True,
    audit: bool | str | os.PathLike[str] = False,
    batch_id: str | None = None,
    retain: int = 0,
    lock_timeout: float = 60.0,
    progress: ProgressCallback | None = None,
    ignore_table_format: bool = False,
    use_merge: bool | None = None,
) -> MergeResult:
    """Merge keyed rows into a Parquet dataset; merging the same rows again changes nothing.

    Strategies: `upsert` replaces matched rows and inserts new ones; `insert` only inserts; `update` only replaces;
    `full_merge` also deletes target rows that are missing from the source; `deduplicate` is an upsert of one source row
    per key, the highest in `dedup_order_by`; `delete` deletes matched rows.

    Args:
        source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
        path: Folder or URL of the dataset.
        strategy: What happens to matched, new and missing rows.
        key_columns: Columns that identify a row.
        engine: Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.
        data: Another name for `source`.
        partition_columns: Partition columns of a new dataset; an existing one keeps its own.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        compression: Codec for new files.
        max_rows_per_file: Maximum number of rows in a new file.
        row_group_size: Maximum number of rows in a row group of a new file.
        partition_by: Another name for `partition_columns`.
        column_types: Types of columns of CSV, JSON and Python rows, instead of inferred ones: `pa.string()`, "BIGINT",
            "timestamp[us, tz=UTC]".
        null_values: Unquoted CSV cells that are NULL, beside empty ones.
        schema_mode: Whether a source with other columns is refused, or new columns are added to the target and types
            widened.
        null_keys: Whether NULL in a key column of the source is refused, or matches NULL in the target.
        update_columns: Columns that matched rows take from the source; default all.
        update_mode: Whether matched rows take every value of the source, or keep theirs where that of the source is
            NULL.
        insert_columns: Columns that new rows take from the source; default all.
        dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
        sequence_column: Column that orders rows with the same key, in the source and against the target; older source
            rows are skipped.
        repeated_keys: Whether several source rows with the same key are refused, or clauses apply to each in turn,
            ordered by `sequence_column`.
        operation_column: Source column that holds the operation of each row: insert, update or delete.
        operation_values: Values of the operation column that stand for insert, update and delete.
        skip_unchanged: Do not rewrite matched rows that already equal the source, in all columns or in those listed.
        scope: Partitions that the source covers completely; full_merge deletes missing rows only there.
        on_partition_move: Whether matched rows whose partition changes are refused or moved.
        check_partition_moves: Check for matched rows whose partition changes; False skips the check, which is safe if
            there are none.
        audit: Record of changed rows: True for keys and actions, "rows" to include the rows before and after, or a
            folder to store these as Parquet.
        batch_id: Name of this batch; a batch that was committed before is not merged again.
        retain: Number of latest commits that can be undone; their replaced files are kept.
        lock_timeout: Seconds to wait for another writer.
        progress: Function that is called with a `Progress` at every step, from any thread.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.
        use_merge: DuckDB only: True for MERGE, False for UNION ALL and NOT EXISTS; by default MERGE if DuckDB has it.

    >>> import tempfile, pyarrow as pa
    >>> lake = tempfile.mkdtemp()
    >>> merge(pa.table({"id": [1, 2]}), lake, key_columns="id").inserted
    2
    >>> merge(pa.table({"id": [1, 2]}), lake, key_columns="id").inserted
    0
    """
    options = pick_options("merge", locals())
    return open_engine(engine).merge(source, path, strategy, key_columns, data=data, **options)


@suggest_names
def plan(
    source: Any = None,
    path: str | os.PathLike[str] = "",
    strategy: MergeStrategy = "upsert",
    key_columns: Sequence[str] | str = (),
    *,
    engine: str = DEFAULT_ENGINE,
    data: Any = None,
    partition_columns: Sequence[str] | str | None = None,
    filesystem: Any = None,
    partition_by: Sequence[str] | str | None = None,
    column_types: Mapping[str, str | pa.DataType] | None = None,
    null_values: Sequence[str] | str | None = None,
    schema_mode: SchemaMode = "strict",
    null_keys: NullKeys = "refuse",
    update_columns: Sequence[str] | str | None = None,
    update_mode: UpdateMode = "all",
    insert_columns: Sequence[str] | str | None = None,
    dedup_order_by: Sequence[str] | str | None = None,
    sequence_column: str | None = None,
    repeated_keys: RepeatedKeys = "refuse",
    operation_column: str | None = None,
    operation_values: Mapping[str, Any] | None = None,
    skip_unchanged: bool | Sequence[str] | str = False,
    scope: Mapping[str, Any] | None = None,
    on_partition_move: PartitionMove = "refuse",
    check_partition_moves: bool = True,
    ignore_table_format: bool = False,
) -> MergePlan:
    """Report what `merge` would do to each file, and why, without doing it.

    Args:
        source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
        path: Folder or URL of the dataset.
        strategy: What happens to matched, new and missing rows.
        key_columns: Columns that identify a row.
        engine: Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.
        data: Another name for `source`.
        partition_columns: Partition columns of a new dataset; an existing one keeps its own.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        partition_by: Another name for `partition_columns`.
        column_types: Types of columns of CSV, JSON and Python rows, instead of inferred ones: `pa.string()`, "BIGINT",
            "timestamp[us, tz=UTC]".
        null_values: Unquoted CSV cells that are NULL, beside empty ones.
        schema_mode: Whether a source with other columns is refused, or new columns are added to the target and types
            widened.
        null_keys: Whether NULL in a key column of the source is refused, or matches NULL in the target.
        update_columns: Columns that matched rows take from the source; default all.
        update_mode: Whether matched rows take every value of the source, or keep theirs where that of the source is
            NULL.
        insert_columns: Columns that new rows take from the source; default all.
        dedup_order_by: Columns that order source rows with the same key; the highest row is merged.
        sequence_column: Column that orders rows with the same key, in the source and against the target; older source
            rows are skipped.
        repeated_keys: Whether several source rows with the same key are refused, or clauses apply to each in turn,
            ordered by `sequence_column`.
        operation_column: Source column that holds the operation of each row: insert, update or delete.
        operation_values: Values of the operation column that stand for insert, update and delete.
        skip_unchanged: Do not rewrite matched rows that already equal the source, in all columns or in those listed.
        scope: Partitions that the source covers completely; full_merge deletes missing rows only there.
        on_partition_move: Whether matched rows whose partition changes are refused or moved.
        check_partition_moves: Check for matched rows whose partition changes; False skips the check, which is safe if
            there are none.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import tempfile, pyarrow as pa
    >>> plan(pa.table({"id": [1, 2]}), tempfile.mkdtemp(), key_columns="id").inserted
    2
    """
    options = pick_options("plan", locals())
    return open_engine(engine).plan(source, path, strategy, key_columns, data=data, **options)


def merge_into(
    path: str | os.PathLike[str],
    source: Any,
    on: Sequence[str] | Mapping[str, str] | str,
    *,
    engine: str = DEFAULT_ENGINE,
    **options: Unpack[MergeOptions],
) -> MergeBuilder:
    """Begin a MERGE in clauses: updates, inserts and deletes with conditions and expressions.

    Args:
        path: Folder or URL of the dataset.
        source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
        on: Key columns, or expressions over the source `s` by key column.
        engine: Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.
        **options: Options of `merge`.

    >>> import tempfile, pyarrow as pa
    >>> orders = tempfile.mkdtemp()
    >>> rows = pa.table({"id": [1], "qty": [5]})
    >>> merge_into(orders, rows, on="id").when_not_matched_insert_all("s.qty > 0").execute().inserted
    1
    """
    return open_engine(engine).merge_into(path, source, on, **options)


@overload
def sql(
    text: str, /, *, plan: Literal[False] = False, engine: str = DEFAULT_ENGINE, **sources_and_options: Any
) -> MergeResult: ...
@overload
def sql(
    text: str, /, *, plan: Literal[True], engine: str = DEFAULT_ENGINE, **sources_and_options: Any
) -> MergePlan: ...
def sql(
    text: str, /, *, plan: bool = False, engine: str = DEFAULT_ENGINE, **sources_and_options: Any
) -> MergeResult | MergePlan:
    """Run a MERGE statement, in the SQL of DuckDB; needs the extra `sql`.

    The target is a path or URL in quotes. The source is the name of an argument, a path in quotes, or a query in
    brackets over these. What cannot be run exactly is refused, with its line and column. RETURNING gives the `audit` of
    the result.

    Args:
        text: One MERGE INTO, whose target is the path of a dataset.
        plan: Report what the statement would do, and change nothing.
        engine: Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.
        **sources_and_options: Rows by the names that the statement has for them, and options of `merge`.

    >>> import tempfile, pyarrow as pa
    >>> stock = tempfile.mkdtemp()
    >>> _ = merge(pa.table({"id": [1, 2], "qty": [5, 5]}), stock, key_columns="id")
    >>> statement = (
    ...     f"MERGE INTO '{stock}' AS t USING sales AS s ON t.id = s.id "
    ...     "WHEN MATCHED THEN UPDATE SET qty = t.qty - s.qty "
    ...     "WHEN NOT MATCHED THEN INSERT BY NAME"
    ... )
    >>> sql(statement, sales=pa.table({"id": [1, 3], "qty": [2, 9]}), batch_id="monday").stats
    {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
    """
    return open_engine(engine).sql(text, plan=plan, **sources_and_options)  # type: ignore[call-overload,no-any-return]


@suggest_names
def write_dataset(
    source: Any,
    path: str | os.PathLike[str],
    mode: WriteMode = "append",
    *,
    engine: str = DEFAULT_ENGINE,
    partition_columns: Sequence[str] | str | None = None,
    filesystem: Any = None,
    compression: str = "snappy",
    max_rows_per_file: int = 5_000_000,
    row_group_size: int = 500_000,
    partition_by: Sequence[str] | str | None = None,
    column_types: Mapping[str, str | pa.DataType] | None = None,
    null_values: Sequence[str] | str | None = None,
    schema_mode: SchemaMode = "strict",
    retain: int = 0,
    lock_timeout: float = 60.0,
    progress: ProgressCallback | None = None,
    ignore_table_format: bool = False,
) -> WriteResult:
    """Append rows to a dataset, or overwrite it; both are committed like a merge.

    Args:
        source: Rows: an Arrow table or reader, a DataFrame, a DuckDB relation, dicts, or the path of files.
        path: Folder or URL of the dataset.
        mode: Whether existing rows are kept or replaced.
        engine: Engine that does the work: auto chooses arrow or duckdb by the source; or arrow, duckdb or spark.
        partition_columns: Partition columns of a new dataset; an existing one keeps its own.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        compression: Codec for new files.
        max_rows_per_file: Maximum number of rows in a new file.
        row_group_size: Maximum number of rows in a row group of a new file.
        partition_by: Another name for `partition_columns`.
        column_types: Types of columns of CSV, JSON and Python rows, instead of inferred ones: `pa.string()`, "BIGINT",
            "timestamp[us, tz=UTC]".
        null_values: Unquoted CSV cells that are NULL, beside empty ones.
        schema_mode: Whether a source with other columns is refused, or new columns are added to the target and types
            widened.
        retain: Number of latest commits that can be undone; their replaced files are kept.
        lock_timeout: Seconds to wait for another writer.
        progress: Function that is called with a `Progress` at every step, from any thread.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import tempfile, pyarrow as pa
    >>> [file.row_count for file in write_dataset(pa.table({"id": [1, 2]}), tempfile.mkdtemp()).files]
    [2]
    """
    options = pick_options("write_dataset", locals())
    return open_engine(engine).write_dataset(source, path, mode, **options)


@suggest_names
def alter(
    path: str | os.PathLike[str],
    *,
    add: Mapping[str, str | pa.DataType] | None = None,
    default: Mapping[str, Any] | None = None,
    drop: Sequence[str] | str | None = None,
    rename: Mapping[str, str] | None = None,
    widen: Mapping[str, str | pa.DataType] | None = None,
    unify: bool = False,
    plan: bool = False,
    engine: str = "arrow",
    retain: int = 0,
    lock_timeout: float = LOCK_TIMEOUT,
    progress: ProgressCallback | None = None,
    filesystem: Any = None,
    ignore_table_format: bool = False,
) -> AlterResult:
    """Change the schema of all files of a dataset, in one commit.

    Columns that stay as they are, in values and type, are copied byte for byte. A change that is made already changes
    nothing: adding a column that exists with this type, dropping or renaming one that is gone.

    Args:
        path: Folder or URL of the dataset.
        add: New columns and their types, by name; they are the last columns.
        default: Value of new columns in existing rows; default NULL.
        drop: Columns to remove with their values.
        rename: New names of columns, by their old names.
        widen: Wider types of columns, which hold every value of the old ones.
        unify: Give files with different columns or types one schema.
        plan: Report which files would change, and change nothing.
        engine: Engine that does the work: arrow, or spark, whose executors do it; duckdb does the same as arrow.
        retain: Number of latest commits that can be undone; their replaced files are kept.
        lock_timeout: Seconds to wait for another writer.
        progress: Function that is called with a `Progress` at every step, from any thread.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        ignore_table_format: Treat the target as plain Parquet files, although it has the log of a Delta Lake, Iceberg,
            Hudi, Lance or DuckLake table.

    >>> import tempfile, pyarrow as pa
    >>> written = write_dataset(pa.table({"id": [1, 2]}), lake := tempfile.mkdtemp())
    >>> alter(lake, add={"discount": pa.float64()}, default={"discount": 0.5}, rename={"id": "order_id"}).changes
    ["rename column 'id' to 'order_id'", "add column 'discount' (double)"]
    >>> read(lake).to_pylist()
    [{'order_id': 1, 'discount': 0.5}, {'order_id': 2, 'discount': 0.5}]
    """
    given = {name: value for name, value in locals().items() if name not in ("path", "engine")}
    result: AlterResult = open_engine(engine).alter(path, **given)
    return result


def read(
    path: str | os.PathLike[str],
    columns: Sequence[str] | str | None = None,
    where: str | None = None,
    *,
    as_of: AsOf | None = None,
    filesystem: Any = None,
    ignore_table_format: bool = False,
) -> pa.Table:
    """Read rows of a dataset as an Arrow table, with partition columns in their recorded types.

    All rows are of one state, whatever is committed meanwhile.

    Args:
        path: Folder or URL of the dataset.
        columns: Columns to read; default all.
        where: Condition of SQL, in DuckDB's dialect, that rows have to meet; it sees the columns and no files.
        as_of: The state after a commit, by its id, the number of commits to go back, or a time; default now.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.
        ignore_table_format: Read all Parquet files, although the folder has the log of a Delta Lake or other table.

    >>> import tempfile, pyarrow as pa
    >>> written = write_dataset(pa.table({"id": [1, 2], "v": ["a", "b"]}), lake := tempfile.mkdtemp())
    >>> read(lake, columns="v", where="id > 1").to_pylist()
    [{'v': 'b'}]
    """
    from merganser.engines.duckdb.reading import read_rows  # noqa: PLC0415  other calls may do without DuckDB

    location = locate(path, filesystem, ignore_table_format=ignore_table_format)
    return read_rows(location, columns, where, as_of=as_of)
