"""Imports and exports of graphs: JSON, networkx, GraphML, and Parquet as in GraphFrames."""
