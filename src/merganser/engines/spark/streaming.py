"""Structured Streaming: a sink that merges each micro-batch once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from merganser.core.dataset.listing import check_target
from merganser.core.merge.builder import MergeBuilder
from merganser.core.merge.operation import OperationContext
from merganser.core.model.options import check_names, check_order, list_options, make_request
from merganser.engines.spark.input_splits import locate_shared
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.model.clauses import Clause
    from merganser.core.model.strategy import MergeStrategy
    from merganser.engines.spark.dataset_io import SparkDatasetIO

    IOFactory = Callable[[Any], DatasetIO]


@dataclass(frozen=True, slots=True)
class SparkMergeBuilder(MergeBuilder):
    """A MERGE in clauses on Spark: of a source, with `execute`, or of a stream, with `foreach_batch`."""

    io: SparkDatasetIO

    def foreach_batch(self, *, query_name: str) -> BatchSink:
        """Return the function that runs the MERGE for each micro-batch of a streaming query, for `foreachBatch`.

        Each batch of a query is merged once, however often Spark sends it; see `SparkDatasetIO.foreach_batch`. Rows
        that are not matched by the source are those without a row in the same micro-batch.

        Args:
            query_name: Name of the query and its checkpoint, unique among the queries of this dataset.
        """
        if self.source is not None:
            message = "foreach_batch merges the batches of a stream. Leave the source of merge_into out."
            raise InvalidArgumentError(message)
        return make_sink(self.io, self.path, self.on, query_name, dict(self.options), clauses=self.clauses)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSink:
    """What `DataStreamWriter.foreachBatch` calls; it may be pickled, as Spark Connect does.

    The batch id that Spark counts begins again at 0 with each checkpoint, so the query's name is part of ours.
    Without a strategy it merges by clauses.
    """

    make_io: IOFactory
    path: str | os.PathLike[str]
    strategy: MergeStrategy | None
    key_columns: Sequence[str] | Mapping[str, str] | str
    query_name: str
    options: Mapping[str, Any]
    clauses: Sequence[Clause] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch, unless it was merged before."""
        io = self.make_io(frame.sparkSession)
        options = io.make_options("merge", {**self.options, "batch_id": f"{self.query_name}:{batch_id}"})
        io.run_merge(
            frame, OperationContext("merge", self.path, options, self.strategy, self.key_columns, self.clauses)
        )


def make_sink(
    io: SparkDatasetIO,
    path: str | os.PathLike[str],
    keys: Sequence[str] | Mapping[str, str] | str,
    query_name: str,
    options: dict[str, Any],
    *,
    strategy: MergeStrategy | None = None,
    clauses: Sequence[Clause] | None = None,
) -> BatchSink:
    """Make the sink that merges by a strategy or by clauses; mistakes are refused now, not with the first batch."""
    if not isinstance(query_name, str) or not query_name:
        message = f"query_name must be a string that identifies this query and its checkpoint, not {query_name!r}."
        raise InvalidArgumentError(message)
    if "batch_id" in options:
        raise InvalidArgumentError(
            "foreach_batch makes batch ids itself, from query_name and Spark's batch number. Leave batch_id out."
        )
    check_names("foreach_batch", options, list_options("merge"))
    made = io.make_options("merge", options)
    location = locate_shared(path, made.filesystem)
    request = make_request(cast("MergeStrategy", strategy), keys, made, clauses)
    check_target(replace(location, ignore_table_format=made.ignore_table_format), lists_later=True)
    check_order(request, is_ordered=False)
    options.pop("filesystem", None)
    return BatchSink(
        make_io=partial(type(io), filesystem=made.filesystem),
        # The process that receives batches may have another working directory.
        path=location.root if location.store.is_local else path,
        strategy=strategy,
        key_columns=keys,
        query_name=query_name,
        options=options,
        clauses=clauses,
    )
