"""Columns that `tailrace sql` guesses: those of all values, in types that hold all of them, and never a silent null."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from pyspark.sql import SparkSession

from tailrace.cli.spark_progress import ProgressLine
from tailrace.cli.sql import reading_of, run
from tailrace.pipeline.sql.sampling import SAMPLE_BYTES, take_sample
from tests.support.batches.raw_records import RawRecord, produce
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.topics import create_topic

Ask = Callable[[str], tuple[list[dict[str, object]], str]]


@pytest.fixture
def ask(spark: SparkSession, broker: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The rows of a query over the topic, and its warnings."""

    def asked(query: str) -> tuple[list[dict[str, object]], str]:
        reading = reading_of(broker.bootstrap, (), (), "earliest", "latest")
        capsys.readouterr()
        run(spark, query.format(topic=f"`{topic}`"), reading, [topic], ProgressLine("", shown=False), as_json=True)
        out, err = capsys.readouterr()
        return [json.loads(line) for line in out.splitlines()], err

    return asked


def fill(broker: BrokerProcess, topic: str, values: Sequence[bytes], in_a_batch: int = 1000) -> None:
    create_topic(broker.bootstrap, topic)
    for first in range(0, len(values), in_a_batch):
        produce(broker.port, topic, [RawRecord(value) for value in values[first : first + in_a_batch]])


def test_types_and_fields_of_the_middle_count_as_those_of_the_ends(broker: BrokerProcess, topic: str, ask: Ask) -> None:
    """10,000 whole numbers, of which 1,000 near the middle are written as fractions, and one has a field more."""
    values = [b'{"n": %d}' % number for number in range(10_000)]
    values[2500:3500] = [b'{"n": %d.5}' % number for number in range(2500, 3500)]
    values[3000] = b'{"n": 3000.5, "seldom": "x"}'
    fill(broker, topic, values)
    rows, said = ask("SELECT sum(n) AS n, count(seldom) AS seldom, count(_corrupt) AS corrupt FROM {topic}")
    assert rows == [{"n": sum(range(10_000)) + 500.0, "seldom": 1, "corrupt": 0}]
    assert "Warning" not in said


def test_values_that_are_no_objects_are_in_corrupt_and_are_said(broker: BrokerProcess, topic: str, ask: Ask) -> None:
    values = [b'{"n": %d}' % number for number in range(5000)]
    values[1500:1503] = [b'[{"n": 7}, {"n": 8}]', b"n/a", b"5"]
    fill(broker, topic, values)
    rows, said = ask("SELECT count(n) AS n, count(_corrupt) AS corrupt FROM {topic}")
    assert rows == [{"n": 4997, "corrupt": 3}]
    assert f"Warning: some values of topic '{topic}' are not JSON objects: their fields are null" in said
    # A query that needs no values reports none.
    rows, said = ask("SELECT count(*) AS n FROM {topic}")
    assert rows == [{"n": 5000}]
    assert "Warning" not in said


def test_a_sample_of_large_values_is_small(broker: BrokerProcess, topic: str, ask: Ask) -> None:
    values = [json.dumps({"id": number, "text": "x" * 400_000}).encode() for number in range(100)]
    fill(broker, topic, values, in_a_batch=2)
    sample = take_sample({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    assert sum(map(len, sample.values)) <= SAMPLE_BYTES
    assert not sample.is_complete
    assert ask("SELECT count(*) AS n, sum(id) AS ids, max(length(text)) AS size FROM {topic}")[0] == [
        {"n": 100, "ids": 4950, "size": 400_000}
    ]
