"""Coordinators as event-sourced shards: state that is replayed from a partition of an internal, compacted topic.

A shard belongs to whoever leads its partition. Its records are the truth; what it holds in memory is their replay,
plus what may be lost with the process (waiting requests, timers).
"""
