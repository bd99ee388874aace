"""A process with few descriptors: the broker says so, divides them, and refuses what it has none for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.brokers.broker_process import EXECUTABLE, BrokerFailedError
from tests.support.brokers.watched_broker import WatchedBroker, produce_request, small_batch
from tests.support.clients.raw_client import RawClient, request_frame

LIMIT = 80
PARTITIONS = 60


def limited(tmp_path: Path, limit: int) -> WatchedBroker:
    """A broker in a process with this limit of open files."""
    script = tmp_path / "tailrace-with-few-files"
    script.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec {EXECUTABLE} "$@"\n')
    script.chmod(0o755)
    return WatchedBroker(tmp_path / "data", executable=script)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[WatchedBroker]:
    process = limited(tmp_path, LIMIT)
    process.start()
    yield process
    if process.is_running:
        process.stop()


def is_served(broker: WatchedBroker) -> bool:
    with RawClient(broker.port) as client:
        client.send(request_frame(ApiVersionsRequest(), 0))
        return client.receive_frame() is not None


def test_the_broker_says_how_few_they_are_and_what_they_are_enough_for(broker: WatchedBroker) -> None:
    (line,) = [line for line in broker.all_error_output().splitlines() if " WARNING " in line]
    assert f"only {LIMIT} files and sockets may be open at once" in line
    assert "ulimit -n" in line


def test_connections_beyond_are_refused_at_once_and_the_others_served(broker: WatchedBroker) -> None:
    broker.create_topic("many", partitions=PARTITIONS)
    held: list[RawClient] = []
    try:
        refused = 0
        for _ in range(3 * LIMIT):
            client = RawClient(broker.port)
            client.send(request_frame(ApiVersionsRequest(), 0))
            if client.receive_frame() is None:
                refused += 1
                client.socket.close()
            else:
                held.append(client)
        assert refused > LIMIT
        assert 10 <= len(held) < LIMIT
        # More partitions than open files, written to while no further connection is possible.
        for partition in range(PARTITIONS):
            request = produce_request("many", small_batch(), partition=partition)
            client = held[partition % len(held)]
            client.send(request_frame(request, 9))
            assert client.receive_frame() is not None
        for client in held:
            assert client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse).error_code == 0
    finally:
        for client in held:
            client.socket.close()
    deadline = time.monotonic() + 60
    while not is_served(broker):
        assert time.monotonic() < deadline, "no place became free"
    output = broker.all_error_output()
    assert "connections, the last from" in output
    assert "Traceback" not in output
    assert "is offline" not in output
    broker.restart()
    broker.serve_once("many")


def test_with_far_too_few_the_broker_does_not_start_and_says_what_to_do(tmp_path: Path) -> None:
    broker = limited(tmp_path, 40)
    with pytest.raises(BrokerFailedError, match=r"ended with 1\n(.*\n)*Error: the limit of 40 open files .*ulimit -n"):
        broker.start()
