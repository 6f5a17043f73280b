"""The DuckDB engine: embedded, out of core, and with MERGE where DuckDB has it."""

from __future__ import annotations

from merganser.engines.duckdb.dataset_io import DuckDBDatasetIO, DuckDBParquetHandler

__all__ = ["DuckDBDatasetIO", "DuckDBParquetHandler"]
