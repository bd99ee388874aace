"""Writes DataFrames to topics: checks columns, chooses partitions, sends batches.

Owns what `format("tailrace")` writes. May use `connections/` and `arrow/`; must not know where the rows come from.
"""
