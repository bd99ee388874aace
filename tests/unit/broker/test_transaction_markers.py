"""Markers that end transactions, and what readers of committed records are told, through a whole broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tailrace.broker.transaction_markers import write_markers
from tailrace.errors import ErrorCode
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.records.batch import TRANSACTIONAL_BIT, iterate_batches
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.runtime.system.clock import SystemClock
from tailrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.unit.broker.brokers import TestedBroker, with_broker

ORDERS = TopicPartition("orders", 0)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST = -1


def write(broker: TestedBroker, producer_id: int, sequence: int = -1, *, epoch: int = 0, size: int = 5) -> int:
    """Append a record in a transaction to the log, as no client can do yet."""
    data = build_batch(
        [NewRecord(b"x" * size, timestamp=SystemClock().wall_ms())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    partition = broker.broker.services.partitions.find(*ORDERS)
    return partition.append_own(memoryview(data), ACKS_ALL).base_offset


async def end(broker: TestedBroker, producer_id: int, *, commit: bool, epoch: int = 0) -> ErrorCode:
    marker = Marker(producer_id, epoch, commit, 0)
    return (await write_markers(broker.broker.services, marker, [ORDERS]))[ORDERS]


async def ask_to_end(
    broker: TestedBroker,
    producer_id: int,
    *,
    commit: bool = False,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 1,
    of_transactions: int = 0,
    topics: dict[str, list[int]] | None = None,
) -> list[int]:
    wanted = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        coordinator_epoch=coordinator_epoch,
        transaction_version=of_transactions,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
            for name, numbers in (topics or {"orders": [0]}).items()
        ],
    )
    response = await broker.ask(WriteTxnMarkersRequest(markers=[wanted]), version, WriteTxnMarkersResponse)
    (result,) = response.markers
    assert result.producer_id == producer_id
    return [partition.error_code for topic in result.topics for partition in topic.partitions]


async def fetch(
    broker: TestedBroker, offset: int = 0, isolation: int = READ_COMMITTED, *, min_bytes: int = 1, max_wait_ms: int = 0
) -> PartitionData:
    request = FetchRequest(
        isolation_level=isolation,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[
            FetchTopic(topic="orders", partitions=[FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)])
        ],
    )
    response = await broker.ask(request, 12, FetchResponse)
    return response.responses[0].partitions[0]


def offsets_in(data: PartitionData) -> list[int]:
    records = data.records
    assert isinstance(records, bytes | bytearray | memoryview)
    return [header.base_offset for _, header in iterate_batches(records)]


async def latest(broker: TestedBroker, isolation: int, timestamp: int = LATEST) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(timestamp=timestamp)])],
    )
    response = await broker.ask(request, 7, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def test_only_who_reads_committed_records_is_told_what_is_aborted_and_stops_at_what_is_open(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        write(broker, 7, 0)
        write(broker, 8, 0)
        await broker.produce()
        assert await end(broker, 7, commit=False) is ErrorCode.NONE
        write(broker, 9, 0)
        assert await end(broker, 8, commit=True) is ErrorCode.NONE
        committed, everything = await fetch(broker), await fetch(broker, isolation=READ_UNCOMMITTED)
        assert (committed.high_watermark, committed.last_stable_offset) == (6, 4)
        assert (everything.high_watermark, everything.last_stable_offset) == (6, 4)
        assert offsets_in(committed) == [0, 1, 2, 3]
        assert offsets_in(everything) == [0, 1, 2, 3, 4, 5]
        assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions or ()] == [(7, 0)]
        assert everything.aborted_transactions is None
        later = await fetch(broker, 4)
        assert (later.aborted_transactions, later.records) == ([], b"")
        assert (await latest(broker, READ_COMMITTED), await latest(broker, READ_UNCOMMITTED)) == (4, 6)
        now = SystemClock().wall_ms() - 60_000
        assert await latest(broker, READ_COMMITTED, timestamp=now) == 0
        assert await end(broker, 9, commit=True) is ErrorCode.NONE
        assert await latest(broker, READ_COMMITTED) == 7

    with_broker(tmp_path, test)


def test_a_search_by_time_sees_no_records_of_open_transactions(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        write(broker, 7, 0)
        assert await latest(broker, READ_COMMITTED, timestamp=0) == -1
        assert await latest(broker, READ_UNCOMMITTED, timestamp=0) == 0
        assert await latest(broker, READ_COMMITTED) == 0

    with_broker(tmp_path, test)


def test_the_wait_of_who_reads_committed_records_ends_with_the_transaction(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        write(broker, 7, 0, size=1000)
        waiting = asyncio.ensure_future(fetch(broker, min_bytes=500, max_wait_ms=20_000))
        await asyncio.sleep(0)
        write(broker, 7, 1, size=1000)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done(), "the high watermark moved, but not what is stable"
        assert await end(broker, 7, commit=True) is ErrorCode.NONE
        async with asyncio.timeout(5):
            assert offsets_in(await waiting) == [0, 1, 2]
        waiting = asyncio.ensure_future(fetch(broker, 3, max_wait_ms=20_000))
        await asyncio.sleep(0)
        await broker.produce()
        async with asyncio.timeout(5):
            assert offsets_in(await waiting) == [3]

    with_broker(tmp_path, test)


def test_a_client_may_abort_and_not_commit(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        write(broker, 7, 0, epoch=3)
        assert await ask_to_end(broker, 7, commit=True, epoch=3) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert await ask_to_end(broker, 7, epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        of_version_2 = await ask_to_end(broker, 7, epoch=3, version=2, of_transactions=2)
        assert of_version_2 == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert (await fetch(broker)).last_stable_offset == 0
        assert await ask_to_end(broker, 7, epoch=3, coordinator_epoch=5, topics={"orders": [0, 1, 2], "x": [0]}) == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert (await fetch(broker)).last_stable_offset == 2
        fenced = await ask_to_end(broker, 7, epoch=3, coordinator_epoch=4)
        assert fenced == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        assert await ask_to_end(broker, 7, epoch=3, coordinator_epoch=5, version=2) == [ErrorCode.NONE]

    with_broker(tmp_path, test)


def test_open_transactions_are_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce()
        write(broker, 7, 0, epoch=3)
        write(broker, 7, 1, epoch=3)
        assert await ask_to_end(broker, 8, epoch=1, coordinator_epoch=5) == [ErrorCode.NONE]
        request = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0])])
        response = await broker.ask(request, 0, DescribeProducersResponse)
        described = response.topics[0].partitions[0].active_producers
        assert described == [
            ProducerState(
                producer_id=7,
                producer_epoch=3,
                last_sequence=1,
                last_timestamp=described[0].last_timestamp,
                coordinator_epoch=-1,
                current_txn_start_offset=1,
            ),
            ProducerState(
                producer_id=8, producer_epoch=1, last_timestamp=described[1].last_timestamp, coordinator_epoch=5
            ),
        ]

    with_broker(tmp_path, test)


def test_markers_of_the_offsets_topic_go_through_its_shard(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        assert await ask_to_end(broker, 7, topics={OFFSETS_TOPIC: [0]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        found = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        await broker.ask(found, 4, FindCoordinatorResponse)
        assert await ask_to_end(broker, 7, epoch=2, topics={OFFSETS_TOPIC: [0]}) == [ErrorCode.NONE]
        log = broker.broker.services.partitions.find(OFFSETS_TOPIC, 0).log
        assert dict(log.producers.entries())[7].epoch == 2
        stale = await ask_to_end(broker, 7, epoch=1, topics={OFFSETS_TOPIC: [0]})
        assert stale == [ErrorCode.INVALID_PRODUCER_EPOCH]

    with_broker(tmp_path, test, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")
