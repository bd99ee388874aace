"""Undecodable batches in archived topics: archiving continues, nothing is lost, and everything is reported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tailrace.client.archive import describe
from tailrace.pipeline.archiving.setup import open_archives
from tailrace.pipeline.archiving.topics import ArchivingError
from tailrace.pipeline.failures import CorruptBatchError
from tailrace.pipeline.source.options import parse_read_options
from tailrace.pipeline.source.reader import TopicReader
from tailrace.records.batch import iterate_batches
from tests.support.archives.archived_topics import RETENTION_CHECK_MS, archived_configs, local_start, some_records
from tests.support.archives.archiving import Archiving, archived_records, verified
from tests.support.batches.poison import fetch_batches, poison_batch, produce_batch
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

PATIENCE_SECONDS = 300
#: The positions of undecodable batches in a topic of `poisoned`, and its end.
POISON = [(50, 52), (102, 104)]
END = 155


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that deletes segments as soon as it may."""
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as process:
        yield process


@pytest.fixture
def archiving(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Archiving:
    return Archiving(spark, broker.bootstrap, tmp_path / "archive")


def poisoned(broker: BrokerProcess, topic: str, **configs: str) -> list[bytes]:
    """A topic of records and poison, END offsets in all; the raw batches."""
    create_topic(broker.bootstrap, topic, **configs)
    client = ConfluentClient(broker.bootstrap)
    raw = [poison_batch([b"x"] * 3), poison_batch([b"y"] * 3)]
    for batch, (first, _) in zip(raw, POISON, strict=True):
        client.produce(topic, some_records(49 if first > 50 else 50))
        assert produce_batch(broker.port, topic, batch) == first
    client.produce(topic, some_records(END - 105))
    return raw


def sound_offsets() -> list[int]:
    return [each for each in range(END) if not any(first <= each <= last for first, last in POISON)]


def test_what_nobody_can_decode_is_set_aside_given_back_and_looked_after(
    archiving: Archiving, broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = broker.bootstrap
    raw = poisoned(broker, topic, **archived_configs(archiving.place))
    (round_,) = archiving.once(topic)
    assert (round_.rows, round_.quarantined_batches, round_.lag) == (END - 6, 2, 0)
    (warning,) = archiving.warnings
    assert warning.startswith(f"{topic}: quarantined 2 batches that cannot be decoded, the first from offset 50 of")
    assert "tailrace.records.validate=true" in warning

    report = verified(bootstrap, topic)
    assert (report.rows, report.quarantined_batches, report.orphans) == (END - 6, 2, [])
    assert [each.offset for each in archived_records(bootstrap, topic, 0)] == sound_offsets()

    # The brokers delete the log, and send the raw batches from the archive as before from the log.
    ConfluentClient(bootstrap).produce(topic, [Record(b"roll")] * 2)
    assert eventually(lambda: local_start(bootstrap, topic) > 104, timeout_seconds=PATIENCE_SECONDS)
    for batch, (first, last) in zip(raw, POISON, strict=True):
        for offset in (first, last):
            sent = fetch_batches(broker.port, topic, offset)
            assert sent[21 : len(batch)] == batch[21:]
            assert next(iterate_batches(sent))[1].base_offset == first
    assert [header.base_offset for _, header in iterate_batches(fetch_batches(broker.port, topic, 49))][:2] == [49, 50]

    # Queries report the batches, or skip them.
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "columns": "offset"}
    strict = TopicReader(parse_read_options(options, streaming=False), ("offset",))
    (partition, *_) = strict.partitions()
    with pytest.raises(CorruptBatchError, match=f"offsets 50 to 52 of {topic}-0 cannot be decoded: .*quarantined"):
        list(strict.read(partition))
    lenient = TopicReader(parse_read_options({**options, "failOnCorruptBatch": "false"}, streaming=False), ("offset",))
    found = [
        each for part in lenient.partitions() for rows in lenient.read(part) for each in rows.column(0).to_pylist()
    ]
    assert found == [*sound_offsets(), END, END + 1]
    assert "skipped 2 batches of 6 offsets" in caplog.text


def test_the_log_is_queried_with_and_without_what_nobody_can_decode(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    poisoned(broker, topic, retention_ms="-1")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    strict = spark.read.format("tailrace").options(**options).load()
    with pytest.raises(Exception, match=f"the batch at offsets 50 to 52 of {topic}-0 cannot be decoded"):
        strict.collect()
    lenient = spark.read.format("tailrace").options(**options, failOnCorruptBatch="false").load()
    assert sorted(row.offset for row in lenient.collect()) == sound_offsets()


def is_archived(bootstrap: str, topic: str, end: int) -> bool:
    """Whether a topic is eventually archived up to an offset."""
    return eventually(
        lambda: describe(bootstrap, topic).partitions.get(0) == (0, end), timeout_seconds=PATIENCE_SECONDS
    )


def test_a_topic_that_is_gone_and_a_place_that_is_missing_are_no_other_topics_matter(
    archiving: Archiving, broker: BrokerProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    bootstrap = broker.bootstrap
    client = ConfluentClient(bootstrap)
    sound, gone, elsewhere = (topic_name() for _ in range(3))
    for name in (sound, gone):
        create_topic(bootstrap, name, **archived_configs(archiving.place))
    create_topic(bootstrap, elsewhere, **archived_configs(tmp_path / "other"))
    for name in (sound, gone, elsewhere):
        client.produce(name, some_records(10))

    archivers = open_archives(bootstrap, [sound, gone, elsewhere], None, archiving.said.append)
    archiving.run(archivers)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([gone])[gone].result(30)
    (tmp_path / "other").rename(tmp_path / "away")
    for name in (sound, elsewhere):
        client.produce(name, some_records(10))
    with pytest.raises(ArchivingError, match=f"2 of 3 topics could not be archived: .*{gone}"):
        archiving.run(archivers)
    assert describe(bootstrap, sound).partitions[0] == (0, 20)
    assert len([each for each in archiving.warnings if each.endswith("; continuing with the others")]) == 2

    # A running archiver archives the others meanwhile, and these two as soon as they are back.
    archiving.reopen = lambda name: open_archives(bootstrap, [name], None, archiving.said.append)[0]
    thread = threading.Thread(target=archiving.run, args=(archivers, 100))
    thread.start()
    try:
        client.produce(sound, some_records(10))
        assert eventually(lambda: describe(bootstrap, sound).partitions[0] == (0, 30), timeout_seconds=PATIENCE_SECONDS)
        (tmp_path / "away").rename(tmp_path / "other")
        assert eventually(
            lambda: describe(bootstrap, elsewhere).partitions[0] == (0, 20), timeout_seconds=PATIENCE_SECONDS
        )
        create_topic(bootstrap, gone, **archived_configs(archiving.place))
        client.produce(gone, some_records(7))
        assert eventually(
            lambda: describe(bootstrap, gone).partitions.get(0) == (0, 7), timeout_seconds=PATIENCE_SECONDS
        ), archiving.warnings
    finally:
        archiving.stop.request(signal.SIGTERM)
        thread.join()
    assert any(gone in each and each.endswith("retrying until it works") for each in archiving.warnings)
    for name in (sound, elsewhere, gone):
        verified(bootstrap, name)
