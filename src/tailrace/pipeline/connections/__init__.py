"""Blocking conversations with brokers: where partitions are led, begin and end, and an idempotent producer of batches.

Owns sockets of the pipeline. Must not import Spark.
"""
