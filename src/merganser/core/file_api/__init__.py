"""The file-level functions that the source documents name, each one step of a merge."""
