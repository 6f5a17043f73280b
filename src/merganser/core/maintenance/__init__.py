"""Calls that bring in no rows: compact, dedupe and inspect."""
