"""A log directory that turns read-only, or is so at the start: its partitions say so, the others go on, and when it is
writable again nothing is missing.

Needs to mount a file system of its own; where that is not allowed the tests fail and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.wire.messages.fetch import FetchResponse
from tests.support.brokers.failing_disk import FailingDisk
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, small_batch
from tests.support.clients.raw_client import RawClient

TOPICS = ("first", "second", "third", "fourth")
COUNT = 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with FailingDisk(tmp_path / "disk") as failing:
        yield failing


@pytest.fixture
def broker(disk: FailingDisk, tmp_path: Path) -> Iterator[WatchedBroker]:
    """A broker with two directories, the second on the disk that fails, and records in both."""
    # Synced before each acknowledgement, because unsynced records may be lost with the disk.
    config = {"log.flush.interval.messages": "1"}
    process = WatchedBroker(tmp_path / "data", config=config, more_dirs=[disk.path / "data"])
    process.start()
    for topic in TOPICS:
        process.create_topic(topic)
        for _ in range(COUNT):
            assert process.produce(topic, small_batch()).error_code == 0
    yield process
    if process.is_running:
        process.stop()


def topics_in(directory: Path) -> list[str]:
    return [topic for topic in TOPICS if (directory / f"{topic}-0").is_dir()]


def fetch_error(broker: WatchedBroker, topic: str) -> int:
    with RawClient(broker.port) as client:
        (data,) = client.ask(fetch_request(topic), 11, FetchResponse).responses[0].partitions
    return data.error_code


def check_only_others_are_served(broker: WatchedBroker, lost: list[str], kept: list[str]) -> None:
    for topic in lost:
        result = broker.produce(topic, small_batch())
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert result.error_message
        assert fetch_error(broker, topic) == ErrorCode.KAFKA_STORAGE_ERROR
    for topic in kept:
        assert broker.produce(topic, small_batch()).error_code == 0
        assert fetch_error(broker, topic) == 0


def check_message(broker: WatchedBroker, disk: FailingDisk) -> None:
    output = broker.all_error_output()
    (line,) = [line for line in output.splitlines() if " CRITICAL " in line]
    assert f"log directory {disk.path / 'data'} is offline" in line
    assert "Read-only file system" in line
    assert "until the disk is repaired and the broker restarted" in line
    assert "Traceback" not in output


def test_a_directory_that_turns_read_only_costs_only_its_partitions(
    broker: WatchedBroker, disk: FailingDisk, tmp_path: Path
) -> None:
    lost, kept = topics_in(disk.path / "data"), topics_in(tmp_path / "data")
    assert lost
    assert kept
    disk.turn_read_only()
    check_only_others_are_served(broker, lost, kept)
    check_message(broker, disk)
    # New topics use the other directory.
    broker.create_topic("later")
    assert broker.produce("later", small_batch()).error_code == 0
    broker.stop()
    disk.repair()
    broker.start()
    for topic in lost:
        assert broker.end_offset(topic) == COUNT
        assert broker.produce(topic, small_batch()).base_offset == COUNT
    for topic in kept:
        assert broker.end_offset(topic) == COUNT + 1


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_directory_that_is_read_only_at_the_start_is_gone_on_without(
    way: str, broker: WatchedBroker, disk: FailingDisk, tmp_path: Path
) -> None:
    lost, kept = topics_in(disk.path / "data"), topics_in(tmp_path / "data")
    if way == "stopped":
        broker.stop()
    else:
        broker.kill()
    disk.turn_read_only()
    broker.start()
    check_only_others_are_served(broker, lost, kept)
    check_message(broker, disk)
    broker.stop()
    disk.repair()
    broker.start()
    for topic in lost:
        assert broker.end_offset(topic) == COUNT
        assert broker.produce(topic, small_batch()).base_offset == COUNT
    for topic in kept:
        assert broker.end_offset(topic) == COUNT + 1
