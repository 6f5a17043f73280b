"""The top level: the same calls as an engine's own, with the engine chosen by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.core.commit.commit import recover
from merganser.core.commit.history import history
from merganser.core.commit.undo import undo, vacuum
from merganser.core.maintenance.compact import compact
from merganser.core.maintenance.dedupe import dedupe
from merganser.core.maintenance.inspect import inspect
from merganser.engines import open_engine

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.merge.driver import WriteMode
    from merganser.core.merge.planner import MergePlan
    from merganser.core.model.result import MergeResult, WriteResult
    from merganser.core.model.strategy import MergeStrategy

__all__ = ["compact", "dedupe", "history", "inspect", "merge", "plan", "recover", "undo", "vacuum", "write_dataset"]

DEFAULT_ENGINE = "duckdb"


def merge(
    source: Any = None,
    path: str | os.PathLike[str] = "",
    strategy: MergeStrategy = "upsert",
    key_columns: Sequence[str] | str = (),
    *,
    data: Any = None,
    engine: str = DEFAULT_ENGINE,
    **options: Any,
) -> MergeResult:
    """Merge keyed rows into a Parquet dataset; running it twice is the same as running it once.

    The options are those of the engine's own `merge`; `data` is another name of `source`.

    >>> import tempfile, pyarrow as pa
    >>> lake = tempfile.mkdtemp()
    >>> merge(pa.table({"id": [1, 2]}), lake, key_columns="id").inserted
    2
    >>> merge(pa.table({"id": [1, 2]}), lake, key_columns="id").inserted
    0
    """
    return open_engine(engine).merge(source, path, strategy, key_columns, data=data, **options)


def plan(
    source: Any = None,
    path: str | os.PathLike[str] = "",
    strategy: MergeStrategy = "upsert",
    key_columns: Sequence[str] | str = (),
    *,
    data: Any = None,
    engine: str = DEFAULT_ENGINE,
    **options: Any,
) -> MergePlan:
    """Say what `merge` would do to each file, and why, without doing it.

    >>> import tempfile, pyarrow as pa
    >>> plan(pa.table({"id": [1, 2]}), tempfile.mkdtemp(), key_columns="id").inserted
    2
    """
    return open_engine(engine).plan(source, path, strategy, key_columns, data=data, **options)


def write_dataset(
    source: Any,
    path: str | os.PathLike[str],
    mode: WriteMode = "append",
    *,
    engine: str = DEFAULT_ENGINE,
    **options: Any,
) -> WriteResult:
    """Append rows to a dataset, or overwrite it.

    >>> import tempfile, pyarrow as pa
    >>> [file.row_count for file in write_dataset(pa.table({"id": [1, 2]}), tempfile.mkdtemp()).files]
    [2]
    """
    return open_engine(engine).write_dataset(source, path, mode, **options)
