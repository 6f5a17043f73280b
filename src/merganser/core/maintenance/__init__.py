"""Maintenance of a dataset: compact, dedupe and inspect."""
