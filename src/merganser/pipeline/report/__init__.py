"""Reports of a run: HTML, JSON and plain text."""
