"""`df.write` and `df.writeStream` to topics: what a DataFrame had is what a Kafka client reads."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from tailrace.client.murmur2 import partition_for_key
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Received
from tests.support.topics import create_topic, eventually

PARTITIONS = 3
PATIENCE_SECONDS = 600
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
FULL = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
    ]
)


def append(frame: DataFrame, bootstrap: str, **options: str) -> None:
    frame.write.format("tailrace").mode("append").options(**{**connection(bootstrap), **options}).save()


def connection(bootstrap: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap}


def received(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> list[Received]:
    """Everything in a topic, read with a client that is neither Spark nor ours."""
    client = ConfluentClient(broker.bootstrap)
    found = []
    for partition, (start, end) in client.offsets(topic, range(partitions)).items():
        if end > start:
            found += client.consume(topic, partition, end - start, start=start, timeout_seconds=PATIENCE_SECONDS)
    return found


def record_count(broker: BrokerProcess, topic: str) -> int:
    offsets = ConfluentClient(broker.bootstrap).offsets(topic, range(PARTITIONS))
    return sum(end - start for start, end in offsets.values())


def numbers(found: list[Received]) -> dict[int, list[int]]:
    """The values of each partition in their order, where values are numbers."""
    by_partition: dict[int, list[int]] = defaultdict(list)
    for each in found:
        by_partition[each.partition].append(int(each.value or b""))
    return by_partition


def assert_each_once_in_order(found: list[Received], count: int) -> None:
    by_partition = numbers(found)
    assert sorted(itertools.chain.from_iterable(by_partition.values())) == list(range(count))
    assert all(values == sorted(values) for values in by_partition.values())


def wait_for(condition: Callable[[], bool]) -> None:
    assert eventually(condition, timeout_seconds=PATIENCE_SECONDS)


# --- what is written


def test_keys_values_and_headers_arrive_as_they_were_each_key_where_java_sends_it(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    rows = [
        (
            None if n % 7 == 0 else f"key {n % 50} ä".encode(),
            None if n % 5 == 0 else b"" if n % 5 == 1 else b"%d" % n + bytes(range(256)) * (n % 3),
            None if n % 3 == 0 else [] if n % 3 == 1 else [("trace ö", b"%d" % n), ("trace ö", None), ("", b"")],
            None,
            None,
        )
        for n in range(2000)
    ]
    append(spark.createDataFrame(rows, FULL).repartition(2), broker.bootstrap, topic=topic)
    found = received(broker, topic)
    assert Counter((each.key, each.value, each.headers) for each in found) == Counter(
        (key, value, tuple(headers or ())) for key, value, headers, _, _ in rows
    )
    for each in found:
        assert each.key is None or each.partition == partition_for_key(each.key, PARTITIONS)
    assert abs(found[0].timestamp_ms - time.time() * 1000) < 600_000


def test_rows_of_one_task_keep_their_order_and_rows_without_keys_spread(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    keyed = spark.range(0, 30_000, 1, 1).select(
        (f.col("id") % 11).cast("string").alias("key"),
        f.col("id").cast("string").alias("value"),
        f.lit(1).alias("more"),
    )
    append(keyed, broker.bootstrap, topic=topic)
    by_key = defaultdict(list)
    for each in received(broker, topic):
        by_key[each.key].append(int(each.value or b""))
    assert by_key == {b"%d" % key: list(range(key, 30_000, 11)) for key in range(11)}

    spread = create_topic(broker.bootstrap, topic + "-spread", partitions=PARTITIONS)
    append(keyed.select("value"), broker.bootstrap, topic=spread)
    found = received(broker, spread)
    assert sorted(int(each.value or b"") for each in found) == list(range(30_000))
    assert min(Counter(each.partition for each in found).values()) > 5_000


def test_a_column_chooses_topic_and_partition_and_the_option_overrides_the_topic(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    names = [create_topic(broker.bootstrap, f"{topic}-{n}", partitions=n) for n in (2, 3)]
    rows = [(b"%d" % (n % 5), b"%d" % n, None, names[n % 2], None if n % 3 else (n // 3) % 2) for n in range(600)]
    frame = spark.createDataFrame(rows, FULL)
    append(frame, broker.bootstrap)
    for place, (name, partitions) in enumerate(zip(names, (2, 3), strict=True)):
        found = {int(each.value or b""): each.partition for each in received(broker, name, partitions)}
        assert found == {
            n: partition_for_key(b"%d" % (n % 5), partitions) if n % 3 else (n // 3) % 2
            for n in range(600)
            if n % 2 == place
        }
    append(frame, broker.bootstrap, topic=create_topic(broker.bootstrap, topic, partitions=PARTITIONS))
    assert len(received(broker, topic)) == 600


def test_a_topic_comes_into_being_where_the_broker_creates_topics(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    append(spark.createDataFrame([("v",)], "value string"), broker.bootstrap, topic=topic)
    assert [each.value for each in received(broker, topic, 1)] == [b"v"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_others(spark: SparkSession, broker: BrokerProcess, topic: str, codec: str) -> None:
    create_topic(broker.bootstrap, topic)
    frame = spark.range(500).select(f.repeat(f.col("id").cast("string"), 20).alias("value"))
    options = {"kafka.compression.type": codec, "kafka.acks": "1" if codec == "lz4" else "all", "kafka.linger.ms": "5"}
    append(frame.coalesce(1), broker.bootstrap, topic=topic, **options)
    assert [each.value for each in received(broker, topic, 1)] == [(b"%d" % n) * 20 for n in range(500)]


def test_batches_shrink_to_what_a_topic_takes(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS, max_message_bytes="20000")
    frame = spark.range(0, 20_000, 1, 1).select(
        f.col("id").cast("string").alias("key"), f.lpad(f.col("id").cast("string"), 200, "0").alias("value")
    )
    append(frame, broker.bootstrap, topic=topic)
    assert_each_once_in_order(received(broker, topic), 20_000)


# --- streams


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("key string, value string").json(str(folder))


def put_rows(folder: Path, name: str, numbers: range, width: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    # Long enough that buffers between the tasks hold few of them.
    text = "".join(f'{{"key":"{n % 10}","value":"{n:0{width}}"}}\n' for n in numbers)
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / f"{name}.json")


def run_stream(frame: DataFrame, bootstrap: str, checkpoint: Path, mode: str = "append", **options: str) -> None:
    query = (
        frame.writeStream.format("tailrace")
        .outputMode(mode)
        .options(**connection(bootstrap), checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_SECONDS)
    finally:
        query.stop()


def test_a_stream_writes_what_came_since_the_last_run(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    (tmp_path / "in").mkdir()
    frame = stream_of(spark, tmp_path / "in")
    for numbers in (range(100), range(100, 250)):
        put_rows(tmp_path / "in", f"from-{numbers.start}", numbers)
        run_stream(frame, broker.bootstrap, tmp_path / "checkpoint", topic=topic)
        assert sorted(int(each.value or b"") for each in received(broker, topic)) == list(range(numbers.stop))


def test_in_complete_mode_every_micro_batch_appends_the_whole_result(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic)
    put_rows(tmp_path / "in", "first", range(250))
    counts = stream_of(spark, tmp_path / "in").groupBy("key").count()
    frame = counts.select("key", f.col("count").cast("string").alias("value"))
    run_stream(frame, broker.bootstrap, tmp_path / "checkpoint", "complete", topic=topic)
    put_rows(tmp_path / "in", "second", range(253, 254))
    run_stream(frame, broker.bootstrap, tmp_path / "checkpoint", "complete", topic=topic)
    found = {(each.offset // 10, each.key): each.value for each in received(broker, topic, 1)}
    assert found == {(run, b"%d" % n): b"26" if (run, n) == (1, 3) else b"25" for run in (0, 1) for n in range(10)}


# --- what goes wrong on the way


def held_up(halfway: str, go_on: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes the first half of a task's rows, reports it, and waits until it may continue."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 5:
                Path(halfway).touch()
                while not Path(go_on).exists():
                    time.sleep(0.02)
            yield batch

    return hold


def test_a_broker_that_crashes_in_the_middle_costs_no_row_and_doubles_none(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        topic = create_topic(broker.bootstrap, "crash", partitions=PARTITIONS)
        halfway, go_on = tmp_path / "halfway", tmp_path / "go-on"
        rows = spark.range(0, 100_000, 1, 1).select(
            f.col("id").cast("string").alias("key"), f.col("id").cast("string").alias("value")
        )
        frame = rows.mapInArrow(held_up(str(halfway), str(go_on)), rows.schema)

        def crash() -> None:
            try:
                wait_for(halfway.exists)
                broker.kill()
            finally:
                # Otherwise the task would wait forever.
                go_on.touch()
            broker.start()

        with ThreadPoolExecutor(1) as threads:
            crashing = threads.submit(crash)
            append(frame, broker.bootstrap, topic=topic)
            crashing.result()
        assert_each_once_in_order(received(broker, topic), 100_000)


DRIVER = """
import sys, time
from pyspark.sql import SparkSession

