"""Streams with the source `tailrace`: each offset once, whatever happens to the query, its topics and the broker.

What decides where a batch ends is asked of the reader itself, as Spark would ask it; that nothing is lost or read twice
is seen in what real queries write, also when their process is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tailrace.pipeline.failures import DataLossError, OptionError, UnknownTopicError
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.schema import DEFAULT_COLUMNS, spark_schema
from tailrace.pipeline.source.stream_reader import TopicStreamReader
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.spark.spark import NO_WORKER, started
from tests.support.topics import create_topic, delete_topic, eventually

ALL = ReadAllAvailable()
PATIENCE_SECONDS = 600


def numbered(count: int, *, first: int = 0, partition: int = 0) -> list[Record]:
    return [Record(str(number).encode(), partition=partition) for number in range(first, first + count)]


@pytest.fixture
def produce(broker: BrokerProcess) -> Callable[..., None]:
    def send(topic: str, count: int, **where: int) -> None:
        ConfluentClient(broker.bootstrap).produce(topic, numbered(count, **where))

    return send


@pytest.fixture
def reader(broker: BrokerProcess) -> Callable[..., TopicStreamReader]:
    def build(**options: str) -> TopicStreamReader:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", **options}
        found = TailraceSource(CaseInsensitiveDict(given)).streamReader(spark_schema(DEFAULT_COLUMNS))
        assert isinstance(found, TopicStreamReader)
        return found

    return build


def plain(offset: object) -> dict[str, dict[str, int]]:
    """Offsets by topic, without the ids of topics that checkpoints keep beside them."""
    assert isinstance(offset, dict)
    assert all(partitions == {} for name, partitions in offset.items() if "@" in name)
    return {name: partitions for name, partitions in offset.items() if "@" not in name}


def values_between(reader: TopicStreamReader, start: object, end: object) -> list[int]:
    """What the tasks of a batch have read."""
    return [
        int(value)
        for partition in reader.partitions(start, end)  # type: ignore[arg-type]
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]


def test_a_batch_ends_where_the_limit_says(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=3)
    produce(topic, 90)
    produce(topic, 9, partition=1)
    stream = reader(subscribe=topic, maxOffsetsPerTrigger="11")
    start = stream.initialOffset()
    assert plain(start) == {topic: {"0": 0, "1": 0, "2": 0}}
    assert stream.getDefaultReadLimit() == ReadMaxRows(11)
    end = stream.latestOffset(start, ReadMaxRows(11))
    assert plain(end) == {topic: {"0": 10, "1": 1, "2": 0}}
    everything = stream.latestOffset(end, ALL)
    assert plain(everything) == stream.reportLatestOffset() == {topic: {"0": 90, "1": 9, "2": 0}}
    assert values_between(stream, end, everything) == [*range(10, 90), *range(1, 9)]
    assert stream.latestOffset(everything, ALL) is everything
    assert stream.partitions(everything, everything) == []


def test_a_batch_waits_for_the_least_number_of_records_or_the_longest_delay(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(topic, 5)
    stream = reader(subscribe=topic, minOffsetsPerTrigger="6", maxTriggerDelay="1h")
    start = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMinRows(6)
    assert stream.latestOffset(start, ReadMinRows(6)) == start
    impatient = reader(subscribe=topic, minOffsetsPerTrigger="6", maxTriggerDelay="0s")
    assert plain(impatient.latestOffset(start, ReadMinRows(6))) == {topic: {"0": 5}}
    produce(topic, 1)
    assert plain(stream.latestOffset(start, ReadMinRows(6))) == {topic: {"0": 6}}
    with pytest.raises(OptionError, match="must not be below"):
        reader(subscribe=topic, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


def test_what_comes_after_the_start_is_not_for_a_query_that_reads_what_is_there_now(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(topic, 5)
    stream = reader(subscribe=topic, maxOffsetsPerTrigger="3")
    stream.prepareForTriggerAvailableNow()
    produce(topic, 5)
    first = stream.latestOffset(stream.initialOffset(), ReadMaxRows(3))
    second = stream.latestOffset(first, ReadMaxRows(3))
    assert (plain(first), plain(second)) == ({topic: {"0": 3}}, {topic: {"0": 5}})
    assert stream.latestOffset(second, ReadMaxRows(3)) == second


def test_partitions_and_topics_that_are_found_later_are_read_from_their_beginning(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, f"{topic}-a")
    produce(f"{topic}-a", 2)
    stream = reader(subscribePattern=f"^{topic}-.$", startingOffsets="latest")
    start = stream.initialOffset()
    assert plain(start) == {f"{topic}-a": {"0": 2}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(f"{topic}-a", 2)])[f"{topic}-a"].result(30)
    create_topic(broker.bootstrap, f"{topic}-b")
    produce(f"{topic}-a", 3, first=10, partition=1)
    produce(f"{topic}-b", 2, first=20)
    end = stream.latestOffset(start, ALL)
    assert plain(end) == {f"{topic}-a": {"0": 2, "1": 3}, f"{topic}-b": {"0": 2}}
    assert values_between(stream, start, end) == [10, 11, 12, 20, 21]


def test_a_topic_that_is_deleted_or_created_again_is_lost_data(
    reader: Callable[..., TopicStreamReader],
    produce: Callable[..., None],
    broker: BrokerProcess,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(topic, 10)
    strict, lenient = reader(subscribe=topic), reader(subscribe=topic, failOnDataLoss="false")
    for stream in (strict, lenient):
        assert plain(stream.latestOffset(stream.initialOffset(), ALL)) == {topic: {"0": 10}}
    read_so_far = {topic: {"0": 10}}
    delete_topic(broker.bootstrap, topic)
    with pytest.raises(DataLossError, match=rf"partitions {topic}-0 are gone.*failOnDataLoss=false"):
        strict.latestOffset(read_so_far, ALL)
    with pytest.raises(UnknownTopicError, match=f"topic '{topic}' does not exist"):
        reader(subscribe=topic).initialOffset()
    create_topic(broker.bootstrap, topic)
    produce(topic, 4, first=50)
    again = {topic: {"0": 4}}
    assert eventually(
        lambda: plain(reader(subscribe=topic, startingOffsets="latest").initialOffset()) == again, timeout_seconds=60
    )
    with pytest.raises(DataLossError, match="ends at offset 4 but was read up to 10"):
        reader(subscribe=topic).latestOffset(read_so_far, ALL)
    # A query that accepts the loss warns, and reads the new topic from its beginning.
    end = lenient.latestOffset(read_so_far, ALL)
    assert plain(end) == {topic: {"0": 4}}
    assert values_between(lenient, read_so_far, end) == [50, 51, 52, 53]
    assert lenient.latestOffset(end, ALL) == end
    assert "created again" in caplog.text
    # A running query notices it even if the new topic has as many records as the old one.
    produce(topic, 20, first=60)
    watching = reader(subscribe=topic)
    before = watching.latestOffset(watching.initialOffset(), ALL)
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic)
    produce(topic, 30)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        watching.latestOffset(before, ALL)


def test_a_checkpoint_knows_which_topic_of_a_name_it_is_of(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    """A topic is created again and has more records than were read of the old one, while no query runs."""
    create_topic(broker.bootstrap, topic)
    produce(topic, 10)
    stopped = reader(subscribe=topic)
    checkpoint = stopped.latestOffset(stopped.initialOffset(), ALL)
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic)
    produce(topic, 30, first=100)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        reader(subscribe=topic).latestOffset(checkpoint, ALL)
    now = reader(subscribe=topic)
    now.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        now.latestOffset(checkpoint, ALL)
    # The last batch of a query that was killed is planned again, from offsets that are of the old topic.
    with pytest.raises(DataLossError, match="the batch to read is lost"):
        reader(subscribe=topic).partitions({topic: {"0": 5}}, checkpoint)
    lenient = reader(subscribe=topic, failOnDataLoss="false")
    end = lenient.latestOffset(checkpoint, ReadMaxRows(20))
    assert plain(end) == {topic: {"0": 20}}
    assert values_between(lenient, checkpoint, end) == list(range(100, 120))
    assert values_between(lenient, end, lenient.latestOffset(end, ALL)) == list(range(120, 130))
    assert values_between(lenient, {topic: {"0": 5}}, checkpoint) == []
    # A checkpoint of an earlier version has no ids, and the stream continues from it.
    old = reader(subscribe=topic)
    assert values_between(old, {topic: {"0": 27}}, old.latestOffset({topic: {"0": 27}}, ALL)) == [127, 128, 129]


def test_a_topic_that_is_created_again_under_a_task_is_lost_data(
    reader: Callable[..., TopicStreamReader], produce: Callable[..., None], broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    produce(topic, 10)
    stream = reader(subscribe=topic)
    start = stream.initialOffset()
    (task,) = stream.partitions(start, stream.latestOffset(start, ALL))
    delete_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, topic)
    produce(topic, 30)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        list(stream.read(task))
    assert list(reader(subscribe=topic, failOnDataLoss="false").read(task)) == []


def test_a_stream_has_no_end(reader: Callable[..., TopicStreamReader]) -> None:
    with pytest.raises(OptionError, match="option 'endingOffsets' is not allowed for streams"):
        reader(subscribe="orders", endingOffsets="latest")


#: A query that appends what it reads to a file for each batch, atomically, and says how far it came. It is begun again
#: where the machine is too busy for its source.
QUERY = """
    import json, os, sys
    from pathlib import Path
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    bootstrap, topic, work, rows, until, NO_WORKER = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "1").getOrCreate()
    )
    table = spark.readStream.format("tailrace").options(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=rows, minPartitions=4,
        **{"kafka.bootstrap.servers": bootstrap},
    ).load()

    def write(batch, number):
        found = [(row.partition, row.offset, row.value.decode()) for row in batch.collect()]
        path = Path(work, f"{number}.part")
        path.write_text(json.dumps(found))
        path.rename(Path(work, f"{number}.json"))
        print(number, flush=True)

    query = table.writeStream.foreachBatch(write).option("checkpointLocation", f"{work}/checkpoint")
    if until == "end":
        query = query.trigger(availableNow=True)
    while True:
        try:
            query.start().awaitTermination()
            break
        except StreamingQueryException as error:
            if NO_WORKER not in str(error):
                raise
