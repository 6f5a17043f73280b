"""The driver of a merge, from source to result."""
