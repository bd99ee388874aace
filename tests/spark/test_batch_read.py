"""Batch reads with the source `tailrace`: what was produced is what a query sees, each offset exactly once.

What Spark's own Kafka connector does as well is in `test_kafka_connector.py`; here is what it does not have, and what
is said when something is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import CODECS, Record
from tests.support.topics import create_topic

START_MS = 1_760_000_000_000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
PARTITIONS = 3
RECORDS = 2000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def event(partition: int, number: int) -> Record:
    return Record(
        f"event {partition}/{number}".encode() * (number % 9),
        None if number % 5 == 2 else f"key {number}".encode(),
        (("trace", f"{number}".encode()), ("empty", None)) if number % 3 == 0 else (),
        START_MS + 1000 * number,
        partition,
    )


@pytest.fixture(scope="module")
def events(broker: BrokerProcess) -> str:
    """A topic that tests only read: three partitions of 2,000 records in batches of every codec."""
    topic = create_topic(broker.bootstrap, "batch-read-events", partitions=PARTITIONS)
    step = RECORDS // len(CODECS)
    for number, codec in enumerate(CODECS):
        numbers = range(number * step, (number + 1) * step)
        records = [event(partition, n) for partition in range(PARTITIONS) for n in numbers]
        ConfluentClient(broker.bootstrap).produce(topic, records, compression=codec)
    return topic


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Callable[..., DataFrame]:
    def load(**options: object) -> DataFrame:
        given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
        return spark.read.format("tailrace").options(**given).load()  # type: ignore[arg-type]

    return load


@pytest.fixture(params=["off", "on"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Spark passes a query's filters to a source."""
    spark.conf.set(PUSHDOWN, str(request.param == "on").lower())
    yield request.param == "on"
    spark.conf.unset(PUSHDOWN)


def message_of(query: Callable[[], object]) -> str:
    """The last line of the traceback that Spark quotes, which is what the user reads."""
    with pytest.raises(PySparkException) as caught:
        query()
    found = re.findall(r"^tailrace\.pipeline\.failures\.\w+Error: (.*)$", str(caught.value), re.MULTILINE)
    assert found, str(caught.value)
    return str(found[-1])


def test_every_record_is_read_once_with_all_it_carries(read: Callable[..., DataFrame], events: str) -> None:
    rows = read(subscribe=events, includeHeaders=True, minPartitions=7, maxRecordsPerPartition=1500).collect()
    found = {(row.partition, row.offset): row for row in rows}
    assert len(rows) == len(found) == PARTITIONS * RECORDS
    for (partition, offset), row in found.items():
        record = event(partition, offset)
        headers = None if not record.headers else [Row(key=key, value=value) for key, value in record.headers]
        assert (row.topic, row.timestampType, row.headers) == (events, 0, headers)
        assert (row.key, row.value) == (record.key, record.value)
        assert row.timestamp.astimezone(UTC) == START + timedelta(seconds=offset)


def test_one_partition_is_split_over_many_tasks(read: Callable[..., DataFrame], events: str) -> None:
    rows = read(assign=f'{{"{events}": [1]}}', minPartitions=8).withColumn("task", f.spark_partition_id())
    tasks = rows.groupBy("task").agg(f.count("*"), f.min("offset"), f.max("offset")).collect()
    assert len(tasks) == 8
    bounds = sorted((low, high) for _, _, low, high in tasks)
    assert [low for low, _ in bounds] == [0] + [high + 1 for _, high in bounds[:-1]]
    assert sum(count for _, count, _, _ in tasks) == RECORDS


