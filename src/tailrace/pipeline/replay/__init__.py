"""Replay: sends a range of a topic or an archive to another topic, from a checkpoint, at a given rate.

Owns what has been sent. May use `source/` and `connections/`; must not change what it reads.
"""
