"""Spark's own Kafka connector reads and writes the broker unchanged, and a job moves to the source `tailrace` by
changing one word: every test here runs with both."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import CODECS, Received, Record
from tests.support.spark.spark import started
from tests.support.topics import create_topic

START_MS = 1_760_000_000_000
PARTITIONS = 3
#: In each partition of the topic that all read from; record n of it has the time START_MS + 1000 n.
RECORDS = 50
PATIENCE_SECONDS = 600


@pytest.fixture(params=["kafka", "tailrace"])
def source(request: pytest.FixtureRequest) -> str:
    """The one word that a job changes."""
    return str(request.param)


@pytest.fixture
def client(broker: BrokerProcess) -> ConfluentClient:
    """A client that is neither of the two."""
    return ConfluentClient(broker.bootstrap)


@pytest.fixture(scope="module")
def orders(broker: BrokerProcess) -> str:
    """A topic that tests only read: three partitions, every codec, keys, headers, nulls."""
    topic = create_topic(broker.bootstrap, "connector-orders", partitions=PARTITIONS)
    for first, codec in zip(range(0, RECORDS, RECORDS // len(CODECS)), CODECS, strict=True):
        numbers = range(first, first + RECORDS // len(CODECS))
        ConfluentClient(broker.bootstrap).produce(
            topic, [order(partition, n) for partition in range(PARTITIONS) for n in numbers], compression=codec
        )
    return topic


def order(partition: int, number: int) -> Record:
    """Record `number` of a partition, with and without a key, a value and headers."""
    return Record(
        None if number % 7 == 3 else f"order {partition}/{number} ä".encode(),
        None if number % 5 == 2 else f"customer {number}".encode(),
        (("trace", f"{number}".encode()), ("trace", b"\xff\x00"), ("none", None)) if number % 3 == 0 else (),
        START_MS + 1000 * number,
        partition,
    )


def numbered(count: int, *, first: int = 0, partition: int = 0) -> list[Record]:
    """Records whose values are their numbers."""
    return [Record(str(number).encode(), partition=partition) for number in range(first, first + count)]


def batch(spark: SparkSession, source: str, broker: BrokerProcess, **options: object) -> DataFrame:
    return spark.read.format(source).options(**server(broker), **options).load()  # type: ignore[arg-type]


def stream(spark: SparkSession, source: str, broker: BrokerProcess, **options: object) -> DataFrame:
    return spark.readStream.format(source).options(**server(broker), **options).load()  # type: ignore[arg-type]


def server(broker: BrokerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap}


def offsets(rows: DataFrame) -> dict[tuple[str, int], list[int]]:
    """The offsets that rows have, by topic and partition."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows.select("topic", "partition", "offset").collect():
        found.setdefault((row.topic, row.partition), []).append(row.offset)
    return {key: sorted(found[key]) for key in sorted(found)}


