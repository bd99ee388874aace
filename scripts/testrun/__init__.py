"""Runs the test suite: divides it into pieces, runs as many at once as the cores allow, and reports the time.

Owns the pytest processes and their results. Must not know what a test does, only how long its file took.
"""
