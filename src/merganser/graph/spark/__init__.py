"""The graph on Spark: records folded by executors, merged into Parquet or into an SQLite file."""
