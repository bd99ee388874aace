"""Replay: a range of a topic or an archive sent again to another topic, from a checkpoint, at a chosen rate.

Owns what has been sent. May use `source/` and `connections/`; must not change what it reads.
"""
