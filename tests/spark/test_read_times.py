"""Times of records in queries: each record is judged by its own, whatever its neighbours and its batch say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, Filter, GreaterThanOrEqual, LessThan

from tailrace.cli.sql import reading_of
from tailrace.pipeline.source.data_source import TailraceSource
from tailrace.pipeline.source.schema import spark_schema
from tailrace.pipeline.sql.queries import TopicQuery
from tests.support.batches.raw_records import RawRecord, produce
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.topics import create_topic

NOON_MS = 1_767_268_800_000
MINUTE_MS = 60_000


def offsets_between(broker: BrokerProcess, topic: str, *filters: Filter, **options: str) -> list[int]:
    """The offsets that the data source reads with these filters pushed down."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    reader: Any = TailraceSource(CaseInsensitiveDict(given)).reader(spark_schema(("offset",)))
    list(reader.pushFilters(list(filters)))
    batches: list[pa.RecordBatch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def at(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_one_fast_clock_changes_nothing_for_other_records(
    spark: SparkSession, broker: BrokerProcess, topic: str, pushdown: str
) -> None:
    """998 records, one a second, of which the tenth says that it is half an hour later."""
    create_topic(broker.bootstrap, topic)
    times = [NOON_MS + number * 1000 for number in range(998)]
    times[9] += 30 * MINUTE_MS
    values = [RawRecord(b'{"id": %d}' % number, timestamp_ms=time) for number, time in enumerate(times)]
    produce(broker.port, topic, values)

    def ids(start: int | str, end: int | str) -> list[int]:
        reading = reading_of(broker.bootstrap, (), (), start, end)
        frame = TopicQuery(spark, f"SELECT id FROM `{topic}` ORDER BY id", reading, [topic]).frame()
        frame.sparkSession.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        return [row.id for row in frame.collect()]

    before = NOON_MS + 17 * MINUTE_MS
    assert ids("earliest", before) == [number for number in range(998) if times[number] < before]
    after = NOON_MS + 987_000
    assert ids(after, "latest") == [9, *range(987, 998)]


def test_a_batch_whose_header_understates_its_times_is_read_all_the_same(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    records = [RawRecord(b"x", timestamp_ms=NOON_MS + number * MINUTE_MS) for number in (0, 5, 1)]
    produce(broker.port, topic, records, max_timestamp_ms=NOON_MS + MINUTE_MS)
    produce(broker.port, topic, [RawRecord(b"y", timestamp_ms=NOON_MS + 9 * MINUTE_MS)])
    since = GreaterThanOrEqual(("timestamp",), at(NOON_MS + 5 * MINUTE_MS))
    assert offsets_between(broker, topic, since) == [1, 3]
    assert offsets_between(broker, topic, since, LessThan(("timestamp",), at(NOON_MS + 9 * MINUTE_MS))) == [1]
    # A query that asks for it begins where brokers find the time, by headers alone.
    assert ConfluentClient(broker.bootstrap).offset_for_time(topic, 0, NOON_MS + 5 * MINUTE_MS) == 3
    assert offsets_between(broker, topic, since, timeIndex="true") == [3]