"""


def start_query(broker: BrokerProcess, topic: str, work: Path, *, rows: int, until: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = [broker.bootstrap, topic, str(work), str(rows), until, NO_WORKER]
    command = [sys.executable, "-c", textwrap.dedent(QUERY), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    )


def test_a_query_that_is_killed_and_started_again_has_each_offset_once(
    broker: BrokerProcess, produce: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    produce(topic, 300)
    produce(topic, 300, partition=1)
    query = start_query(broker, topic, tmp_path, rows=40, until="killed")
    try:
        assert query.stdout is not None
        # Somewhere in the middle: some batches are written, and the next one is under way.
        for _ in range(3):
            assert query.stdout.readline()
    finally:
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()
        query.stdout.close()
    produce(topic, 50, first=300)
    again = start_query(broker, topic, tmp_path, rows=200, until="end")
    try:
        output, _ = again.communicate(timeout=PATIENCE_SECONDS)
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)
            again.wait()
    assert again.returncode == 0
    assert output.split()[0] != "0"
    rows = [tuple(row) for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())]
    expected = [(0, n, str(n)) for n in range(350)] + [(1, n, str(n)) for n in range(300)]
    assert sorted(rows) == expected


def test_a_running_query_outlives_restarts_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap, "orders", partitions=2)
        client = ConfluentClient(broker.bootstrap)
        table = spark.readStream.format("tailrace").options(
            subscribe="orders", startingOffsets="earliest", **{"kafka.bootstrap.servers": broker.bootstrap}
        )
        writer = (
            table.load()
            .selectExpr("partition", "offset", "cast(value as string) as value")
            .writeStream.format("memory")
            .queryName("outlives_restarts")
        )
        # A table in memory cannot continue from a checkpoint, not even from one without a batch.
        places = (str(tmp_path / f"checkpoint-{number}") for number in itertools.count())
        query = started(lambda: writer.option("checkpointLocation", next(places)).start())
        try:
            for number in range(3):
                for partition in range(2):
                    client.produce("orders", numbered(100, first=100 * number, partition=partition))
                _wait_for_rows(spark, query, 200 * (number + 1))
                if number == 0:
                    broker.kill()
                    broker.start()
                else:
                    broker.restart()
            assert query.isActive, query.exception()
        finally:
            query.stop()
        rows = spark.table("outlives_restarts").collect()
    assert sorted((row.partition, row.offset, row.value) for row in rows) == [
        (partition, number, str(number)) for partition in range(2) for number in range(300)
    ]


def _wait_for_rows(spark: SparkSession, query: StreamingQuery, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while spark.table("outlives_restarts").count() < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"fewer than {count} rows after {PATIENCE_SECONDS} s"
        time.sleep(0.2)
