"""Find out which orders were paid in time, and which were not.

Joins orders with their payments. If an order is paid `--within` an hour, the job writes it with its payment as soon as
both have arrived, in either order. Otherwise it writes the order without a payment, once no payment can arrive any
more: when both topics are `--lateness` past that hour. It leaves out payments that were made after the hour, or that
arrive later than that.

    python examples/sample_data.py orders | tailrace produce orders --input json
    python examples/sample_data.py payments | tailrace produce payments --input json
    tailrace pipeline run examples/order_payments.py --once
    tailrace consume order-payments
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.pipeline.jobs import Topic, job

ORDER = "id STRING, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP"
PAYMENT = "order STRING, amount DECIMAL(12, 2), at TIMESTAMP"


@job(
    source=(Topic("orders", schema=ORDER), Topic("payments", schema=PAYMENT)),
    sink=Topic("order-payments", key="id"),
)
def order_payments(
    orders: DataFrame, payments: DataFrame, *, within: str = "1 hour", lateness: str = "10 minutes"
) -> DataFrame:
    placed = orders.where("_corrupt IS NULL").select("id", "customer", "amount", F.col("at").alias("placed_at"))
    paid = payments.where("_corrupt IS NULL").select(
        F.col("order").alias("order_id"), F.col("amount").alias("paid"), F.col("at").alias("paid_at")
    )
    # Each time bounds the other, so Spark knows how long it has to remember orders and payments.
    belongs = F.expr(f"order_id = id AND paid_at >= placed_at AND paid_at <= placed_at + INTERVAL {within}")
    return (
        placed.withWatermark("placed_at", lateness)
        .join(paid.withWatermark("paid_at", lateness), belongs, "left_outer")
        .select("id", "customer", "amount", "placed_at", "paid", "paid_at")
    )
