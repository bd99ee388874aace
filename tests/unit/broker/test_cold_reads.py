"""What is not in the page cache is read by a thread and checked on the way; what is bad is not served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.batch import iterate_batches
from tailrace.runtime.disk import FileRange
from tailrace.runtime.system.disk import SystemFile
from tailrace.storage import partition_log
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.unit.broker.brokers import TestedBroker, with_broker

VERSION = 12


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the page cache."""
    monkeypatch.setattr(SystemFile, "is_cached", lambda file, position, size: False)
    monkeypatch.setattr(partition_log, "_WARM_BYTES", -1)


async def fetch(broker: TestedBroker, offset: int) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, session_epoch=-1, topics=[FetchTopic(topic="t", partitions=[wanted])])
    return (await broker.ask(request, VERSION, FetchResponse)).responses[0].partitions[0]


def offsets(data: PartitionData) -> list[int]:
    assert data.records is not None
    assert not isinstance(data.records, FileRange)
    return [header.base_offset for _, header in iterate_batches(data.records)]


def flip_a_bit_in_the_middle(directory: Path) -> None:
    (path,) = directory.rglob("t-0/*.log")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_cold_records_are_served_like_any_others(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("t")
        for _ in range(3):
            assert (await broker.produce("t")).error_code == 0
        assert offsets(await fetch(broker, 0)) == [0, 1, 2]
        assert offsets(await fetch(broker, 2)) == [2]

    with_broker(tmp_path, test)


def test_a_cold_read_ends_before_a_batch_that_rotted_and_never_goes_beyond_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("t")
        for _ in range(3):
            assert (await broker.produce("t")).error_code == 0
        flip_a_bit_in_the_middle(tmp_path)
        for _ in range(2):
            assert offsets(await fetch(broker, 0)) == [0]
        for offset in (1, 2):
            data = await fetch(broker, offset)
            assert data.error_code == ErrorCode.CORRUPT_MESSAGE
            assert offsets(data) == []
        assert broker.broker.partitions.directories[0].failure is None

    with_broker(tmp_path, test)
