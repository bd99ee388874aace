"""Runs the test suite: divides it into pieces, runs as many at once as the cores can bear, reports the time.

Owns the processes of pytest and their results. It must not know what any test does, only how long its file took.
"""
