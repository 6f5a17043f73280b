"""Graphs in and out: JSON, networkx, GraphML, and Parquet as GraphFrames has it."""
