"""The vocabulary of a merge: keys, schemas, partitions, strategies, options, results and the engine protocol."""
