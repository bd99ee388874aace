"""What Fetch and ListOffsets share: sessions, parts of an answer, and reads of archived records in a helper process.

Owns what is held between two fetches. Must not decide who may read what: `handlers/` and `replication/` do.
"""
