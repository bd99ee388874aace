"""Archiving with Spark: rounds of new files and commits, compaction of archives, key snapshots, quarantine retries.

Owns how archives grow. File formats and manifests belong to `tailrace.archive`.
"""
