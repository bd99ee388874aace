"""Jobs as `tailrace pipeline run` runs them: killed, stopped, started again, refused, and failing in plain words."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.client import Groups, Producer, read
from tailrace.errors import TailraceError
from tailrace.pipeline.jobs.checkpoints import CheckpointError
from tailrace.pipeline.jobs.declaration import Job, JobError, Table, Topic, job
from tailrace.pipeline.spark.errors import PipelineError
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.job_run import JobProcess, JobRuns, read_json, send_json
from tests.support.topics import create_topic

PARTITIONS = 2
RECORDS = 3000
#: Small batches, so that a job is far from its end when it is killed or stopped.
RECORDS_PER_BATCH = 100

COPY = """
from pyspark.sql import DataFrame
from tailrace.pipeline.jobs.declaration import Table, Topic, job

@job(source=Topic("{topic}", format="text"), sink=Table("{table}"))
def copy(records: DataFrame, *, label: str = "none") -> DataFrame:
    return records.selectExpr("_partition AS partition", "_offset AS offset", "value", f"'{{label}}' AS label")
"""


def test_a_job_that_is_killed_and_stopped_and_started_again_fills_its_table_exactly_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    table, file, errors = tmp_path / "table", tmp_path / "copy_job.py", tmp_path / "stderr"
    file.write_text(COPY.format(topic=topic, table=table))
    command = [str(file), "--bootstrap", broker.bootstrap, "--checkpoint", str(tmp_path / "checkpoints")]
    command += ["--max-offsets-per-trigger", str(RECORDS_PER_BATCH), "--group", f"progress-of-{topic}"]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=512m", "--label", "seen"]

    def send(first: int) -> None:
        with Producer(broker.bootstrap) as producer:
            for number in range(first, first + RECORDS):
                producer.send(topic, str(number), partition=number % PARTITIONS)

    def lag() -> int:
        return Groups(broker.bootstrap).describe(f"progress-of-{topic}").lag

    send(0)
    with JobProcess(command, errors) as process:
        batches = [process.next_batch() for _ in range(3)]
        process.kill()
    assert [batch and batch["batch"] for batch in batches] == [0, 1, 2], process.error_output()
    assert [batch and batch["rows"] for batch in batches] == [RECORDS_PER_BATCH] * 3
    assert [batch and batch["lag"] for batch in batches] == [RECORDS - (n + 1) * RECORDS_PER_BATCH for n in range(3)]

    with JobProcess(command, errors) as process:
        first = process.next_batch()
        # As Ctrl-C in a terminal does it.
        process.signal(signal.SIGINT)
        assert process.wait() == 130, process.error_output()
    assert first is not None
    assert first["batch"] >= 3
    assert "restart it to continue from here" in process.error_output()
    assert 0 < lag() < RECORDS

    send(RECORDS)
    # The rest need not be many batches.
    with JobProcess([*command, "--max-offsets-per-trigger", str(RECORDS)], errors) as process:
        numbers = []
        while (batch := process.next_batch()) is not None:
            numbers.append(batch["batch"])
            if batch["lag"] == 0:
                process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.error_output()
    assert numbers[0] > first["batch"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert lag() == 0

    rows = spark.read.parquet(str(table)).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(2 * RECORDS))
    assert len({(row["partition"], row["offset"]) for row in rows}) == 2 * RECORDS
    assert {row["label"] for row in rows} == {"seen"}
    assert "\tat org.apache.spark" not in process.error_output()


@pytest.fixture
def run(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Callable[..., JobRuns]:
    def make(chosen: Job[...], **options: Any) -> JobRuns:
        return JobRuns(spark, chosen, broker.bootstrap, tmp_path / "checkpoints" / chosen.name, options=options)

    return make


def test_rows_become_records_with_a_key_and_a_value_as_the_sink_says(
    broker: BrokerProcess, run: Callable[..., JobRuns], topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    send_json(broker.bootstrap, topic, [{"id": 1, "name": "é", "at": "2026-01-31T12:00:00Z"}, {"id": 2}])
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"\xff not JSON", key="k")

    @job(source=Topic(topic, schema="id LONG, name STRING, at TIMESTAMP"), sink=Topic(f"{topic}-json", key="at"))
    def objects(records: DataFrame) -> DataFrame:
        return records.where("_corrupt IS NULL")

    run(objects).once()
    assert read_json(broker.bootstrap, f"{topic}-json") == [
        ("2026-01-31T12:00:00.000Z", {"id": 1, "name": "é", "at": "2026-01-31T12:00:00.000Z"}),
        (None, {"id": 2, "name": None, "at": None}),
    ]

    @job(source=Topic(topic, format="raw"), sink=Topic(f"{topic}-raw", format="raw", key="_key"))
    def as_they_are(records: DataFrame) -> DataFrame:
        return records.where("_offset >= 1")

    run(as_they_are).once()
    with read(f"{topic}-raw", bootstrap=broker.bootstrap) as messages:
        assert [(message.key, message.value) for message in messages] == [
            (None, b'{"id": 2}'),
            (b"k", b"\xff not JSON"),
        ]


def test_a_checkpoint_of_other_topics_is_refused(
    broker: BrokerProcess, run: Callable[..., JobRuns], topic: str, tmp_path: Path
) -> None:
    for name in (topic, f"{topic}-other"):
        create_topic(broker.bootstrap, name)
        send_json(broker.bootstrap, name, [{"id": 1}])

    @job(source=Topic(topic, schema="id LONG"), sink=Table(str(tmp_path / "table")))
    def ids(records: DataFrame) -> DataFrame:
        return records

    assert run(ids).once()[0].rows == 1
    moved = dataclasses.replace(ids, sources=(Topic(f"{topic}-other", schema="id LONG"),))
    with pytest.raises(CheckpointError) as caught:
        run(moved).once()
    assert f"belongs to a job that reads {topic}, but this one reads {topic}-other; give the job another name" in str(
        caught.value
    )


def test_what_a_job_does_wrong_is_told_with_its_place_and_no_java(
    broker: BrokerProcess, run: Callable[..., JobRuns], topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    send_json(broker.bootstrap, topic, [{"id": 1}])
    source = Topic(topic, schema="id LONG")
    table = Table(str(tmp_path / "table"))

    def failure_of(chosen: Job[...]) -> TailraceError:
        with pytest.raises(TailraceError) as caught:
            run(chosen).once()
        assert "\tat " not in str(caught.value)
        assert "py4j" not in str(caught.value)
        return caught.value

    @job(source=source, sink=table)
    def nothing(records: DataFrame) -> DataFrame:
        records.where("id > 1")  # type: ignore[return]

    assert "job 'nothing' returns NoneType, but a DataFrame is required; is a return missing?" in str(
        failure_of(nothing)
    )

    @job(source=source, sink=table)
    def no_column(records: DataFrame) -> DataFrame:
        return records.where("ident > 1")

    error = failure_of(no_column)
    assert str(error).startswith("there is no column `ident`; did you mean `id`")
    assert 'in no_column: return records.where("ident > 1")' in error.__notes__[-1]

    @job(source=source, sink=table)
    def broken(records: DataFrame) -> DataFrame:
        return records.where(records.id > [][0])

    error = failure_of(broken)
    assert isinstance(error, JobError)
    assert str(error) == "job 'broken' failed: IndexError: list index out of range"
    assert "test_jobs.py, line " in error.__notes__[-1]

    @job(source=source, sink=Topic(f"{topic}-sink", key="customer"))
    def no_key(records: DataFrame) -> DataFrame:
        return records

    assert "has the key 'customer', but there is no such column; the columns are id" in str(failure_of(no_key))

    @job(source=Topic(topic, schema="id LONGER"), sink=table)
    def no_schema(records: DataFrame) -> DataFrame:
        return records

    assert str(failure_of(no_schema)).startswith(f"topic '{topic}': the schema is invalid:")

    @job(source=source, sink=table)
    def no_watermark(records: DataFrame) -> DataFrame:
        return records.groupBy("id").count()

    assert "watermark" in str(failure_of(no_watermark))

    @job(source=source, sink=table)
    def failing_batch(records: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        return records.select(udf(lambda value: 1 // (value - 1), "long")("id").alias("id"))

    error = failure_of(failing_batch)
    assert isinstance(error, PipelineError)
    assert str(error).startswith("ZeroDivisionError: integer division or modulo by zero")
