"""Reads topics in Spark: the data source, its options, planning, and records from log and archive as Arrow batches.

Owns what `format("tailrace")` reads. May use `connections/` and `arrow/`; must not know SQL, jobs or archiving.
"""
