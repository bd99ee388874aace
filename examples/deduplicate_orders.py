"""Write each order once to a table, however often it was sent.

Producers that retry after a failure leave orders in the topic twice. This job remembers the id of an order for
`--remember` seconds (3600) of the orders' own time, and appends only the first order of each id to a table of Parquet
files, exactly once. It keeps the ids in RocksDB and in the checkpoint, not in memory, so there can be many. It leaves
out orders that are more than `--lateness` older than the newest one.

    python examples/sample_data.py orders --repeated 10 | tailrace produce orders --input json
    tailrace pipeline run examples/deduplicate_orders.py --once
    python -c 'import pyarrow.dataset as d; print(d.dataset("orders-table").to_table().num_rows)'
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tailrace.pipeline.jobs import Table, Topic, job

ORDER = "id STRING, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class FirstOfEachId(StatefulProcessor):
    """Passes on the first order of each id, and forgets the id when its time is over."""

    def __init__(self, remember_ms: int) -> None:
        self._remember_ms = remember_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._first_at = handle.getValueState("first_at", "at_ms LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if self._first_at.exists():
            return
        first = min(rows, key=lambda row: row.at_ms)
        self._first_at.update((first.at_ms,))
        self._handle.registerTimer(first.at_ms + self._remember_ms)
        yield Row(id=key[0], customer=first.customer, amount=first.amount, at_ms=first.at_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self._first_at.clear()
        return iter(())

    def close(self) -> None:
        pass


@job(
    source=Topic("orders", schema=ORDER),
    sink=Table("orders-table"),
    conf={"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
)
def deduplicate_orders(orders: DataFrame, *, remember: int = 3600, lateness: str = "10 minutes") -> DataFrame:
    return (
        orders.where("_corrupt IS NULL")
        .withWatermark("at", lateness)
        # Python may use another time zone: a number passes through it unchanged.
        .withColumn("at_ms", F.unix_millis("at"))
        .groupBy("id")
        .transformWithState(
            FirstOfEachId(remember * 1000),
            outputStructType="id STRING, customer STRING, amount DECIMAL(12, 2), at_ms LONG",
            outputMode="Append",
            timeMode="EventTime",
        )
        .select("id", "customer", "amount", F.timestamp_millis("at_ms").alias("at"))
    )
