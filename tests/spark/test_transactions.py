"""A topic with committed, aborted and open transactions in Spark: as a source, in an archive, and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.client.archive import describe
from tailrace.client.request import ask
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.replay.plan import Replay
from tailrace.pipeline.replay.replaying import prepare, run_replay
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.write_txn_markers import WriteTxnMarkersResponse
from tests.support.archives.archived_topics import RETENTION_CHECK_MS, archived_configs, local_start
from tests.support.archives.archiving import Archiving, archived_records, verified
from tests.support.batches.transactional_log import TransactionalLog, abort_request, write_log
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Received, Record
from tests.support.topics import create_topic, eventually


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as process:
        yield process


def found_in(received: list[Received]) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in received]


def abort(broker: BrokerProcess, topic: str) -> None:
    """End the transaction that is open."""
    response = ask(broker.bootstrap, abort_request(topic), Versions(1, 1), WriteTxnMarkersResponse, doing="aborting")
    assert response.markers[0].topics[0].partitions[0].error_code == 0


def test_the_source_reads_by_its_isolation_level(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    log = write_log(broker, topic)

    def read(**options: str) -> list[tuple[int, bytes]]:
        source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
        rows = spark.read.format("tailrace").options(**source).load().orderBy("offset").collect()
        return [(row["offset"], bytes(row["value"])) for row in rows]

    assert read(**{"kafka.isolation.level": "read_committed"}) == log.committed
    assert read() == read(**{"kafka.isolation.level": "read_uncommitted"}) == log.all_records


def test_an_archive_has_what_is_committed_and_waits_for_what_is_open(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, topic, **archived_configs(tmp_path / "archive"))
    log = write_log(broker, topic)
    archiving = Archiving(spark, broker.bootstrap, tmp_path / "archive")
    archiving.once(topic)
    assert describe(broker.bootstrap, topic).partitions[0] == (0, log.open_offset)
    assert found_in(archived_records(broker.bootstrap, topic, 0)) == log.committed
    assert verified(broker.bootstrap, topic).rows == len(log.committed)

    abort(broker, topic)
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"last"), Record(b"last")])
    committed = [*log.committed, log.all_records[-1], *((log.open_offset + 3 + more, b"last") for more in range(2))]
    archiving.once(topic)
    assert describe(broker.bootstrap, topic).partitions[0] == (0, log.open_offset + 5)
    assert found_in(archived_records(broker.bootstrap, topic, 0)) == committed
    # Read through the broker from the archive, where offsets are missing.
    assert eventually(lambda: local_start(broker.bootstrap, topic) > log.open_offset // 2, timeout_seconds=120)
    assert found_in(client.consume(topic, 0, len(committed), timeout_seconds=120)) == committed


def test_a_replay_writes_what_is_committed(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-target"
    create_topic(broker.bootstrap, topic)
    create_topic(broker.bootstrap, target)
    log: TransactionalLog = write_log(broker, topic)
    prepared = prepare(Replay(broker.bootstrap, topic, target), str(tmp_path / "checkpoint"), print)
    try:
        run_replay(spark, prepared, report=print, warn=print, stop=Stop())
    finally:
        prepared.close()
    values = [value for _, value in log.committed]
    received = ConfluentClient(broker.bootstrap).consume(target, 0, len(values), timeout_seconds=120)
    assert [each.value for each in received] == values
    assert ConfluentClient(broker.bootstrap).offsets(target, [0])[0] == (0, len(values))
