"""The Spark engine."""

from merganser.engines.spark.door import SparkDatasetIO
from merganser.engines.spark.ship import ship

__all__ = ["SparkDatasetIO", "ship"]
