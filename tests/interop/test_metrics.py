"""A broker's metrics agree with what its clients have counted."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace import __version__
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.fetch import FetchResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.brokers.scrape import Scrape, get
from tests.support.brokers.watched_broker import fetch_request, produce_request, small_batch
from tests.support.clients.raw_client import RawClient
from tests.support.topics import create_topic, delete_topic, eventually

MESSAGES_IN = "kafka_server_brokertopicmetrics_messagesin_total"
BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"
FAILED_PRODUCE = "kafka_server_brokertopicmetrics_failedproducerequests_total"
FAILED_FETCH = "kafka_server_brokertopicmetrics_failedfetchrequests_total"
REQUESTS = "kafka_network_requestmetrics_requests_total"
ERRORS = "kafka_network_requestmetrics_errors_total"
TIME = "kafka_network_requestmetrics_totaltimems"
CONNECTIONS = "kafka_server_socketservermetrics_connection_count"
CREATED = "kafka_server_socketservermetrics_connection_creation_total"
CLOSED = "kafka_server_socketservermetrics_connection_close_total"
LISTENER = {"listener": "PLAINTEXT"}
#: The time limit on a busy machine.
PATIENCE_SECONDS = 120


class Monitored:
    """A broker with a monitoring port."""

    def __init__(self, broker: BrokerProcess, port: int) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.port = port

    def scrape(self) -> Scrape:
        return Scrape(self.port)


@pytest.fixture
def monitored(make_broker: MakeBroker) -> Monitored:
    port = free_port()
    return Monitored(make_broker(metrics_port=str(port), auto_create_topics_enable="false"), port)


class Statistics:
    """librdkafka's own counters, as last reported."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self.count = 0

    def __call__(self, text: str) -> None:
        self.newest = json.loads(text)
        self.count += 1

    def requests(self, api: str) -> int:
        """The number of requests of an API on all its connections."""
        return sum(broker["req"].get(api, 0) for broker in self.newest["brokers"].values())

    def waiting(self) -> int:
        """The number of requests without an answer."""
        return sum(broker["waitresp_cnt"] for broker in self.newest["brokers"].values())

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        return [each for number, each in self.newest["topics"][topic]["partitions"].items() if number != "-1"]


@pytest.fixture
def topic(monitored: Monitored, topic_name: Callable[[], str]) -> str:
    return create_topic(monitored.bootstrap, topic_name(), partitions=3)


def fresh(statistics: Statistics, poll: Callable[[], object]) -> None:
    """Wait for figures from after this call."""
    seen = statistics.count
    assert eventually(lambda: bool(poll() or True) and statistics.count >= seen + 2)


