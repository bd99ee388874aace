"""Jobs on streams: what a job's file imports, how its query is built and run, its checkpoints, tables and dead letters.

Owns jobs from declaration to the end of a run. `Table`, `Topic` and `job` are what users import from here.
"""

from tailrace.pipeline.jobs.declaration import Table, Topic, job

__all__ = ["Table", "Topic", "job"]
