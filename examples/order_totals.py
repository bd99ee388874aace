"""Add up the orders of each minute, as soon as the minute is complete.

Reads orders, adds them up by the time at which they were placed, and writes one record for each minute. An order may
arrive up to `--lateness` after an order that was placed later. The job writes a minute when no more orders can arrive
for it. It leaves out orders that arrive even later, and the line of their batch counts them as too late.

    python examples/sample_data.py orders | tailrace produce orders --input json
    tailrace pipeline run examples/order_totals.py --once
    tailrace consume order-totals --keys
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.pipeline.jobs import Topic, job

ORDER = "id STRING, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP"


@job(source=Topic("orders", schema=ORDER), sink=Topic("order-totals", key="start"))
def order_totals(orders: DataFrame, *, window: str = "1 minute", lateness: str = "5 minutes") -> DataFrame:
    return (
        orders.where("_corrupt IS NULL")
        .withWatermark("at", lateness)
        .groupBy(F.window("at", window).alias("window"))
        .agg(F.count("id").alias("orders"), F.sum("amount").alias("total"))
        .select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), "orders", "total")
    )
