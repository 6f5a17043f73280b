"""The Spark engine."""

from merganser.engines.spark.dataset_io import SparkDatasetIO
from merganser.engines.spark.package import ship

__all__ = ["SparkDatasetIO", "ship"]
