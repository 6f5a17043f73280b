"""Pipelines: sources are read, checked and merged into datasets and a graph, and every row is accounted for."""
