"""An archive that is unavailable, damaged or slow, and brokers that die while they use it: no gap, no lost record."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Message, TopicPartition

from tailrace.client.archive import describe
from tailrace.errors import ErrorCode
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.fault.conftest import MakeBroker
from tests.support.archives.archived_topics import (
    RETENTION_CHECK_MS,
    archived_configs,
    assert_is_what_was_sent,
    local_start,
    some_records,
)
from tests.support.archives.archiver import archive_up_to
from tests.support.archives.quarantined_topic import END, POISON, quarantined_topic
from tests.support.batches.poison import fetch_batches
from tests.support.brokers.cluster_load import IDEMPOTENT
from tests.support.brokers.cluster_process import ClusterBroker, ClusterProcess, coordination_store
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.raw_client import RawClient
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

TOPIC = "events"
RECORDS = 3_000
ARCHIVED = 2_000
#: More than are sent during a test of a cluster.
MOST_RECORDS = 60_000
FETCH_VERSION = 11
READ_SECONDS = 180


class Archived(NamedTuple):
    """A broker that has deleted the archived records of its topic."""

    broker: WatchedBroker
    place: Path
    records: list[Record]


@pytest.fixture
def archived(make_broker: MakeBroker, tmp_path: Path) -> Archived:
    broker = make_broker(log_retention_check_interval_ms=RETENTION_CHECK_MS)
    place = tmp_path / "archive"
    create_topic(broker.bootstrap, TOPIC, **archived_configs(place))
    records = some_records(RECORDS)
    ConfluentClient(broker.bootstrap).produce(TOPIC, records)
    archive_up_to(broker.bootstrap, TOPIC, {0: ARCHIVED})
    assert eventually(lambda: local_start(broker.bootstrap, TOPIC) > ARCHIVED // 2, timeout_seconds=READ_SECONDS)
    return Archived(broker, place, records)


def fetch_error(broker: WatchedBroker, offset: int) -> int:
    """The error code of a fetch of an offset, 0 for records; repeats the fetch until it has a result."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )
    with RawClient(broker.port) as client:
        for _ in range(100):
            answer = client.ask(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]
            if answer.error_code or answer.records:
                return answer.error_code
    raise AssertionError("neither records nor an error")


