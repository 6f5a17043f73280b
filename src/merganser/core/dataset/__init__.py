"""A dataset as it is on disk: its files, partitions, statistics and schema."""
