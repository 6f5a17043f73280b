"""Structured Streaming: a sink that merges each micro-batch once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.model.strategy import MergeStrategy

    IOFactory = Callable[[Any], DatasetIO]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSink:
    """What `DataStreamWriter.foreachBatch` calls; it may be pickled, as Spark Connect does.

    The batch id that Spark counts begins again at 0 with each checkpoint, so the query's name is part of ours.
    """

    make_io: IOFactory
    path: str | os.PathLike[str]
    strategy: MergeStrategy
    key_columns: Sequence[str] | str
    query_name: str
    options: Mapping[str, Any]

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch, unless it was merged before."""
        batch = f"{self.query_name}:{batch_id}"
        self.make_io(frame.sparkSession).merge(
            frame, self.path, self.strategy, self.key_columns, batch_id=batch, **self.options
        )
