"""A disk that fills up: the broker refuses what does not fit with a retriable error, and everything else continues.

Needs to mount a small file system; where that is not allowed the tests fail and say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.fetch import FetchResponse
from tests.support.brokers.broker_process import BrokerFailedError
from tests.support.brokers.small_disk import SmallDisk
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, small_batch
from tests.support.clients.raw_client import RawClient
from tests.support.history import Load, Sender, check_sender, read_everything

TOPIC = "filling"
_BATCH = bytes(build_batch([NewRecord(b"x" * 50_000, timestamp=1)]))
_MEGABYTES = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", _MEGABYTES) as small:
        yield small


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[WatchedBroker]:
    # stderr is not on the small disk, which it must not fill.
    process = WatchedBroker(disk.path / "data", config={"log.segment.bytes": str(4 << 20)})
    process._error_path = tmp_path / "stderr"
    process.start()
    yield process
    disk.free()
    if process.is_running:
        process.stop()


def fill_by_producing(broker: WatchedBroker) -> int:
    """Produce until the broker refuses; return the number of accepted batches."""
    for number in range(10_000):
        result = broker.produce(TOPIC, _BATCH)
        if result.error_code:
            assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "free space" in (result.error_message or "")
            return number
    raise AssertionError("the disk did not fill up")


def read_one(broker: WatchedBroker, offset: int) -> int:
    """Fetch from an offset; the error code."""
    with RawClient(broker.port) as client:
        (data,) = client.ask(fetch_request(TOPIC, offset), 11, FetchResponse).responses[0].partitions
    if data.error_code == 0:
        assert data.records
    return data.error_code


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def check_went_on(broker: WatchedBroker) -> None:
    output = broker.all_error_output()
    assert "Traceback" not in output, output[-4000:]
    assert "is offline" not in output, output[-4000:]


def test_a_full_disk_refuses_what_does_not_fit_and_serves_the_rest(broker: WatchedBroker, disk: SmallDisk) -> None:
    broker.create_topic(TOPIC)
    disk.fill(leave_bytes=6 << 20)
    count = fill_by_producing(broker)
    assert count > 50
    for offset in (0, count // 2, count - 1):
        assert read_one(broker, offset) == 0
    # Background syncs and checkpoints must not take the directory offline either.
    started = time.monotonic()
    while time.monotonic() - started < 2.5:
        assert broker.produce(TOPIC, _BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert read_one(broker, 0) == 0
    assert broker.end_offset(TOPIC) == count
    disk.free()
    assert broker.produce(TOPIC, _BATCH).base_offset == count
    assert read_one(broker, count) == 0
    check_went_on(broker)


def test_a_producer_that_retries_gets_through_once_space_is_freed(broker: WatchedBroker, disk: SmallDisk) -> None:
    load = Load("filler", TOPIC, {"enable_idempotence": True}, is_idempotent=True, partitions=2, value_bytes=2000)
    broker.create_topic(TOPIC, partitions=2)
    disk.fill(leave_bytes=6 << 20)
    sender = Sender(broker.bootstrap, load)
    sender.start()
    wait_until(lambda: disk.free_bytes() < 150_000 or sender.error is not None, "the disk did not fill up")
    assert sender.acknowledged > 0
    # No new records: a fast producer would fill the disk again before it ends.
    sender.send_no_more()
    disk.free()
    check_sender(load, sender.finish(), read_everything(broker.bootstrap, {TOPIC: 2}))
    check_went_on(broker)


def test_a_topic_that_does_not_fit_is_refused_and_fits_later(broker: WatchedBroker, disk: SmallDisk) -> None:
    broker.create_topic(TOPIC)
    count = 5
    for _ in range(count):
        assert broker.produce(TOPIC, small_batch()).error_code == 0
    disk.fill()
    wanted = CreateTopicsRequest(topics=[CreatableTopic(name="later", num_partitions=3, replication_factor=1)])
    with RawClient(broker.port) as client:
        (refused,) = client.ask(wanted, 4, CreateTopicsResponse).topics
        assert refused.error_code != 0
        assert read_one(broker, 0) == 0
        disk.free()
        (created,) = client.ask(wanted, 4, CreateTopicsResponse).topics
    assert created.error_code == 0
    assert broker.produce("later", small_batch()).error_code == 0
    assert broker.produce(TOPIC, small_batch()).base_offset == count
    check_went_on(broker)


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_broker_on_a_full_disk_can_be(way: str, broker: WatchedBroker, disk: SmallDisk) -> None:
    broker.create_topic(TOPIC)
    disk.fill(leave_bytes=6 << 20)
    count = fill_by_producing(broker)
    if way == "stopped":
        broker.stop()
    else:
        broker.kill()
    disk.free()
    broker.start()
    assert broker.end_offset(TOPIC) == count
    for offset in (0, count // 2, count - 1):
        assert read_one(broker, offset) == 0
    assert broker.produce(TOPIC, _BATCH).base_offset == count
    # Without room for checkpoints, the stop reports the directory as offline; the next start recovers.
    assert "Traceback" not in broker.all_error_output()


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_start_on_a_disk_that_is_still_full_says_so_and_harms_nothing(
    way: str, broker: WatchedBroker, disk: SmallDisk
) -> None:
    broker.create_topic(TOPIC)
    disk.fill(leave_bytes=6 << 20)
    count = fill_by_producing(broker)
    if way == "stopped":
        broker.stop()
    else:
        broker.kill()
    disk.fill()
    with pytest.raises(BrokerFailedError, match=r"ended with 1\n(.*\n)*Error: .*disk is full"):
        broker.start()
    disk.free()
    broker.start()
    assert broker.end_offset(TOPIC) == count
    for offset in (0, count // 2, count - 1):
        assert read_one(broker, offset) == 0
    assert broker.produce(TOPIC, _BATCH).base_offset == count
    assert "Traceback" not in broker.all_error_output()


def test_a_second_directory_that_is_full_costs_only_its_partitions_and_they_come_back_by_themselves(
    tmp_path: Path, disk: SmallDisk
) -> None:
    """Its partitions cannot be recovered while it is full; once there is room, no restart is necessary."""
    broker = WatchedBroker(tmp_path / "data", more_dirs=[disk.path / "data"])
    topics = [f"topic-{number}" for number in range(6)]
    with broker:
        for topic in topics:
            broker.create_topic(topic)
            assert broker.produce(topic, small_batch()).base_offset == 0
        broker.kill()
        in_second = [topic for topic in topics if (disk.path / "data" / f"{topic}-0").is_dir()]
        assert 0 < len(in_second) < len(topics)
        for topic in in_second:
            # What a crash leaves: part of a write, and untrustworthy indexes.
            with (disk.path / "data" / f"{topic}-0" / f"{0:020d}.log").open("ab") as log:
                log.write(b"torn")
            (disk.path / "data" / f"{topic}-0" / "leader-epoch-checkpoint").unlink()
        disk.fill()
        broker.start()
        for topic in topics:
            expected = ErrorCode.KAFKA_STORAGE_ERROR if topic in in_second else ErrorCode.NONE
            assert broker.produce(topic, small_batch()).error_code == expected
        disk.free()
        wait_until(lambda: broker.produce(in_second[0], small_batch()).error_code == 0, "it did not come back")
        for topic in in_second[1:]:
            wait_until(lambda topic=topic: broker.produce(topic, small_batch()).error_code == 0, "it did not come back")  # type: ignore[misc]
            assert broker.end_offset(topic) == 2
    check_went_on(broker)
