"""One operation on a dataset: what an engine is opened for, and the options of a merge as methods pass them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from merganser.core.model.clauses import Clause
    from merganser.core.model.options import NullKeys, Options, PartitionMove, RepeatedKeys, SchemaMode, UpdateMode
    from merganser.progress import ProgressCallback


class MergeOptions(TypedDict, total=False):
    """The options of `merge`, for methods that pass them on (written by scripts/options.py)."""

    partition_columns: Sequence[str] | str | None
    filesystem: Any
    compression: str
    max_rows_per_file: int
    row_group_size: int
    partition_by: Sequence[str] | str | None
    column_types: Mapping[str, str | pa.DataType] | None
    null_values: Sequence[str] | str | None
    schema_mode: SchemaMode
    null_keys: NullKeys
    update_columns: Sequence[str] | str | None
    update_mode: UpdateMode
    insert_columns: Sequence[str] | str | None
    dedup_order_by: Sequence[str] | str | None
    sequence_column: str | None
    repeated_keys: RepeatedKeys
    operation_column: str | None
    operation_values: Mapping[str, Any] | None
    skip_unchanged: bool | Sequence[str] | str
    scope: Mapping[str, Any] | None
    on_partition_move: PartitionMove
    check_partition_moves: bool
    audit: bool | str | os.PathLike[str]
    batch_id: str | None
    retain: int
    lock_timeout: float
    progress: ProgressCallback | None
    ignore_table_format: bool
    use_merge: bool | None


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The operation that an engine is opened for, which its errors name."""

    operation: str
    path: str | os.PathLike[str]
    options: Options
    strategy: str | None = None
    keys: Sequence[str] | Mapping[str, str] | str = ()
    clauses: Sequence[Clause] | None = None
