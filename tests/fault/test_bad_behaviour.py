"""Slow, greedy, silent or many clients: they get correct answers, and nobody else waits for them.

Each request here is sound. What is bounded is what one client may make the broker keep, and for how long.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.codec import Message
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.fault.conftest import MakeBroker
from tests.fault.target import OTHER, PATIENCE_SECONDS, TOPIC, Target
from tests.support.batches.bombs import bomb
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, produce_request, small_batch
from tests.support.clients.raw_client import RawClient, request_frame

_FETCH_VERSION = 11
_MIB = 1 << 20
#: More requests than the broker holds unanswered for a client, and more than fit into both sockets.
_FULL_LOG_BYTES = 24 * _MIB
#: How much the broker may grow for one client that does not read: twice its limit of unsent bytes, and some.
_SLOW_READER_BYTES = 40 * _MIB


@pytest.fixture(scope="module")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    config = {"auto.create.topics.enable": "false"}
    with WatchedBroker(tmp_path_factory.mktemp("bad-behaviour") / "data", config=config) as broker:
        yield Target(broker)


@pytest.fixture
def target(shared_target: Target) -> Iterator[Target]:
    """The broker of this file, checked after the test."""
    shared_target.broker.forget_peak()
    yield shared_target
    shared_target.check()


@pytest.fixture(scope="module")
def full_topic(shared_target: Target) -> str:
    """A topic with some megabytes in it."""
    shared_target.broker.create_topic("full")
    batch = bytes(build_batch([NewRecord(b"x" * 500_000, timestamp=1)]))
    with RawClient(shared_target.broker.port) as client:
        for _ in range(_FULL_LOG_BYTES // len(batch) + 1):
            response = client.ask(produce_request("full", batch), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
    return "full"


def worst_of(measure: Callable[[], float], times: int) -> float:
    return max(measure() for _ in range(times))


# --- slow ones


def test_a_client_that_fetches_much_and_reads_nothing_costs_bounded_memory(target: Target, full_topic: str) -> None:
    before = target.broker.resident_bytes()
    request = request_frame(fetch_request(full_topic, max_bytes=20 * _MIB), _FETCH_VERSION)
    clients = [RawClient(target.broker.port, receive_buffer=4096) for _ in range(5)]
    try:
        for client in clients:
            client.send(request * 20)
        assert worst_of(lambda: target.broker.serve_once(OTHER), 20) < PATIENCE_SECONDS
        assert target.broker.peak_resident_bytes() - before < _SLOW_READER_BYTES
    finally:
        for client in clients:
            client.socket.close()


def test_pipelined_fetches_that_exceed_what_may_be_unsent_are_all_answered(target: Target, full_topic: str) -> None:
    """The client sends everything at once and then nothing: held back requests must continue by themselves."""
    count = 60
    with RawClient(target.broker.port) as client:
        client.send(request_frame(fetch_request(full_topic, max_bytes=_MIB), _FETCH_VERSION) * count)
        for _ in range(count):
            data = client.read_answer(_FETCH_VERSION, FetchResponse).responses[0].partitions[0]
            assert data.error_code == 0
            assert data.records


def test_a_slow_reader_gets_everything_in_the_end(target: Target, full_topic: str) -> None:
    count = 20
    with RawClient(target.broker.port, receive_buffer=4096) as client:
        client.send(request_frame(fetch_request(full_topic, max_bytes=3 * _MIB), _FETCH_VERSION) * count)
        assert worst_of(lambda: target.broker.serve_once(OTHER), 5) < PATIENCE_SECONDS
        sizes = {len(client.receive_frame() or b"") for _ in range(count)}
    assert len(sizes) == 1
    assert sizes.pop() > 2 * _MIB


def test_a_request_that_arrives_byte_by_byte_is_answered(target: Target) -> None:
    with RawClient(target.broker.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        batch = small_batch(b"slowly")
        for byte in request_frame(produce_request(TOPIC, batch), 9):
            client.send(bytes([byte]))
        answer = client.read_answer(9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_thousands_of_requests_sent_before_the_first_answer_is_read_are_answered_in_order(target: Target) -> None:
    count = 20_000
    before = target.broker.resident_bytes()
    frames = b"".join(request_frame(ApiVersionsRequest(), 0, number) for number in range(count))
    with RawClient(target.broker.port) as client:
        client.socket.settimeout(0.5)
        sent = 0
        try:
            while sent < len(frames):
                sent += client.socket.send(frames[sent : sent + 65536])
        except TimeoutError:
            pass  # the broker reads no more until its answers are read
        assert target.broker.serve_once(OTHER) < PATIENCE_SECONDS
        assert target.broker.peak_resident_bytes() - before < _SLOW_READER_BYTES
        client.socket.settimeout(60)
        number = 0
        while number < count:
            answer = client.receive_frame()
            assert answer is not None, f"closed after {number} answers"
            assert int.from_bytes(answer[:4], "big") == number
            number += 1
            if sent < len(frames):
                sent += client.socket.send(frames[sent : sent + 256])


def test_waiting_fetches_beyond_what_may_be_open_are_answered_in_order(target: Target) -> None:
    """Each long poll takes a place; requests behind them proceed as the long polls are answered."""
    count = 200
    with RawClient(target.broker.port) as client:
        end = target.broker.end_offset(TOPIC)
        wait = fetch_request(TOPIC, end, max_wait_ms=100)
        client.send(b"".join(request_frame(wait, _FETCH_VERSION, number) for number in range(count)))
        for number in range(count):
            answer = client.receive_frame()
            assert answer is not None
            assert int.from_bytes(answer[:4], "big") == number


# --- many and silent ones


def test_five_hundred_silent_connections_hold_up_nobody(target: Target) -> None:
    before = target.broker.resident_bytes()
    clients: list[RawClient] = []
    try:
        for number in range(500):
            client = RawClient(target.broker.port)
            clients.append(client)
            if number % 20 == 0:  # a round trip now and then, so that the listener's backlog does not overflow
                client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            client.send(b"\0\0\0\x20\0"[: number % 5])  # some stop in the middle of a length
        assert worst_of(lambda: target.broker.serve_once(OTHER), 10) < PATIENCE_SECONDS
        assert target.broker.resident_bytes() - before < 16 * _MIB
    finally:
        for client in clients:
            client.socket.close()


def test_connections_that_end_in_every_way_leave_nothing_behind(target: Target) -> None:
    wait = request_frame(fetch_request(TOPIC, target.broker.end_offset(TOPIC), max_wait_ms=60_000), _FETCH_VERSION)
    descriptors = count_descriptors(target.broker)
    for number in range(300):
        client = RawClient(target.broker.port)
        client.send(wait)
        if number % 3 == 0:
            # Linger 0: the connection ends with a reset, as from a client that was killed.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif number % 3 == 1:
            client.end_sending()
            assert client.is_closed_by_broker()
        client.socket.close()
    deadline = time.monotonic() + 60
    while count_descriptors(target.broker) > descriptors + 2:
        assert time.monotonic() < deadline, "connections that ended are still open in the broker"
        target.broker.serve_once(OTHER)


def count_descriptors(broker: WatchedBroker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


@pytest.mark.parametrize(
    "config",
    [
        {"max_connections": "5"},
        {"max_connections_per_ip": "5"},
        {"max_connections_per_ip": "1", "max_connections_per_ip_overrides": "10.1.2.3:2,127.0.0.1:5"},
    ],
    ids=["in all", "from one address", "from an address of its own"],
)
def test_connections_beyond_the_limit_are_closed_and_places_become_free(
    config: dict[str, str], make_broker: MakeBroker
) -> None:
    broker = make_broker(**config)
    clients = [RawClient(broker.port) for _ in range(5)]
    try:
        for client in clients:
            assert client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse).error_code == 0
        for _ in range(20):
            with RawClient(broker.port) as one_too_many:
                assert one_too_many.is_closed_by_broker()
        assert clients[0].ask(ApiVersionsRequest(), 0, ApiVersionsResponse).error_code == 0
        clients.pop().socket.close()
        deadline = time.monotonic() + 60
        while not is_served(broker):
            assert time.monotonic() < deadline, "no place became free"
    finally:
        for client in clients:
            client.socket.close()
    refusals = [line for line in broker.all_error_output().splitlines() if "refused" in line]
    assert len(refusals) >= 20
    assert all("max.connections=" in line and " WARNING " in line for line in refusals)


def is_served(broker: WatchedBroker) -> bool:
    with RawClient(broker.port) as client:
        client.send(request_frame(ApiVersionsRequest(), 0))
        return client.receive_frame() is not None


def test_idle_connections_are_closed_and_waiting_ones_are_not(make_broker: MakeBroker) -> None:
    broker = make_broker(connections_max_idle_ms="2000")
    broker.create_topic(TOPIC)
    # A record answers the waiting fetch, not its timeout, which is long after this test.
    wait = request_frame(fetch_request(TOPIC, 0, max_wait_ms=600_000), _FETCH_VERSION)
    started = time.monotonic()
    with RawClient(broker.port) as waiting:
        waiting.send(wait)
        broker.end_offset(TOPIC)  # this answer shows that the broker has read everything before it
        with RawClient(broker.port) as idle, RawClient(broker.port) as stuck:
            stuck.send(b"\0\0\0\x20\0\x03")  # a frame whose rest never comes
            # They came later: the one that waits has been silent for longer when they are closed.
            assert idle.is_closed_by_broker()
            assert stuck.is_closed_by_broker()
        assert time.monotonic() - started > 1.9
        assert broker.produce(TOPIC, small_batch()).error_code == 0
        answer = waiting.read_answer(_FETCH_VERSION, FetchResponse)
        assert answer.responses[0].partitions[0].records


# --- greedy ones


def _repeated(count: int) -> dict[str, tuple[Message, int]]:
    """Requests that repeat one name, or have as many different ones."""
    fetched = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=_MIB)] * count
    looked_up = [ListOffsetsPartition(partition_index=0, timestamp=0)] * count
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    return {
        "metadata of one topic": (MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)] * count), 8),
        "metadata of unknown topics": (
            MetadataRequest(topics=[MetadataRequestTopic(name=f"n{number}") for number in range(count)]),
            8,
        ),
        "configuration of one broker": (
            DescribeConfigsRequest(resources=[broker] * count, include_documentation=True),
            4,
        ),
        "fetches of one partition": (
            FetchRequest(min_bytes=1, max_bytes=_MIB, topics=[FetchTopic(topic="full", partitions=fetched)]),
            _FETCH_VERSION,
        ),
        "offsets by time": (
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="full", partitions=looked_up)]),
            5,
        ),
        "topics to create": (
            CreateTopicsRequest(
                topics=[CreatableTopic(name=f"n{number}/", num_partitions=1) for number in range(count)],
                validate_only=True,
            ),
            4,
        ),
    }


#: As many as fit into a request without records.
COUNTS = {"topics to create": 14_000, "offsets by time": 40_000}


@pytest.mark.parametrize("name", _repeated(0))
def test_a_request_that_repeats_itself_is_answered_in_bounded_time_and_memory(
    name: str, target: Target, full_topic: str
) -> None:
    message, version = _repeated(COUNTS.get(name, 20_000))[name]
    with RawClient(target.broker.port) as client:
        client.send(request_frame(message, version))
        assert target.broker.serve_once(OTHER) < PATIENCE_SECONDS
        assert client.receive_frame() is not None


def test_metadata_goes_on_after_all_this(target: Target) -> None:
    with RawClient(target.broker.port) as client:
        names = {topic.name for topic in client.ask(MetadataRequest(topics=None), 8, MetadataResponse).topics}
    assert {TOPIC, OTHER} <= names


def test_a_few_bytes_that_unpack_to_millions_of_records_block_nobody(make_broker: MakeBroker) -> None:
    """At its stop, the broker's own watchdog reports no step above the limit for tests."""
    broker = make_broker()
    broker.create_topic("bombs")
    batch = bomb(count=4_000_000)
    assert len(batch) < 10_000
    assert broker.produce("bombs", batch).error_code == 0
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=1 << 39)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="bombs", partitions=wanted)])
    with RawClient(broker.port) as client:
        (partition,) = client.ask(request, 5, ListOffsetsResponse).topics[0].partitions
    assert (partition.error_code, partition.offset) == (0, -1)
    broker.stop()
