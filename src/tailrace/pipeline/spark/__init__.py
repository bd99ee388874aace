"""Spark itself: the session, its Java and Python processes, and its failures in users' words.

Owns how Spark is started. Must not know topics.
"""
