"""Streaming jobs: what a job's file imports, how its query is built and run, its checkpoints, tables and dead letters.

Owns jobs from their declaration to the end of a run. Users import `Table`, `Topic` and `job` from here.
"""

from tailrace.pipeline.jobs.declaration import Table, Topic, job

__all__ = ["Table", "Topic", "job"]
