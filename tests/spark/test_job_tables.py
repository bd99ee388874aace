"""What a job writes beside its rows, and what it refuses to write: dead letters, and tables that change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.client import Producer, Topics, read
from tailrace.errors import TailraceError
from tailrace.pipeline.jobs.checkpoints import write_text
from tailrace.pipeline.jobs.declaration import Job, Table, Topic, job
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.job_run import JobRuns, read_json, send_json
from tests.support.topics import create_topic


@pytest.fixture
def run(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Callable[..., JobRuns]:
    def make(chosen: Job[...], **options: Any) -> JobRuns:
        return JobRuns(spark, chosen, broker.bootstrap, tmp_path / "checkpoints" / chosen.name, options=options)

    return make


def send_odd_values(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, '{"id": 1, "amount": 2.5}')
        producer.send(topic, b"\xff no JSON", key="k", headers=[("trace", b"t")])
        producer.send(topic, '{"id": "x", "amount": 3}')
        producer.send(topic, None, key="gone")


def test_what_cannot_be_decoded_goes_to_a_topic_of_dead_letters_with_the_reason(
    spark: SparkSession, broker: BrokerProcess, run: Callable[..., JobRuns], topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    send_odd_values(broker.bootstrap, topic)

    @job(source=Topic(topic, schema="id LONG, amount DOUBLE"), sink=Topic(f"{topic}-out"))
    def copy(records: DataFrame) -> DataFrame:
        return records

    runs = run(copy)
    runs.once()
    assert read_json(broker.bootstrap, f"{topic}-out") == [
        (None, {"id": 1, "amount": 2.5}),
        (None, {"id": None, "amount": None}),  # a tombstone is no value that could not be decoded
    ]

    def letters() -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
        with read(f"{topic}-out-dead-letters", bootstrap=broker.bootstrap) as messages:
            found = [(message.key, message.value, dict(message.headers)) for message in messages]
        return sorted(found, key=lambda letter: letter[2]["__dlq.errors.offset"] or b"")

    first, second = letters()
    told = {"topic": topic, "partition": "0", "offset": "1", "group": f"group-of-{topic}"}
    expected = {f"__dlq.errors.{name}": text.encode() for name, text in told.items()}
    reason = b"the value is not a JSON object"
    assert first == (b"k", b"\xff no JSON", {"trace": b"t", **expected, "__dlq.errors.message": reason})
    assert second[1] == b'{"id": "x", "amount": 3}'
    assert second[2]["__dlq.errors.message"] == b"fields do not fit the schema: id is not bigint"
    assert runs.warnings == [f"2 values of topic '{topic}' cannot be decoded; see topic '{topic}-out-dead-letters'"]
    # Batches without any write nothing; what a run that was killed has not written yet is found by the next.
    state = runs.checkpoint / "dead-letters.json"
    kept = json.loads(state.read_text())
    assert kept["done"] == {"0": {topic: {"0": 4}}}
    write_text(spark, str(state), json.dumps({**kept, "done": {"0": {topic: {"0": 2}}}}))
    send_json(broker.bootstrap, topic, [{"id": 5}])
    runs.once()
    assert [letter[1] for letter in letters()] == [first[1], second[1], second[1]]
    send_json(broker.bootstrap, topic, [{"id": 6}])
    runs.once()
    assert len(letters()) == 3


def test_dead_letters_of_a_table_are_a_table_and_can_be_turned_off(
    spark: SparkSession, broker: BrokerProcess, run: Callable[..., JobRuns], topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    send_odd_values(broker.bootstrap, topic)
    source = Topic(topic, schema="id LONG")
    table = tmp_path / "table"

    @job(source=source, sink=Table(str(table)))
    def keep(records: DataFrame) -> DataFrame:
        return records.where("id IS NOT NULL OR _corrupt IS NOT NULL")

    run(keep).once()
    assert [row.id for row in spark.read.parquet(str(table)).collect()] == [1]
    letters = spark.read.parquet(f"{table}-dead-letters").orderBy("offset").collect()
    assert [(row.topic, row.offset, bytes(row.value), row.reason, row.job) for row in letters] == [
        (topic, 1, b"\xff no JSON", "the value is not a JSON object", "keep"),
        (topic, 2, b'{"id": "x", "amount": 3}', "fields do not fit the schema: id is not bigint", "keep"),
    ]

    @job(source=source, sink=Topic(f"{topic}-all"), dead_letters=None)
    def all_of_them(records: DataFrame) -> DataFrame:
        return records.selectExpr("id", "_corrupt IS NOT NULL AS broken")

    run(all_of_them).once()
    assert [value["broken"] for _, value in read_json(broker.bootstrap, f"{topic}-all")] == [False, True, True, False]
    assert f"{topic}-all-dead-letters" not in [each.name for each in Topics(broker.bootstrap).list()]


def test_a_table_takes_columns_that_are_added_and_refuses_types_that_do_not_fit(
    spark: SparkSession, broker: BrokerProcess, run: Callable[..., JobRuns], topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    path = tmp_path / "table"

    def version(*columns: str, send: int) -> JobRuns:
        send_json(broker.bootstrap, topic, [{"id": send}])

        @job(source=Topic(topic, schema="id INT"), sink=Table(str(path)), name="versions")
        def change(records: DataFrame) -> DataFrame:
            return records.selectExpr(*columns)

        return run(change)

    version("CAST(id AS LONG) AS id", "id AS amount", "'a' AS gone", send=1).once()
    (path / "_tailrace_schema.json").unlink()  # a table of an earlier version has none
    version("id", "CAST(id AS SHORT) AS amount", "struct(id AS x) AS more", send=2).once()
    before = sorted(file.name for file in path.rglob("*"))
    for wrong, problem in (
        ("'x' AS amount", "has column 'amount' as string, which does not fit into int of table '.*'; cast it"),
        ("CAST(id AS LONG) AS amount", "has column 'amount' as bigint, which does not fit into int of table '.*'"),
        (
            "struct(id AS y) AS more",
            "has column 'more' as struct<y:int>, which does not fit into struct<x:int> of table '.*'",
        ),
    ):
        with pytest.raises(TailraceError, match=problem):
            version(wrong, send=3).once()
    assert sorted(file.name for file in path.rglob("*")) == before
    merged = spark.read.option("mergeSchema", "true").parquet(str(path)).orderBy("id").collect()
    assert [(row.id, row.amount, row.gone, row.more) for row in merged] == [(1, 1, "a", None), (2, 2, None, (2,))]
    assert spark.read.parquet(str(path)).select("id", "amount").count() == 2