def test_an_archive_that_is_away_is_waited_for_while_others_are_served(archived: Archived) -> None:
    broker, place, records = archived
    client = ConfluentClient(broker.bootstrap)
    away = place.with_name("away")
    place.rename(away)
    assert fetch_error(broker, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    # Records in the broker's own log are served, and so are other topics.
    start = local_start(broker.bootstrap, TOPIC)
    received = client.consume(TOPIC, 0, RECORDS - start, start=start, timeout_seconds=READ_SECONDS)
    assert_is_what_was_sent(received, records, start)
    other = create_topic(broker.bootstrap, "other")
    client.produce(other, [Record(b"lives")])
    assert client.consume(other, 0, 1, timeout_seconds=READ_SECONDS)[0].value == b"lives"
    # A consumer that arrives meanwhile waits, and continues when the archive is back.
    consumer = client.consumer()
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        assert consumer.poll(3) is None
        away.rename(place)
        first = consumer.poll(READ_SECONDS)
        assert first is not None
        assert (first.error(), first.offset()) == (None, 0)
    finally:
        consumer.close()
    assert_is_what_was_sent(client.consume(TOPIC, 0, RECORDS, timeout_seconds=READ_SECONDS), records)


def test_an_altered_file_is_an_error_and_no_hole(archived: Archived) -> None:
    broker, place, records = archived
    files = sorted(place.rglob("*.parquet"))
    altered = files[1]
    content = bytearray(altered.read_bytes())
    content[len(content) // 3] ^= 1
    altered.write_bytes(content)
    first_bad = int(altered.name.split("-")[0])
    assert fetch_error(broker, 0) == 0
    assert fetch_error(broker, first_bad) == ErrorCode.KAFKA_STORAGE_ERROR
    altered.unlink()
    assert fetch_error(broker, first_bad) == ErrorCode.KAFKA_STORAGE_ERROR
    content[len(content) // 3] ^= 1
    altered.write_bytes(content)
    received = ConfluentClient(broker.bootstrap).consume(TOPIC, 0, RECORDS, timeout_seconds=READ_SECONDS)
    assert_is_what_was_sent(received, records)


def test_a_reader_that_is_killed_is_started_again(archived: Archived) -> None:
    broker, _, records = archived
    assert fetch_error(broker, 0) == 0
    for pid in _children(broker.pid):
        os.kill(pid, signal.SIGKILL)
    received = ConfluentClient(broker.bootstrap).consume(TOPIC, 0, RECORDS, timeout_seconds=READ_SECONDS)
    assert_is_what_was_sent(received, records)


def test_what_is_quarantined_is_an_error_while_it_cannot_be_read_and_survives_kills(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(log_retention_check_interval_ms=RETENTION_CHECK_MS)
    place = tmp_path / "archive"
    quarantined_topic(broker.bootstrap, broker.port, TOPIC, place)
    (side_file,) = place.rglob("*.batches")
    content = side_file.read_bytes()
    for altered in (content[:-1], bytes(len(content)), None):
        if altered is None:
            side_file.unlink()
        else:
            side_file.write_bytes(altered)
        # Never a gap, and nothing else is affected.
        assert fetch_error(broker, 100) == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetch_error(broker, 104) == ErrorCode.KAFKA_STORAGE_ERROR
        assert (fetch_error(broker, 0), fetch_error(broker, 105)) == (0, 0)
    side_file.write_bytes(content)
    assert fetch_batches(broker.port, TOPIC, 101)[21 : len(POISON)] == POISON[21:]
    for pid in _children(broker.pid):
        os.kill(pid, signal.SIGKILL)
    # Requests to the dead process fail with a retriable error.
    assert eventually(lambda: fetch_error(broker, 100) == 0, timeout_seconds=READ_SECONDS)
    assert fetch_batches(broker.port, TOPIC, 100)[21 : len(POISON)] == POISON[21:]
    broker.kill()
    broker.start()
    assert fetch_batches(broker.port, TOPIC, 102)[21 : len(POISON)] == POISON[21:]
    client = ConfluentClient(broker.bootstrap)
    assert [each.offset for each in client.consume(TOPIC, 0, 7, start=103)] == list(range(103, END))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nothing_goes_that_is_not_archived(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker(log_retention_check_interval_ms=RETENTION_CHECK_MS)
    create_topic(broker.bootstrap, TOPIC, **archived_configs(tmp_path / "archive"))
    topic = create_topic(broker.bootstrap, "dropped", tailrace_archive_lag_policy="drop", **archived_configs(tmp_path))
    client = ConfluentClient(broker.bootstrap)
    records = some_records(RECORDS)
    client.produce(TOPIC, records)
    client.produce(topic, records)
    # Once retention has run on the topic that may lose records, it has run on both.
    assert eventually(lambda: local_start(broker.bootstrap, topic) == RECORDS, timeout_seconds=READ_SECONDS)
    assert local_start(broker.bootstrap, TOPIC) == 0
    assert_is_what_was_sent(client.consume(TOPIC, 0, RECORDS, timeout_seconds=READ_SECONDS), records)


def test_a_lost_disk_goes_on_where_the_archive_ends(archived: Archived) -> None:
    broker = archived.broker
    archive_up_to(broker.bootstrap, TOPIC, {0: RECORDS})
    broker.stop()
    shutil.rmtree(broker.data_dir / f"{TOPIC}-0")
    broker.start()
    client = ConfluentClient(broker.bootstrap)
    assert eventually(lambda: client.offsets(TOPIC, [0]) == {0: (0, RECORDS)}, timeout_seconds=READ_SECONDS)
    more = some_records(RECORDS + 10)
    assert client.produce(TOPIC, more[RECORDS:])[0] == (0, RECORDS)
    assert_is_what_was_sent(client.consume(TOPIC, 0, RECORDS + 10, timeout_seconds=READ_SECONDS), more)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Three brokers with long sessions: one that dies is missed at once all the same, as its connection ends."""
    config = {"log_retention_check_interval_ms": RETENTION_CHECK_MS, "broker_session_timeout_ms": "30000"}
    with (
        coordination_store("local", tmp_path / "store") as address,
        ClusterProcess(tmp_path, address, **config) as started,
    ):
        yield started


@pytest.fixture
def java_bridge(tmp_path: Path) -> Iterator[JavaBridge]:
    directory = tmp_path / "java"
    directory.mkdir()
    bridge = JavaBridge(directory)
    yield bridge
    bridge.close()


class Sending(threading.Thread):
    """Sends records one after another until told to stop; each must be appended once and in order."""

    def __init__(self, bootstrap: str, records: list[Record]) -> None:
        super().__init__(name="sending", daemon=True)
        #: The number of acknowledged records, from the first one on.
        self.acknowledged = 0
        self._wanted = 0
        self._records = records
        self._producer = ConfluentClient(bootstrap).producer(**IDEMPOTENT)
        self._is_over = threading.Event()
        self._failure: str | None = None

    def run(self) -> None:
        for number, record in enumerate(self._records):
            # Slowly while nobody waits for more: records must last for the whole test, on any machine.
            if self._is_over.wait(0.01 if number > self._wanted else 0):
                break
            self._producer.produce(
                TOPIC,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=self._delivered,
            )
            # A few are always in flight, whichever broker leads.
            while len(self._producer) > 50 and self._failure is None and not self._is_over.is_set():
                self._producer.poll(0.01)
            self._producer.poll(0.001)
        if self._producer.flush(READ_SECONDS):
            self._failure = "some were never answered"

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None or message.offset() != self.acknowledged:
            self._failure = f"record {self.acknowledged} was answered with {error}, offset {message.offset()}"
        self.acknowledged += 1

    def wait_for(self, count: int) -> None:
        """Wait until this many records are acknowledged."""
        self._wanted = count
        assert eventually(
            lambda: self.acknowledged >= count or self._failure is not None, timeout_seconds=READ_SECONDS
        ), f"{self.acknowledged} of {count}"
        assert self._failure is None, self._failure

    def send_no_more(self) -> None:
        self._is_over.set()

    def finish(self) -> list[Record]:
        """What was sent so far, all acknowledged."""
        self.send_no_more()
        self.join(2 * READ_SECONDS)
        assert not self.is_alive(), "it does not end"
        assert self._failure is None, self._failure
        return self._records[: self.acknowledged]


@pytest.fixture
def sending(cluster: ClusterProcess) -> Iterator[Sending]:
    """Not yet started; sends no more when the test is over, however it ended."""
    thread = Sending(cluster.bootstrap, some_records(MOST_RECORDS))
    yield thread
    thread.send_no_more()


def leader_from(cluster: ClusterProcess, offset: int) -> ClusterBroker:
    """The leader, once its log begins beyond an offset."""
    leaders: list[ClusterBroker] = []

    def has_given_up() -> bool:
        # Asked again: on a busy machine another broker may lead by now.
        leaders.append(cluster.leader_of(TOPIC, 0))
        return local_start(leaders[-1].bootstrap, TOPIC) > offset

    assert eventually(has_given_up, timeout_seconds=READ_SECONDS)
    return leaders[-1]


def test_clients_read_everything_while_leaders_die_and_from_a_follower_that_began_anew(
    cluster: ClusterProcess, sending: Sending, java_bridge: JavaBridge, tmp_path: Path
) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, TOPIC, **archived_configs(tmp_path / "archive"))
    sending.start()
    for count in (1_000, ARCHIVED):
        sending.wait_for(count)
        archive_up_to(bootstrap, TOPIC, {0: count})
    sending.wait_for(RECORDS)
    # The leader dies during a read that began in the archive, while records are produced.
    cluster.wait_until_whole()
    first = leader_from(cluster, ARCHIVED // 2)
    java, confluent = JavaClient(bootstrap, java_bridge), ConfluentClient(bootstrap)
    received = java.consume(TOPIC, 0, RECORDS, after_first=first.kill, timeout_seconds=READ_SECONDS)
    # It returns the result of one poll, which may be more than requested.
    assert_is_what_was_sent(received[:RECORDS], some_records(RECORDS))
    sending.wait_for(sending.acknowledged + 200)
    archived = sending.acknowledged
    archive_up_to(bootstrap, TOPIC, {0: archived})
    leader_from(cluster, ARCHIVED)
    # The one that died has lost its disk: it begins where the leader's log does, and then it has to lead.
    shutil.rmtree(first.data_dir)
    first.start()
    cluster.wait_until_whole()
    for broker in cluster.brokers:
        if broker is not first:
            broker.kill()
            running = {each.number for each in cluster.brokers if each.is_running}
            cluster.wait_for(
                lambda state, running=running: {each["id"] for each in state["brokers"]} == running,
                "a broker to be gone",
            )
    assert cluster.leader_of(TOPIC, 0) is first
    assert ARCHIVED < local_start(first.bootstrap, TOPIC) <= archived
    sending.wait_for(sending.acknowledged + 200)
    sent = sending.finish()
    for client in (java, confluent):
        received = client.consume(TOPIC, 0, len(sent), timeout_seconds=READ_SECONDS)
        assert_is_what_was_sent(received, sent)
    archive_up_to(bootstrap, TOPIC, {0: len(sent)})
    assert describe(bootstrap, TOPIC).partitions == {0: (0, len(sent))}