bootstrap, topic, folder, checkpoint = sys.argv[1:]

def hold(batches):
    for number, batch in enumerate(batches):
        if number == 15:
            time.sleep(600)
        yield batch

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false").config("spark.driver.memory", "512m").config("spark.log.level", "ERROR")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000").getOrCreate()
)
rows = spark.readStream.schema("key string, value string").json(folder)
rows.mapInArrow(hold, rows.schema).writeStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option(
    "topic", topic
).option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def test_a_query_killed_while_it_writes_repeats_rows_but_loses_none(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    put_rows(tmp_path / "in", "rows", range(20_000), width=200)
    checkpoint = tmp_path / "checkpoint"
    arguments = [broker.bootstrap, topic, tmp_path / "in", checkpoint]
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DRIVER), *map(str, arguments)])
    try:
        # Three of four rows get that far, and then it waits in the middle of the micro-batch.
        wait_for(lambda: driver.poll() is not None or record_count(broker, topic) > 0)
    finally:
        driver.kill()
        driver.wait()
    run_stream(stream_of(spark, tmp_path / "in"), broker.bootstrap, checkpoint, topic=topic)
    counts = Counter(int(each.value or b"") for each in received(broker, topic))
    assert set(counts) == set(range(20_000))
    assert sum(counts.values()) > 20_000