def copy_available(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Append what is new since the last run to a folder of Parquet files."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = started(lambda: writer.trigger(availableNow=True).start(str(folder / "rows")))
    try:
        assert query.awaitTermination(PATIENCE_SECONDS)
    finally:
        query.stop()
    return query


def copied_values(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(str(folder / "rows")).select(f.col("value").cast("string").cast("int").alias("n"))
    return sorted(row.n for row in rows.collect())


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def delete_records(broker: BrokerProcess, topic: str, *, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    (future,) = admin.delete_records([TopicPartition(topic, 0, before)]).values()
    future.result(30)


def test_a_batch_read_has_every_record_with_all_it_carries(
    spark: SparkSession, broker: BrokerProcess, orders: str, source: str
) -> None:
    rows = batch(spark, source, broker, subscribe=orders, includeHeaders="true")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    seen = rows.withColumn("time_ms", f.unix_millis("timestamp")).orderBy("partition", "offset").collect()
    assert {(row.topic, row.timestampType) for row in seen} == {(orders, 0)}
    assert [
        (
            row.partition,
            row.offset,
            row.time_ms,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((one.key, None if one.value is None else bytes(one.value)) for one in row.headers or ()),
        )
        for row in seen
    ] == [
        (partition, n, one.timestamp_ms, one.key, one.value, one.headers)
        for partition in range(PARTITIONS)
        for n in range(RECORDS)
        for one in [order(partition, n)]
    ]


def test_without_being_asked_there_is_no_column_of_headers(
    spark: SparkSession, broker: BrokerProcess, orders: str, source: str
) -> None:
    rows = batch(spark, source, broker, subscribe=orders)
    assert rows.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert rows.where("key is null").count() == PARTITIONS * sum(1 for n in range(RECORDS) if n % 5 == 2)


#: Name of the case: options, with the topic's name for `TOPIC`, and from which to which offset each partition is read.
RANGES: dict[str, tuple[dict[str, str], list[tuple[int, int]]]] = {
    "earliest to latest": ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(0, 50)] * 3),
    "by offset": (
        {
            "startingOffsets": '{"TOPIC": {"0": 10, "1": -2, "2": 50}}',
            "endingOffsets": '{"TOPIC": {"0": 40, "1": 5, "2": -1}}',
        },
        [(10, 40), (0, 5), (50, 50)],
    ),
    "from a time to a time": (
        {"startingTimestamp": f"{START_MS + 20_000}", "endingTimestamp": f"{START_MS + 29_001}"},
        [(20, 30)] * 3,
    ),
    "by time and partition": (
        {
            "startingOffsetsByTimestamp": json.dumps({"TOPIC": {str(n): START_MS + n * 10_000 + 1 for n in range(3)}}),
            "endingOffsetsByTimestamp": json.dumps({"TOPIC": {str(n): START_MS + 45_000 for n in range(3)}}),
        },
        [(1, 45), (11, 45), (21, 45)],
    ),
    "to a time after the last record": (
        {"startingTimestamp": f"{START_MS + 48_000}", "endingTimestamp": f"{START_MS + 99_000}"},
        [(48, 50)] * 3,
    ),
    "from a time after the last record": (
        {"startingTimestamp": f"{START_MS + 99_000}", "startingOffsetsByTimestampStrategy": "latest"},
        [(50, 50)] * 3,
    ),
}


@pytest.mark.parametrize("case", RANGES)
def test_a_batch_read_begins_and_ends_where_it_is_told(
    spark: SparkSession, broker: BrokerProcess, orders: str, source: str, case: str
) -> None:
    options, ranges = RANGES[case]
    named = {name: value.replace("TOPIC", orders) for name, value in options.items()}
    assert offsets(batch(spark, source, broker, subscribe=orders, **named)) == {
        (orders, partition): list(range(first, last)) for partition, (first, last) in enumerate(ranges) if first < last
    }


def test_a_start_by_time_that_no_record_has_is_refused_unless_told_otherwise(
    spark: SparkSession, broker: BrokerProcess, orders: str, source: str
) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match=r"(?i)timestamp"):
        batch(spark, source, broker, subscribe=orders, startingTimestamp=str(START_MS + 99_000)).collect()


def test_partitions_can_be_assigned_and_topics_found_by_pattern(
    spark: SparkSession,
    broker: BrokerProcess,
    client: ConfluentClient,
    orders: str,
    topic_name: Callable[[], str],
    source: str,
) -> None:
    chosen = batch(spark, source, broker, assign=json.dumps({orders: [0, 2]}))
    assert offsets(chosen) == {(orders, partition): list(range(RECORDS)) for partition in (0, 2)}
    first, second = (f"{source}-pattern-{topic_name()}" for _ in range(2))
    for topic in (first, second, topic_name()):
        create_topic(broker.bootstrap, topic)
        client.produce(topic, numbered(3))
    # As in Spark, a name matches if it contains the pattern.
    found = batch(spark, source, broker, subscribePattern=f"{source[1:]}-patt[e]rn")
    assert offsets(found) == {(first, 0): [0, 1, 2], (second, 0): [0, 1, 2]}
    both = batch(spark, source, broker, subscribe=f"{first},{second}")
    assert offsets(both) == offsets(found)


