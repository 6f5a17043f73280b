"""The configuration of a pipeline, checked before Spark starts."""
