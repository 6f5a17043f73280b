"""The SQLite file of a graph: connections, tables, indexes and record writes."""
