"""Spark in tests: its connector's jars, clusters and job runs."""
