"""A thousand clients that send or read too slowly: what the broker holds for all of them together stays below a bound
that can be said beforehand, and others are served meanwhile."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.wire.messages.produce import ProduceResponse
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, produce_request
from tests.support.clients.raw_client import RawClient, request_frame

CONNECTIONS = 1000
_MIB = 1 << 20
QUEUED_MAX_BYTES = 32 * _MIB
REQUEST_MAX_BYTES = 16 * _MIB
#: What queued.max.request.bytes allows, one request of any size and 16 MiB of small ones beyond it, a share for each
#: connection with all that Python needs for one, and what the allocator keeps.
BOUND_BYTES = QUEUED_MAX_BYTES + REQUEST_MAX_BYTES + 16 * _MIB + CONNECTIONS * 32 * 1024 + 32 * _MIB
PATIENCE_SECONDS = 5.0
#: How long a large request may wait until connections that hold memory without progress are closed.
LARGE_REQUEST_SECONDS = 60.0
OTHER = "others"


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 4096)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[WatchedBroker]:
    config = {
        "queued.max.request.bytes": str(QUEUED_MAX_BYTES),
        "socket.request.max.bytes": str(REQUEST_MAX_BYTES),
        "message.max.bytes": str(REQUEST_MAX_BYTES),
        "socket.listen.backlog.size": "1024",
        "auto.create.topics.enable": "false",
    }
    with WatchedBroker(tmp_path / "data", config=config) as process:
        process.create_topic(OTHER)
        for _ in range(20):
            process.serve_once(OTHER)
        process.forget_peak()
        yield process


def connect_all(broker: WatchedBroker, receive_buffer: int = 0) -> list[RawClient]:
    clients = []
    for _ in range(CONNECTIONS):
        client = RawClient(broker.port, receive_buffer=receive_buffer)
        client.socket.setblocking(False)
        clients.append(client)
    return clients


def send_what_goes(client: RawClient, data: memoryview) -> int:
    try:
        return client.socket.send(data)
    except BlockingIOError:
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return len(data)


def close_all(clients: list[RawClient]) -> None:
    for client in clients:
        client.socket.close()


def is_closed(client: RawClient) -> bool:
    try:
        return client.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("announced", [1 * _MIB, REQUEST_MAX_BYTES], ids=["one mebibyte", "the largest allowed"])
def test_requests_of_which_only_half_comes_take_bounded_memory(announced: int, broker: WatchedBroker) -> None:
    before = broker.resident_bytes()
    half = memoryview(struct.pack(">ihh", announced - 4, 0, 9) + bytes(min(announced // 2, 512 * 1024)))
    clients = connect_all(broker)
    try:
        left = [half] * CONNECTIONS
        started = time.monotonic()
        worst = 0.0
        while any(left) and time.monotonic() - started < 8:
            for number, client in enumerate(clients):
                if left[number]:
                    left[number] = left[number][send_what_goes(client, left[number][: 64 * 1024]) :]
            worst = max(worst, broker.serve_once(OTHER))
        # Connections that hold memory without progress eventually make room for another client's large request.
        large = bytes(build_batch([NewRecord(b"x" * (2 * _MIB), timestamp=1)]))
        started = time.monotonic()
        with RawClient(broker.port, timeout_seconds=LARGE_REQUEST_SECONDS) as regular:
            answer = regular.ask(produce_request(OTHER, large), 9, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
        waited = time.monotonic() - started
        worst = max(worst, broker.serve_once(OTHER))
        peak = broker.peak_resident_bytes() - before
        closed = sum(is_closed(client) for client in clients)
    finally:
        close_all(clients)
    print(
        f"{CONNECTIONS} half requests of {announced >> 20} MiB: {peak >> 20} MiB more at the worst, bound "
        f"{BOUND_BYTES >> 20}; the slowest small request {worst:.3f} s, a large one {waited:.3f} s; {closed} closed"
    )
    assert peak < BOUND_BYTES
    assert worst < PATIENCE_SECONDS
    output = broker.all_error_output()
    assert "Traceback" not in output, output[-4000:]
    if closed:
        assert "queued.max.request.bytes" in output


def test_large_answers_that_nobody_reads_take_bounded_memory(broker: WatchedBroker) -> None:
    broker.create_topic("full")
    batch = bytes(build_batch([NewRecord(b"x" * 500_000, timestamp=1)]))
    for _ in range(20):
        assert broker.produce("full", batch).error_code == 0
    check_unread_answers(broker, request_frame(fetch_request("full", max_bytes=8 * _MIB), 11) * 20)


def test_answers_of_many_small_pieces_that_nobody_reads_take_bounded_memory(broker: WatchedBroker) -> None:
    """Each piece is small enough to be read into memory normally."""
    partitions = 100
    broker.create_topic("small", partitions=partitions)
    batch = bytes(build_batch([NewRecord(b"x" * 15_000, timestamp=1)]))
    with RawClient(broker.port) as client:
        for partition in range(partitions):
            answer = client.ask(produce_request("small", batch, partition=partition), 9, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=_MIB) for number in range(partitions)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=8 * _MIB, topics=[FetchTopic(topic="small", partitions=wanted)]
    )
    check_unread_answers(broker, request_frame(request, 11) * 5)


def check_unread_answers(broker: WatchedBroker, requests: bytes) -> None:
    before = broker.resident_bytes()
    broker.forget_peak()
    clients = connect_all(broker, receive_buffer=4096)
    try:
        worst = 0.0
        for number, client in enumerate(clients):
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_what_goes(client, memoryview(requests))
            if number % 50 == 0:
                worst = max(worst, broker.serve_once(OTHER))
        for _ in range(20):
            worst = max(worst, broker.serve_once(OTHER))
        peak = broker.peak_resident_bytes() - before
    finally:
        close_all(clients)
    print(
        f"{CONNECTIONS} unread answers: {peak >> 20} MiB more at the worst, bound {BOUND_BYTES >> 20}; "
        f"the slowest small request {worst:.3f} s"
    )
    assert peak < BOUND_BYTES
    assert worst < PATIENCE_SECONDS
    assert "Traceback" not in broker.all_error_output()
