"""Writing DataFrames to topics: columns checked, partitions chosen, batches sent.

Owns what `format("tailrace")` writes. May use `connections/` and `arrow/`; must not know who made the rows.
"""
