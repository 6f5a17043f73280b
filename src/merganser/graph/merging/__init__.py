"""MERGE of nodes, edges, patterns and many rows."""
