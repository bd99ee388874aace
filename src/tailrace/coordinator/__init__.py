"""Coordinators as event-sourced shards, each replayed from one partition of an internal, compacted topic.

The leader of a partition owns its shard. The shard's records are the truth. What it keeps in memory is the replay of
those records, plus state that may die with the process (waiting requests, timers).
"""
