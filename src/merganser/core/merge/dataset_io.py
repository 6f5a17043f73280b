"""The door every engine shares: merge, plan and write a dataset through the one driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from merganser.core.columnar.memory import translate_memory_errors
from merganser.core.merge import driver
from merganser.core.model.engine import GivenT, MatchesT, SourceT
from merganser.core.model.options import ChangeOptions, CommitOptions, check_names, make_options, pick_source
from merganser.core.storage.lock import LOCK_TIMEOUT

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import Unpack

    from merganser.core.merge.driver import WriteMode
    from merganser.core.merge.planner import MergePlan
    from merganser.core.model.engine import Engine
    from merganser.core.model.result import MergeResult, WriteResult
    from merganser.core.model.strategy import MergeStrategy
    from merganser.progress import ProgressCallback


@dataclass(frozen=True, slots=True)
class OperationContext:
    """What an engine is opened for, so that its errors can say it."""

    operation: str
    path: str | os.PathLike[str]
    filesystem: Any
    strategy: str | None = None
    keys: Sequence[str] | str = ()

    @property
    def description(self) -> str:
        """What is done, and to what."""
        return f"{self.operation} of {self.path}"


class DatasetIO(ABC, Generic[GivenT, SourceT, MatchesT]):
    """Parquet datasets through one engine. `filesystem` is used where a call names none."""

    def __init__(self, filesystem: Any = None) -> None:
        self.filesystem = filesystem

    @abstractmethod
    def _open_engine(self, context: OperationContext) -> AbstractContextManager[Engine[GivenT, SourceT, MatchesT]]:
        """Open the engine for one call, and close it however the call ends."""

    def merge(
        self,
        source: Any = None,
        path: str | os.PathLike[str] = "",
        strategy: MergeStrategy = "upsert",
        key_columns: Sequence[str] | str = (),
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        compression: str = "snappy",
        max_rows_per_file: int = 5_000_000,
        row_group_size: int = 500_000,
        *,
        data: Any = None,
        **options: Unpack[CommitOptions],
    ) -> MergeResult:
        """Merge keyed rows into a dataset; running it twice is the same as running it once.

        Strategies: `upsert` replaces matched rows and inserts new ones; `insert` only inserts; `update` only replaces;
        `full_merge` also deletes target rows that the source lacks; `deduplicate` is an upsert of one source row per
        key, the highest in `dedup_order_by`; `delete` removes matched rows.

        What else may be asked for, by name:

        - `update_columns`, `insert_columns`: the columns that matched and new rows take from the source, if not all.
        - `sequence_column`: tells which row of a key is newest, in the source and against the target; a late row is
          skipped.
        - `operation_column`, `operation_values`: a column that says of each row whether it inserts, updates or deletes.
        - `skip_unchanged`: a matched row that is equal already is left alone; with a list of columns, one that is equal
          in these.
        - `scope`: the partitions that a `full_merge` speaks for.
        - `on_partition_move`: `"move"` moves rows whose partition values change, which is refused otherwise;
          `check_partition_moves=False` promises that there are none, and looks for none.
        - `audit`: True lists keys and actions of all rows changed, `"rows"` also the rows before and after, a path
          writes these there as Parquet.
        - `batch_id`: a merge of this id that was committed before is not done again; its result comes back with
          `replayed=True`.
        - `retain`: the files that the last so many commits replaced or removed are kept for `undo`.
        - `data` is `source`, `partition_by` is `partition_columns`.
        - `lock_timeout` is how many seconds to wait for another writer.
        - `progress` is called with a `Progress` at every step, from whatever thread takes it.
        - `ignore_table_format=True` merges into a folder that a table of another format (Delta Lake, Iceberg, Hudi,
          Lance, DuckLake) was in, as into any other; its log is not kept up to date.
        """
        given = pick_source(source, data)
        check_names("merge", options, CommitOptions.__optional_keys__)
        made = make_options(
            partition_columns,
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            **options,
        )
        job = OperationContext("merge", path, self._choose_filesystem(filesystem), strategy, key_columns)
        with translate_memory_errors(job.description), self._open_engine(job) as engine:
            return driver.merge(engine, given, path, strategy, key_columns, job.filesystem, made)

    def plan(
        self,
        source: Any = None,
        path: str | os.PathLike[str] = "",
        strategy: MergeStrategy = "upsert",
        key_columns: Sequence[str] | str = (),
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        *,
        data: Any = None,
        **options: Unpack[ChangeOptions],
    ) -> MergePlan:
        """Say what `merge` would do to each file, and why, without doing it."""
        given = pick_source(source, data)
        check_names("plan", options, ChangeOptions.__optional_keys__)
        made = make_options(partition_columns, **options)
        job = OperationContext("plan", path, self._choose_filesystem(filesystem), strategy, key_columns)
        with translate_memory_errors(job.description), self._open_engine(job) as engine:
            return driver.plan(engine, given, path, strategy, key_columns, job.filesystem, made)

    def write_dataset(
        self,
        source: Any,
        path: str | os.PathLike[str],
        mode: WriteMode = "append",
        partition_columns: Sequence[str] | str | None = None,
        filesystem: Any = None,
        compression: str = "snappy",
        max_rows_per_file: int = 5_000_000,
        row_group_size: int = 500_000,
        *,
        partition_by: Sequence[str] | str | None = None,
        retain: int = 0,
        lock_timeout: float = LOCK_TIMEOUT,
        progress: ProgressCallback | None = None,
        ignore_table_format: bool = False,
    ) -> WriteResult:
        """Append rows to a dataset, or overwrite it; both are committed like a merge, and retain what one would.

        `ignore_table_format` is that of `merge`.
        """
        options = make_options(
            partition_columns,
            partition_by,
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            retain=retain,
            lock_timeout=lock_timeout,
            progress=progress,
            ignore_table_format=ignore_table_format,
        )
        job = OperationContext("write_dataset", path, self._choose_filesystem(filesystem))
        with translate_memory_errors(job.description), self._open_engine(job) as engine:
            return driver.write_dataset(engine, source, path, mode, job.filesystem, options)

    def _choose_filesystem(self, given: Any) -> Any:
        return self.filesystem if given is None else given
