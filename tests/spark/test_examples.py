"""The jobs under `examples/` do what their heads say, each run going on from the checkpoint of the one before."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.pipeline.jobs.declaration import Job, Table, Topic, load
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.job_run import JobRuns, read_json, send_json
from tests.support.topics import create_topic

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _example(name: str) -> Job[...]:
    (job,) = load(EXAMPLES / f"{name}.py").values()
    return job


def _order(number: int, clock: str, amount: float = 1.0) -> dict[str, Any]:
    return {"id": f"o-{number}", "customer": "c-1", "amount": amount, "at": f"2026-01-31T{clock}Z"}


def _payment(number: int, clock: str) -> dict[str, Any]:
    return {"order": f"o-{number}", "amount": 1.0, "at": f"2026-01-31T{clock}Z"}


@pytest.fixture
def runs_of(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, topic: str) -> Callable[[Job[...]], JobRuns]:
    """Runs of an example on its own topics, with one partition each, and its own table."""

    def make(job: Job[...]) -> JobRuns:
        def own(source: Topic) -> Topic:
            return dataclasses.replace(source, name=create_topic(broker.bootstrap, f"{topic}-{source.name}"))

        sources = tuple(own(source) for source in job.sources)
        sink = own(job.sink) if isinstance(job.sink, Topic) else Table(str(tmp_path / "table"))
        return JobRuns(
            spark, dataclasses.replace(job, sources=sources, sink=sink), broker.bootstrap, tmp_path / "checkpoint"
        )

    return make


def test_order_totals_are_written_when_a_minute_is_over_and_leave_out_what_comes_later(
    runs_of: Callable[[Job[...]], JobRuns],
) -> None:
    runs = runs_of(_example("order_totals"))
    orders, totals = runs.job.sources[0].name, runs.job.sink
    assert isinstance(totals, Topic)

    def after(*sent: dict[str, Any]) -> tuple[list[tuple[str | None, dict[str, Any]]], int]:
        """All totals so far, and how many of the orders were too late."""
        send_json(runs.bootstrap, orders, sent)
        late = sum(batch.late_rows for batch in runs.once())
        return sorted(read_json(runs.bootstrap, totals.name), key=lambda record: record[0] or ""), late

    def total(minute: str, end: str, orders: int, amount: float) -> tuple[str, dict[str, Any]]:
        start = f"2026-01-31T{minute}:00.000Z"
        return start, {"start": start, "end": f"2026-01-31T{end}:00.000Z", "orders": orders, "total": amount}

    first = total("09:00", "09:01", 2, 15.5)
    second = total("09:02", "09:03", 1, 2.0)
    third, fourth = total("09:07", "09:08", 1, 1.0), total("09:10", "09:11", 1, 3.0)
    # 09:07 minus five minutes: the minute 09:00 is over, the minute 09:02 is not.
    assert after(_order(1, "09:00:10", 10.0), _order(2, "09:00:50", 5.5), _order(3, "09:07:00")) == ([first], 0)
    # One comes late, but for a minute that is still open; one for a minute that has been written.
    assert after(_order(4, "09:02:30", 2.0), _order(5, "09:00:20", 99.0), _order(6, "09:10:00", 3.0)) == (
        [first, second],
        1,
    )
    assert after(_order(7, "09:30:00")) == ([first, second, third, fourth], 0)


def test_orders_are_joined_with_payments_in_time_and_written_alone_when_none_can_come(
    runs_of: Callable[[Job[...]], JobRuns],
) -> None:
    runs = runs_of(_example("order_payments"))
    orders, payments = (source.name for source in runs.job.sources)
    sink = runs.job.sink
    assert isinstance(sink, Topic)
    seen: set[str] = set()

    def after(placed: list[dict[str, Any]], paid: list[dict[str, Any]]) -> dict[str, str | None]:
        """The orders written since, and when each was paid."""
        send_json(runs.bootstrap, orders, placed)
        send_json(runs.bootstrap, payments, paid)
        runs.once()
        records = read_json(runs.bootstrap, sink.name)
        assert len(records) == len({key for key, _ in records})
        new = {value["id"]: value["paid_at"] for key, value in records if value["id"] not in seen}
        seen.update(new)
        return new

    def at(clock: str) -> str:
        return f"2026-01-31T{clock}.000Z"

    # One paid in time, one not at all, one after more than an hour.
    assert after(
        [_order(1, "09:00:00"), _order(2, "09:00:00"), _order(4, "09:10:00")],
        [_payment(1, "09:05:00"), _payment(4, "10:30:00")],
    ) == {"o-1": at("09:05:00")}
    # A payment that comes before its order waits for it, also while the job is not running.
    assert after([], [_payment(3, "09:20:00")]) == {}
    assert after([_order(3, "09:15:00")], []) == {"o-3": at("09:20:00")}
    # Once both topics are past the hour, orders without a payment are written.
    assert after([_order(5, "11:30:00")], [_payment(6, "11:30:00")]) == {"o-2": None, "o-4": None}
    # A later payment is left out; one in time counts.
    assert after([], [_payment(2, "09:30:00"), _payment(5, "12:00:00")]) == {"o-5": at("12:00:00")}


def test_each_order_is_in_the_table_once_until_its_id_is_forgotten(runs_of: Callable[[Job[...]], JobRuns]) -> None:
    runs = runs_of(_example("deduplicate_orders"))
    table = runs.job.sink
    assert isinstance(table, Table)

    def after(*sent: dict[str, Any]) -> list[tuple[str, str]]:
        """The orders in the table by time."""
        send_json(runs.bootstrap, runs.job.sources[0].name, sent)
        runs.once()
        rows = runs.spark.read.parquet(table.path).selectExpr("id", "date_format(at, 'HH:mm') AS at").collect()
        return sorted(((row["id"], row["at"]) for row in rows), key=lambda row: (row[1], row[0]))

    expected = [("o-1", "09:00"), ("o-2", "09:01")]
    assert after(_order(1, "09:00:00"), _order(1, "09:00:00"), _order(2, "09:01:00")) == expected
    # Ids from before the restart are still known.
    expected.append(("o-3", "09:02"))
    assert after(_order(1, "09:00:00"), _order(3, "09:02:00"), _order(2, "09:01:00")) == expected
    # At 10:30 minus ten minutes, the ids of 09:00 to 09:02 are forgotten.
    expected.append(("o-4", "10:30"))
    assert after(_order(4, "10:30:00")) == expected
    # So that one of them counts as new, and an order of 09:30 is too late.
    expected.insert(3, ("o-1", "10:25"))
    assert after(_order(1, "10:25:00"), _order(5, "09:30:00"), _order(4, "10:30:00")) == expected


def test_sample_data_is_the_same_for_the_same_seed_and_fits_together() -> None:
    def lines(*arguments: str) -> list[dict[str, Any]]:
        command = [sys.executable, str(EXAMPLES / "sample_data.py"), *arguments]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [json.loads(json.loads(line)["value"]) for line in output.splitlines()]

    orders = lines("orders", "--count", "500", "--seed", "7")
    assert orders == lines("orders", "--count", "500", "--seed", "7")
    assert {order["id"] for order in orders} == {f"o-{number}" for number in range(500)}
    assert len(orders) == 500
    assert len(lines("orders", "--count", "500", "--seed", "7", "--repeated", "20")) > 550
    times = [order["at"] for order in orders]
    assert times != sorted(times)
    placed = {order["id"]: order["at"] for order in orders}
    payments = lines("payments", "--count", "500", "--seed", "7")
    assert 400 < len(payments) < 500
    assert all(payment["at"] > placed[payment["order"]] for payment in payments)
