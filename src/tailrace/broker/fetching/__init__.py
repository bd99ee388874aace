"""What Fetch and ListOffsets share: sessions, parts of a response, and reads of the archive in a helper process.

Owns the state between two fetches. Must not decide who may read what: `handlers/` and `replication/` do.
"""
