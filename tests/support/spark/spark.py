"""Spark for tests: the jars of its own Kafka connector, and streaming queries on a machine that is busy.

`scripts/setup-clients` copies the jars, in the version that belongs to the installed pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

FOLDER = Path(__file__).resolve().parents[3] / ".cache/spark-kafka" / version("pyspark") / "lib"
#: What a query says whose source in Python did not come up within ten seconds; Spark lets nobody give it more.
NO_WORKER = "Python worker failed to connect back"
STARTS = 5
PATIENCE_SECONDS = 600


def connector_jars() -> list[Path]:
    """The jars of Spark's Kafka connector, for `spark.jars`."""
    jars = sorted(FOLDER.glob("*.jar"))
    if not jars:
        raise FileNotFoundError(f"no jars in {FOLDER}; run `make setup`")
    return jars


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query whose first batch is done, or that has ended; started again where its source did not come up in time.

    Nothing has been read then, so that whatever a test expects of the query it may expect of the next one.
    """
    for number in range(STARTS):
        query = start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while query.isActive and not query.recentProgress:
                if time.monotonic() > deadline:
                    query.stop()
                    raise AssertionError(f"no batch within {PATIENCE_SECONDS} s")
                query.awaitTermination(0.2)  # type: ignore[arg-type]  # a part of a second is fine
            if not query.isActive:
                query.awaitTermination()  # which raises what has ended it
        except StreamingQueryException as error:
            if NO_WORKER not in str(error) or number == STARTS - 1:
                raise
        else:
            break
    return query
