"""Queries, traversals and patterns, and the results they return."""
