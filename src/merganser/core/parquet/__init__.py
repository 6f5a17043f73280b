"""Parquet files as bytes: footers, column chunks, and splicing unchanged chunks into a new file."""