def test_records_bytes_and_requests_are_what_a_producer_and_a_consumer_counted(
    monitored: Monitored, topic: str
) -> None:
    count = 5000
    acknowledged = 0
    statistics = Statistics()
    config = {
        "bootstrap.servers": monitored.bootstrap,
        "log_level": 0,
        "statistics.interval.ms": 100,
        "stats_cb": statistics,
        "batch.num.messages": 100,
        "linger.ms": 1,
    }
    producer = Producer(config)

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        assert error is None
        acknowledged += 1

    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 3, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    fresh(statistics, lambda: producer.poll(0.05))

    scrape = monitored.scrape()
    assert acknowledged == count
    assert scrape.value(MESSAGES_IN, topic=topic) == scrape.value(MESSAGES_IN) == count
    assert statistics.requests("Produce") > 10
    assert scrape.sum(REQUESTS, request="Produce") == statistics.requests("Produce")
    assert scrape.value(f"{TIME}_count", request="Produce") == statistics.requests("Produce")
    assert scrape.sum(FAILED_PRODUCE) == 0
    for each in statistics.partitions(topic):
        labels = {"topic": topic, "partition": str(each["partition"])}
        assert scrape.value("kafka_log_log_logendoffset", **labels) == each["txmsgs"]
    on_disk = sum(path.stat().st_size for path in monitored.broker.data_dir.glob(f"{topic}-*/*.log"))
    assert scrape.value(BYTES_IN, topic=topic) == on_disk == scrape.sum("kafka_log_log_size", topic=topic)

    read = Statistics()
    consumer = Consumer(
        {**config, "stats_cb": read, "group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        received = 0
        deadline = time.monotonic() + PATIENCE_SECONDS
        while received < count:
            assert time.monotonic() < deadline
            message = consumer.poll(0.2)
            received += message is not None and message.error() is None
        consumer.pause([TopicPartition(topic, number) for number in range(3)])
        fresh(read, lambda: consumer.poll(0.05))
        # The last fetch must be answered: one that waits when the consumer closes is sent but not counted.
        assert eventually(lambda: bool(consumer.poll(0.05) or True) and read.waiting() == 0)
    finally:
        consumer.close()
    scrape = monitored.scrape()
    assert read.requests("Fetch") <= scrape.sum(REQUESTS, request="Fetch") <= read.requests("Fetch") + 3
    # librdkafka drops what it had prefetched when it pauses, so that the broker may have sent more than it kept.
    assert scrape.value(BYTES_OUT, topic=topic) >= on_disk
    assert scrape.sum(FAILED_FETCH) == 0


def test_every_byte_that_one_client_sends_and_reads_is_counted(monitored: Monitored, topic: str) -> None:
    batches = [small_batch(*([b"value"] * size)) for size in (1, 2, 3)]
    with RawClient(monitored.broker.port) as client:
        for batch in batches:
            response = client.ask(produce_request(topic, batch), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
        for _ in range(4):
            fetched = client.ask(fetch_request(topic, 0), 11, FetchResponse)
            assert len(fetched.responses[0].partitions[0].records or b"") == sum(map(len, batches))
    scrape = monitored.scrape()
    assert scrape.value(MESSAGES_IN, topic=topic) == 6
    assert scrape.value(BYTES_IN, topic=topic) == sum(map(len, batches))
    assert scrape.value(BYTES_OUT, topic=topic) == 4 * sum(map(len, batches))
    assert scrape.value(REQUESTS, request="Produce", version="9") == 3
    assert scrape.value(REQUESTS, request="Fetch", version="11") == 4


def test_every_refusal_is_counted(monitored: Monitored, topic: str, topic_name: Callable[[], str]) -> None:
    small = create_topic(monitored.bootstrap, topic_name(), max_message_bytes="100")
    absent = topic_name()
    with RawClient(monitored.broker.port) as client:

        def produce(name: str, batch: bytes) -> int:
            response = client.ask(produce_request(name, batch), 9, ProduceResponse)
            return response.responses[0].partition_responses[0].error_code

        def fetch(name: str, offset: int) -> int:
            return client.ask(fetch_request(name, offset), 11, FetchResponse).responses[0].partitions[0].error_code

        refused = [produce(small, small_batch(b"x" * 200)) for _ in range(2)]
        refused += [produce(absent, small_batch()) for _ in range(3)]
        assert 0 not in refused
        assert 0 not in [fetch(topic, 1000), fetch(absent, 0)]
    scrape = monitored.scrape()
    assert scrape.value(FAILED_PRODUCE, topic=small) == 2
    assert scrape.value(FAILED_PRODUCE, topic=topic) == 0
    assert scrape.value(FAILED_PRODUCE) == 5
    assert scrape.value(FAILED_FETCH, topic=topic) == 1
    assert scrape.value(FAILED_FETCH) == 2
    assert scrape.value(ERRORS, request="Produce", error="MESSAGE_TOO_LARGE") == 2
    assert scrape.value(ERRORS, request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 3
    assert scrape.value(ERRORS, request="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
    assert scrape.value(MESSAGES_IN) == 0


def test_connections_are_counted_as_they_come_and_go(make_broker: MakeBroker) -> None:
    port = free_port()
    broker = make_broker(metrics_port=str(port), max_connections="12")
    before = Scrape(port)
    assert before.value(CONNECTIONS, **LISTENER) == 0
    clients = [RawClient(broker.port) for _ in range(12)]
    for client in clients:
        client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    with RawClient(broker.port) as one_too_many:
        assert one_too_many.is_closed_by_broker()
    scrape = Scrape(port)
    assert scrape.value(CONNECTIONS, **LISTENER) == 12
    assert scrape.value(CREATED, **LISTENER) == 13
    assert scrape.value("tailrace_connections_refused_total") == 1
    for client in clients[:5]:
        client.socket.close()
    assert eventually(lambda: Scrape(port).value(CONNECTIONS, **LISTENER) == 7)
    for client in clients[5:]:
        client.socket.close()
    assert eventually(lambda: Scrape(port).value(CLOSED, **LISTENER) == 13)
    assert Scrape(port).value(CREATED, **LISTENER) == 13


def test_topics_and_partitions_are_those_that_an_admin_client_lists(
    monitored: Monitored, topic_name: Callable[[], str]
) -> None:
    names = [create_topic(monitored.bootstrap, topic_name(), partitions=count) for count in (1, 5, 10)]
    admin = AdminClient({"bootstrap.servers": monitored.bootstrap, "log_level": 0})
    listed = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    scrape = monitored.scrape()
    partitions = sum(len(topic.partitions) for topic in listed.values())
    assert scrape.value("kafka_controller_kafkacontroller_globaltopiccount") == len(listed) == 3
    assert scrape.value("kafka_controller_kafkacontroller_globalpartitioncount") == partitions == 16
    assert scrape.value("kafka_server_replicamanager_partitioncount") == 16
    assert scrape.value("kafka_server_replicamanager_leadercount") == 16
    assert scrape.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert scrape.value("kafka_controller_kafkacontroller_activebrokercount") == 1
    assert scrape.value("kafka_server_kafkaserver_brokerstate") == 3
    assert scrape.labels_of("kafka_log_log_size", "topic") == set(names)
    delete_topic(monitored.bootstrap, names[1])
    scrape = monitored.scrape()
    assert scrape.labels_of("kafka_log_log_size", "topic") == {names[0], names[2]}
    assert scrape.value("kafka_controller_kafkacontroller_globalpartitioncount") == 11


def test_the_process_is_the_brokers(monitored: Monitored) -> None:
    scrape = monitored.scrape()
    directory = Path(f"/proc/{monitored.broker.pid}")
    resident = scrape.value("process_resident_memory_bytes")
    pages = int((directory / "statm").read_text().split()[1])
    assert abs(resident - pages * os.sysconf("SC_PAGE_SIZE")) < 16 << 20
    assert 0 < scrape.value("process_cpu_seconds_total") < 60
    assert abs(scrape.value("process_open_fds") - len(list((directory / "fd").iterdir()))) <= 3
    assert time.time() - 600 < scrape.value("process_start_time_seconds") <= time.time() + 1
    version = platform.python_version_tuple()
    (info,) = scrape.families["python_info"].samples
    assert (info.labels["major"], info.labels["minor"]) == version[:2]
    assert scrape.value("tailrace_build_info", version=__version__) == 1
    assert eventually(lambda: monitored.scrape().value("tailrace_event_loop_lag_seconds_count") >= 2)


def test_pages_that_scrapers_and_probes_ask_for(monitored: Monitored) -> None:
    assert get(monitored.port, "/healthz").content == {"status": "alive"}
    ready = get(monitored.port, "/readyz")
    assert (ready.status, ready.content["status"]) == (200, "ready")
    head = get(monitored.port, "/metrics", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(head.headers["content-length"]) > 1000
    assert get(monitored.port, "/").status == 404
    assert get(monitored.port, "/metrics", "POST").status == 405


def test_the_health_check_of_the_image_knows_a_ready_broker_from_none(monitored: Monitored) -> None:
    containerfile = (Path(__file__).parents[2] / "deploy" / "Containerfile").read_text()
    (line,) = [line for line in containerfile.splitlines() if line.startswith("HEALTHCHECK")]
    _, option, code = json.loads(line[line.index("[") :])

    def check(port: int) -> int:
        command = [sys.executable, option, code.replace("9404", str(port))]
        return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS).returncode

    # It waits up to four seconds for a broker, and is called several times.
    assert eventually(lambda: check(monitored.port) == 0)
    assert check(free_port()) == 1


@pytest.fixture
def stubborn(monitored: Monitored) -> Iterator[list[socket.socket]]:
    opened = [socket.create_connection(("127.0.0.1", monitored.port), timeout=PATIENCE_SECONDS) for _ in range(40)]
    yield opened
    for each in opened:
        each.close()


def test_clients_that_ask_and_never_read_keep_nobody_from_the_metrics(
    monitored: Monitored, stubborn: list[socket.socket], topic: str
) -> None:
    for each in stubborn:
        each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    began = time.monotonic()
    assert monitored.scrape().value("kafka_server_kafkaserver_brokerstate") == 3
    assert time.monotonic() - began < 30
    with RawClient(monitored.broker.port) as client:
        response = client.ask(produce_request(topic, small_batch()), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0