def test_a_failing_task_fails_the_write_and_names_the_reason(
    spark: SparkSession, broker: BrokerProcess, topic: str, topic_name: Callable[[], str]
) -> None:
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    cases: list[tuple[tuple[object, ...], dict[str, str], str]] = [
        ((b"k", b"v", None, None, None), {}, "a row has no topic: its column 'topic' is null"),
        ((b"k", b"v", None, topic, 7), {}, f"a row names partition 7, but topic '{topic}' has partitions 0 to 2"),
        ((b"k", b"v", None, topic, -1), {}, "a row names partition -1"),
        ((b"k", b"v", [(None, b"x")], topic, None), {}, "a row has a header without a name"),
        ((b"k", b"v" * 2_000_000, None, topic, None), {}, f"is larger than topic '{topic}' accepts"),
        ((b"k", b"v" * 300, None, topic, None), {"kafka.max.request.size": "200"}, "'kafka.max.request.size'"),
        ((b"k", b"v", None, "no/topic", None), {}, "'no/topic' cannot be the name of a topic"),
    ]
    for row, options, reason in cases:
        with pytest.raises(PySparkException) as caught:
            append(spark.createDataFrame([row], FULL).coalesce(1), broker.bootstrap, **options)
        assert reason in str(caught.value)
    assert not received(broker, topic)


# --- what is refused before anything is written


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("key string", {"topic": "t"}, "required column 'value' not found among 'key'"),
        ("value string", {}, "no topic to write to: set the option 'topic'"),
        ("value int", {"topic": "t"}, "column 'value' must be string or binary, but is int"),
        ("value string, key bigint", {"topic": "t"}, "column 'key' must be string or binary, but is bigint"),
        ("value string, topic int", {}, "column 'topic' must be string, but is int"),
        ("value string, partition string", {"topic": "t"}, "column 'partition' must be int, but is string"),
        (
            "value string, headers map<string,binary>",
            {"topic": "t"},
            "column 'headers' must be array<struct<key:string",
        ),
        ("value string", {"topic": "t", "kafka.acks": "0"}, "'kafka.acks' is 0, which could lose rows"),
        ("value string", {"topic": "t", "kafka.key.serializer": "x"}, "option 'kafka.key.serializer' is not supported"),
        ("value string", {"topic": "t", "kafka.compresion.type": "x"}, "did you mean 'kafka.compression.type'?"),
        ("value string", {"topic": "t", "kafka.bootstrap.servers": "nowhere"}, "expected HOST:PORT"),
        (
            "value string",
            {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"},
            "cannot reach a broker at 127.0.0.1:1",
        ),
        ("value string", {"topic": "a b"}, "'a b' cannot be the name of a topic"),
    ],
)
def test_bad_columns_and_options_are_refused_before_any_task_runs(
    spark: SparkSession, broker: BrokerProcess, schema: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        append(spark.createDataFrame([], schema), broker.bootstrap, **options)
    assert reason in str(caught.value)


def test_a_topic_can_only_be_appended_to(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = spark.createDataFrame([("v",)], "value string")
    for mode in ("overwrite", "ignore", "error"):
        with pytest.raises(AnalysisException, match=r"append|Append"):
            frame.write.format("tailrace").mode(mode).options(**connection(broker.bootstrap), topic="t").save()


def test_an_unknown_topic_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", config={"auto.create.topics.enable": "false"}) as broker:
        frame = spark.createDataFrame([("v", "none")], "value string, topic string")
        with pytest.raises(AnalysisException, match="topic 'orders' does not exist; create it with"):
            append(frame, broker.bootstrap, topic="orders")
        with pytest.raises(PySparkException, match="topic 'none' does not exist; create it with"):
            append(frame, broker.bootstrap)


def test_a_stream_that_cannot_be_written_says_why(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    put_rows(tmp_path / "in", "rows", range(5))
    frame = stream_of(spark, tmp_path / "in").select("value")
    with pytest.raises((StreamingQueryException, AnalysisException), match="no topic to write to"):
        run_stream(frame, broker.bootstrap, tmp_path / "one")
    with pytest.raises(StreamingQueryException, match=r"cannot reach a broker at 127\.0\.0\.1:1"):
        run_stream(frame, "127.0.0.1:1", tmp_path / "two", topic="t", **{"kafka.max.block.ms": "500"})
