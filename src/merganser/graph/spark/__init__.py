"""Property graphs that Spark merges into."""
