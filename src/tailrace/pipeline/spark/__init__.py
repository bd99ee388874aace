"""Spark itself: the session, its Java and its Python processes, and its failures in the user's words.

Owns how Spark is started. Must not know topics.
"""
