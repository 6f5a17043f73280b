"""MERGE statements: text to clauses, sources and what is returned."""
