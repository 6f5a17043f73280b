"""Where source rows come from: Arrow objects, and Parquet, CSV, JSON or Arrow files."""
