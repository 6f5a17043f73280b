"""Benchmarks: named scenarios, each measured against a peer in the same run."""
