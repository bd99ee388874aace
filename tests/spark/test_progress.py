"""Progress shows in `tailrace group describe`, and is never ahead of what a query has processed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import DataFrame, SparkSession

from tailrace.client import Groups
from tailrace.pipeline.jobs.batches import Batch
from tailrace.pipeline.jobs.declaration import Table, Topic, job
from tailrace.pipeline.jobs.query import RunSettings
from tailrace.pipeline.jobs.run import Stop, run_job
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.job_run import JobRuns, send_json
from tests.support.spark.spark import started
from tests.support.topics import create_topic, eventually

RECORDS = 90
#: Warned of by a machine that is slow, and no matter of progress.
TOO_BUSY = "the machine is too busy"


def describe(bootstrap: str, group: str) -> dict[str, Any]:
    """The description of a group that users see, as JSON."""
    command = [sys.executable, "-m", "tailrace", "group", "describe", group, "--json", "--bootstrap", bootstrap]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    description: dict[str, Any] = json.loads(result.stdout)
    return description


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """A topic of three partitions with records in two of them."""
    create_topic(broker.bootstrap, topic, partitions=3)
    send_json(broker.bootstrap, topic, ({"id": n} for n in range(60)), partition=0)
    send_json(broker.bootstrap, topic, ({"id": n} for n in range(30)), partition=1)
    return topic


def _job(topic: str, tmp_path: Path) -> Any:
    @job(source=Topic(topic, schema="id LONG"), sink=Table(str(tmp_path / "table")))
    def ids(records: DataFrame) -> DataFrame:
        return records

    return ids


def test_the_lag_of_a_job_shrinks_to_nothing_and_never_runs_ahead(
    spark: SparkSession, broker: BrokerProcess, filled: str, tmp_path: Path
) -> None:
    group = f"progress-of-{filled}"
    settings = RunSettings(broker.bootstrap, str(tmp_path / "checkpoint"), group, once=True, max_offsets_per_trigger=30)
    groups = Groups(broker.bootstrap)
    seen: list[tuple[int | None, int]] = []
    warnings: list[str] = []

    def report(batch: Batch) -> None:
        # The commit while the next batch is already running.
        seen.append((batch.lag, RECORDS - sum(groups.committed(group).values())))

    run_job(spark, _job(filled, tmp_path), settings, report=report, warn=warnings.append, stop=Stop())
    assert not [warning for warning in warnings if TOO_BUSY not in warning]
    lags = [lag for lag, _ in seen]
    assert lags == sorted(lags, key=lambda lag: lag or 0, reverse=True)
    assert len(lags) >= 3
    # A commit may follow its batch, but never precede it.
    assert all(lag is not None and committed >= lag for lag, committed in seen)
    # A job waits at most ten seconds for its last commit.
    assert eventually(lambda: sum(groups.committed(group).values()) == RECORDS, timeout_seconds=60)
    described = describe(broker.bootstrap, group)
    assert described["lag"] == 0
    assert {(each["partition"], each["committed"]) for each in described["partitions"]} == {(0, 60), (1, 30), (2, 0)}

    send_json(broker.bootstrap, filled, [{"id": 1}] * 7, partition=2)
    assert describe(broker.bootstrap, group)["lag"] == 7


def test_a_group_that_consumers_use_is_left_to_them_and_the_job_goes_on(
    spark: SparkSession, broker: BrokerProcess, filled: str, tmp_path: Path
) -> None:
    runs = JobRuns(spark, _job(filled, tmp_path), broker.bootstrap, tmp_path / "checkpoint")
    group = runs.settings.group
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    # It does not poll while the job runs, however long that takes.
    consumer = Consumer({**settings, "max.poll.interval.ms": 3_600_000})
    consumer.subscribe([filled])
    try:
        assert eventually(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), timeout_seconds=60)
        batches = runs.once()
    finally:
        consumer.close()
    assert sum(batch.rows for batch in batches) == RECORDS
    (warning,) = (each for each in runs.warnings if TOO_BUSY not in each)
    assert warning.startswith(f"cannot show progress in group '{group}': group '{group}' has members")
    assert Groups(broker.bootstrap).committed(group) == {}


def test_a_query_with_a_group_of_its_own_shows_its_progress_there(
    spark: SparkSession, broker: BrokerProcess, filled: str, tmp_path: Path
) -> None:
    group = f"group-of-{filled}"
    records = (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("kafka.group.id", group)
        .option("subscribe", filled)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "50")
        .load()
    )
    writer = records.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(writer.start)
    try:
        groups = Groups(broker.bootstrap)
        # Spark never tells a source that a batch is done: it shows when the next one is planned, whether one comes or
        # not. Of a query that ends, the process that commits is ended too, and may not be done with the last one.
        assert eventually(lambda: sum(groups.committed(group).values()) == RECORDS, timeout_seconds=300)
        assert describe(broker.bootstrap, group)["lag"] == 0
    finally:
        query.stop()