def test_one_partition_is_shared_out_over_several_tasks(
    spark: SparkSession, broker: BrokerProcess, orders: str, source: str
) -> None:
    rows = batch(spark, source, broker, subscribe=orders, minPartitions=12)
    tasks = rows.withColumn("task", f.spark_partition_id()).select("task", "partition", "offset").collect()
    assert len({row.task for row in tasks}) >= 12
    assert len({row.task for row in tasks if row.partition == 0}) >= 4
    assert sorted((row.partition, row.offset) for row in tasks) == [
        (partition, n) for partition in range(PARTITIONS) for n in range(RECORDS)
    ]


def received(client: ConfluentClient, topic: str, partitions: Sequence[int]) -> dict[int, list[Received]]:
    ends = client.offsets(topic, partitions)
    return {
        number: client.consume(topic, number, ends[number][1], timeout_seconds=PATIENCE_SECONDS)
        for number in partitions
    }


def test_a_batch_write_keeps_keys_and_headers_and_goes_where_rows_say(
    spark: SparkSession,
    broker: BrokerProcess,
    client: ConfluentClient,
    topic_name: Callable[[], str],
    source: str,
) -> None:
    named, hashed = (create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS) for _ in range(2))
    rows = spark.range(60).selectExpr(
        "if(id % 5 = 2, null, concat('customer ', id)) as key",
        "if(id % 7 = 3, null, encode(concat('order ', id), 'utf-8')) as value",
        "array(named_struct('key', 'trace', 'value', encode(cast(id as string), 'utf-8'))) as headers",
        f"'{named}' as topic",
        "cast(id % 3 as int) as partition",
    )
    rows.write.format(source).mode("append").options(**server(broker), includeHeaders="true").save()
    got = received(client, named, range(PARTITIONS))
    for partition, records in got.items():
        assert sorted(one.content() for one in records if one.key) == sorted(
            (f"customer {n}".encode(), None if n % 7 == 3 else f"order {n}".encode(), (("trace", f"{n}".encode()),))
            for n in range(60)
            if n % 3 == partition and n % 5 != 2
        )
    assert sum(len(records) for records in got.values()) == 60
    # Without a column that names the partition, a key goes to the default partition of Kafka's clients.
    keyed = rows.select("key", "value").where("key is not null")
    keyed.write.format(source).mode("append").options(**server(broker), topic=hashed).save()
    places = {
        one.key: number for number, records in received(client, hashed, range(PARTITIONS)).items() for one in records
    }
    other = create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS)
    keys = sorted(places)
    sent = client.produce(other, [Record(b"", key, partition=None) for key in keys], partitioner="murmur2")
    assert [places[key] for key in keys] == [partition for partition, _ in sent]


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_written_in_the_codec_that_is_asked_for(
    spark: SparkSession, broker: BrokerProcess, client: ConfluentClient, topic: str, source: str, codec: str
) -> None:
    create_topic(broker.bootstrap, topic)
    rows = spark.range(0, 200, 1, 1).selectExpr("cast(id as string) as value")
    options = {**server(broker), "topic": topic, "kafka.compression.type": codec}
    rows.write.format(source).mode("append").options(**options).save()
    written = client.consume(topic, 0, 200, timeout_seconds=PATIENCE_SECONDS)
    assert sorted(int(one.value or b"") for one in written) == list(range(200))
    (log,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    command = [EXECUTABLE, "log", "dump", log, "--json"]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert {json.loads(line)["compression"] for line in dumped.stdout.splitlines()} == {codec}


def test_available_now_reads_in_bounded_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, client: ConfluentClient, topic: str, source: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    client.produce(topic, numbered(90))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    first = copy_available(stream(spark, source, broker, **options), tmp_path)
    assert batch_sizes(first) == [40, 40, 10]
    client.produce(topic, numbered(25, first=90))
    # Now the checkpoint decides where it starts.
    again = copy_available(stream(spark, source, broker, **{**options, "startingOffsets": "latest"}), tmp_path)
    assert sum(batch_sizes(again)) == 25
    nothing = copy_available(stream(spark, source, broker, **options), tmp_path)
    assert batch_sizes(nothing) == []
    assert copied_values(spark, tmp_path) == list(range(115))


def test_a_stream_moves_from_one_source_to_the_other_with_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, client: ConfluentClient, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    for number, source in enumerate(("kafka", "tailrace", "kafka")):
        client.produce(topic, numbered(20, first=20 * number))
        copied = copy_available(stream(spark, source, broker, subscribe=topic, startingOffsets="earliest"), tmp_path)
        assert sum(batch_sizes(copied)) == 20
    assert copied_values(spark, tmp_path) == list(range(60))


def test_a_running_query_sees_what_comes_after_its_start_and_writes_it_on(
    spark: SparkSession,
    broker: BrokerProcess,
    client: ConfluentClient,
    topic_name: Callable[[], str],
    source: str,
    tmp_path: Path,
) -> None:
    origin, target = (create_topic(broker.bootstrap, topic_name(), partitions=2) for _ in range(2))
    client.produce(origin, numbered(10))
    rows = stream(spark, source, broker, subscribe=origin, startingOffsets="latest", includeHeaders="true")
    writer = (
        rows.selectExpr("cast(value as string) as key", "value", "headers", "1 as partition")
        .writeStream.format(source)
        .options(**server(broker), topic=target, checkpointLocation=str(tmp_path), includeHeaders="true")
    )
    # Planning its first batch fixes its start.
    query = started(writer.start)
    try:
        for partition in (0, 1):
            client.produce(
                origin,
                [
                    Record(str(n).encode(), headers=(("n", str(n).encode()),), partition=partition)
                    for n in range(partition * 50, partition * 50 + 50)
                ],
            )
        written = client.consume(target, 1, 100, timeout_seconds=PATIENCE_SECONDS)
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted(one.content() for one in written) == sorted(
        (str(n).encode(), str(n).encode(), (("n", str(n).encode()),)) for n in range(100)
    )


def test_records_that_were_deleted_are_data_loss_for_a_stream_unless_that_is_accepted(
    spark: SparkSession, broker: BrokerProcess, client: ConfluentClient, topic: str, source: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    client.produce(topic, numbered(10))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    copy_available(stream(spark, source, broker, **options), tmp_path)
    client.produce(topic, numbered(40, first=10))
    delete_records(broker, topic, before=30)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        copy_available(stream(spark, source, broker, **options), tmp_path)
    copy_available(stream(spark, source, broker, **options, failOnDataLoss="false"), tmp_path)
    assert copied_values(spark, tmp_path) == [*range(10), *range(30, 50)]


def test_a_batch_read_over_deleted_records_fails_unless_data_loss_is_accepted(
    spark: SparkSession, broker: BrokerProcess, client: ConfluentClient, topic: str, source: str
) -> None:
    create_topic(broker.bootstrap, topic)
    client.produce(topic, numbered(50))
    delete_records(broker, topic, before=30)
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 20}})}
    with pytest.raises((PySparkException, Py4JJavaError), match="failOnDataLoss"):
        batch(spark, source, broker, **options).collect()
    rows = batch(spark, source, broker, **options, failOnDataLoss="false")
    assert offsets(rows) == {(topic, 0): list(range(30, 50))}


def test_both_see_the_same_rows(spark: SparkSession, broker: BrokerProcess, orders: str) -> None:
    ours, theirs = (
        batch(spark, source, broker, subscribe=orders, includeHeaders="true") for source in ("tailrace", "kafka")
    )
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert ours.exceptAll(theirs).count() == theirs.exceptAll(ours).count() == 0
    assert ours.count() == PARTITIONS * RECORDS
