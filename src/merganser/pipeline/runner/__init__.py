"""A run of a pipeline on Spark."""