def test_filters_give_the_same_rows_whether_they_are_pushed_down_or_not(
    read: Callable[..., DataFrame], events: str, pushdown: bool
) -> None:
    table = read(subscribe=events)
    begin = START + timedelta(seconds=500)
    end = START + timedelta(seconds=600)
    timed = table.where((f.col("timestamp") >= f.lit(begin)) & (f.col("timestamp") < f.lit(end)))
    offsets = table.where("partition = 1 and offset > 100 and offset <= 150").select("offset")
    some = table.where("partition in (0, 2) and offset in (7, 1999) and topic like '%events'")
    none = table.where("partition = 99 or offset < 0")
    assert Counter(row.partition for row in timed.collect()) == {0: 100, 1: 100, 2: 100}
    assert sorted(row.offset for row in offsets.collect()) == list(range(101, 151))
    assert sorted((row.partition, row.offset) for row in some.collect()) == [(0, 7), (0, 1999), (2, 7), (2, 1999)]
    assert none.count() == 0
    # With pushdown, no task is planned for the other partitions.
    one = table.where("partition = 1 and offset >= 10")
    assert one.rdd.getNumPartitions() == (1 if pushdown else PARTITIONS)


def test_columns_are_chosen_by_option_or_by_schema(
    read: Callable[..., DataFrame], spark: SparkSession, broker: BrokerProcess, events: str
) -> None:
    by_option = read(subscribe=events, columns="offset, VALUE", endingTimestamp=START_MS + 5000)
    assert by_option.columns == ["offset", "value"]
    assert sorted(by_option.collect())[-1] == (4, event(2, 4).value)
    reader = spark.read.format("tailrace").option("KAFKA.bootstrap.servers", broker.bootstrap)
    by_schema = reader.option("SUBSCRIBE", events).schema("partition int, timestamp timestamp").load()
    assert by_schema.where(f.col("timestamp") == f.lit(START)).orderBy("partition").collect() == [
        Row(partition=number, timestamp=START.replace(tzinfo=None)) for number in range(PARTITIONS)
    ]
    refused = reader.option("subscribe", events).schema("partition long").load
    assert "column 'partition' of a topic is int, not bigint" in message_of(lambda: refused().collect())


def test_a_topic_without_records_and_a_pattern_without_topics_are_empty_tables(
    read: Callable[..., DataFrame], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    assert read(subscribe=topic).count() == 0
    assert read(subscribePattern="no-topic-is-named-so-.*").count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"assign": '{"batch-read-events": [0, 7]}'}, "partition 7 of topic 'batch-read-events' does not exist"),
        ({}, "exactly one of the options subscribe, subscribePattern and assign is required, none is given"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "required, not both assign and subscribe"),
        ({"subscribe": "a", "startingOffset": "latest"}, "unknown option 'startingoffset'; did you mean 'startingOffs"),
        ({"subscribe": "a", "kafka.sasl.mechanism": "PLAIN"}, "'kafka.sasl.mechanism' is not supported yet"),
        ({"subscribe": "a", "startingOffsets": '{"a": 5}'}, 'expected JSON such as {"topicA":{"0":23,"1":-1}'),
        ({"subscribe": "a", "startingOffsets": "latest"}, "cannot be the latest (-1) in a batch query"),
        (
            {"subscribe": "batch-read-events", "startingOffsets": '{"batch-read-events": {"0": 5, "1": -2}}'},
            "option 'startingOffsets' must name all partitions; it lacks batch-read-events-2",
        ),
        (
            {"subscribe": "batch-read-events", "startingOffsets": '{"batch-read-events": {"0":5,"1":-2,"2":0,"3":0}}'},
            "option 'startingOffsets' has partitions that are not read: batch-read-events-3",
        ),
        (
            {"assign": '{"batch-read-events": [0]}', "endingOffsets": '{"batch-read-events": {"0": 2001}}'},
            "option 'endingOffsets' has the offset 2001 for batch-read-events-0, whose log ends at 2000",
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_users_words(
    read: Callable[..., DataFrame], events: str, options: dict[str, str], message: str
) -> None:
    assert message in message_of(lambda: read(**options).count())


def test_a_broker_that_is_not_there_is_said_to_be_unreachable(spark: SparkSession) -> None:
    address = f"127.0.0.1:{free_port()}"
    table = spark.read.format("tailrace").options(subscribe="a", **{"kafka.bootstrap.servers": address}).load()
    assert f"cannot reach a broker at {address} (connection refused)" in message_of(table.count)
