"""What each API answers, and with which error code it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.errors import ErrorCode, WireError
from tailrace.records.batch import TRANSACTIONAL_BIT, iterate_batches
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.memory import MemoryStore
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tailrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tailrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.wire.messages.produce import ProduceResponse
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker

NOBODY = UUID(int=1234)


# --- Produce


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_says_where_the_records_went(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        for expected in (0, 3):
            answer = await broker.produce(records=3, partition=1, version=version)
            assert (answer.index, answer.error_code, answer.base_offset) == (1, ErrorCode.NONE, expected)

    with_broker(tmp_path, test)


def test_produce_names_topics_by_id_from_version_13(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        topic_id = broker.broker.metadata.image.topics["orders"].topic_id
        assert (await broker.produce("", version=13, topic_id=topic_id)).base_offset == 0
        assert (await broker.produce("", version=13, topic_id=NOBODY)).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    with_broker(tmp_path, test)


def test_produce_refuses_each_partition_on_its_own(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.create("small", max_message_bytes="100")
        now = SystemClock().wall_ms()
        sound = bytes(build_batch([NewRecord(b"value", timestamp=now)]))
        future = bytes(build_batch([NewRecord(b"value", timestamp=now + 7_200_000)]))
        zstd = bytes(build_batch([NewRecord(b"value", timestamp=now)], compression=Compression.ZSTD))
        gap = [
            bytes(build_batch([NewRecord(b"v", timestamp=now)], producer_id=9, producer_epoch=1, base_sequence=at))
            for at in (0, 5)
        ]
        old = bytes(build_batch([NewRecord(b"v", timestamp=now)], producer_id=9, producer_epoch=0, base_sequence=1))
        in_transaction = bytes(
            build_batch([NewRecord(b"v", timestamp=now)], producer_id=8, producer_epoch=0, attributes=TRANSACTIONAL_BIT)
        )
        cases = [
            ({"topic": "nobody"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
            ({"data": in_transaction}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ({"data": in_transaction, "transactional_id": ""}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ({"data": b""}, ErrorCode.INVALID_RECORD),
            ({"data": sound[:-1]}, ErrorCode.CORRUPT_MESSAGE),
            ({"data": sound[:-1] + b"!"}, ErrorCode.CORRUPT_MESSAGE),
            ({"data": sound + sound}, ErrorCode.INVALID_RECORD),
            ({"data": zstd, "version": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            ({"data": future}, ErrorCode.INVALID_TIMESTAMP),
            ({"topic": "small", "records": 20}, ErrorCode.MESSAGE_TOO_LARGE),
        ]
        for arguments, code in cases:
            answer = await broker.produce(**arguments)  # type: ignore[arg-type]
            assert (answer.error_code, answer.base_offset) == (code, -1), arguments
        # Its records are in no transaction, whatever the request says.
        assert (await broker.produce(data=gap[0], transactional_id="t")).error_code == ErrorCode.NONE
        assert (await broker.produce(data=gap[1])).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await broker.produce(data=old)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await broker.produce(data=gap[0])).base_offset == 0

    with_broker(tmp_path, test)


def test_what_was_sent_behind_a_batch_that_came_before_its_partition_waits_for_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        now = SystemClock().wall_ms()
        first, second, third = (
            bytes(
                build_batch(
                    [NewRecord(b"value", timestamp=now)], producer_id=7, producer_epoch=0, base_sequence=sequence
                )
            )
            for sequence in range(3)
        )
        assert (await broker.produce(data=first)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create("orders")
        assert (await broker.produce(data=second)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [(await broker.produce(data=data)).base_offset for data in (first, second, third)] == [0, 1, 2]

    with_broker(tmp_path, test)


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_duplicate_whose_offset_is_forgotten_is_told_from_one_that_is_out_of_order(tmp_path: Path, acks: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", flush_messages="1")
        now = SystemClock().wall_ms()
        batches = [
            bytes(build_batch([NewRecord(b"v", timestamp=now)], producer_id=7, producer_epoch=0, base_sequence=number))
            for number in range(9)
        ]
        answers = [await broker.produce(data=data, acks=acks) for data in (*batches[:8], batches[3], batches[2])]
        assert [answer.base_offset for answer in answers] == [0, 1, 2, 3, 4, 5, 6, 7, 3, -1]
        assert [answer.error_code for answer in answers[-2:]] == [0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
        assert (await broker.produce(data=batches[8], acks=acks)).base_offset == 8

    with_broker(tmp_path, test)


def test_batches_that_come_before_their_partitions_are_remembered_within_bounds(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        now = SystemClock().wall_ms()
        batch = [NewRecord(b"value", timestamp=now)]
        for number in range(150):
            for producer in range(30 if number == 149 else 1):
                data = bytes(build_batch(batch, producer_id=producer, producer_epoch=0, base_sequence=3))
                await broker.produce(f"topic-{number}", data=data)
        await broker.produce("plain", data=bytes(build_batch(batch)))
        missed = broker.broker.partitions._missed
        assert [len(missed), len(missed["topic-149", 0]), ("plain", 0) in missed] == [100, 20, False]

    with_broker(tmp_path, test)


def test_produce_without_acknowledgement_gets_no_answer_but_an_error_closes_the_connection(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        assert broker.answer(produce_request("orders", acks=0), 9) is None
        assert not broker.transport.is_closed
        assert broker.broker.partitions.find("orders", 0).high_watermark == 1
        assert broker.answer(produce_request("nobody", acks=0), 9) is None
        assert broker.transport.is_closed

    with_broker(tmp_path, test)


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_waits_for_the_flush_policy(tmp_path: Path, acks: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", flush_messages="1")
        waiting = broker.answer(produce_request("orders", acks=acks), 9)
        assert isinstance(waiting, asyncio.Future)
        assert broker.broker.partitions.find("orders", 0).high_watermark == 0
        assert (await broker.produce(acks=acks)).base_offset == 1
        await waiting
        assert broker.broker.partitions.find("orders", 0).log.flushed_offset == 2

    with_broker(tmp_path, test)


def test_a_producer_that_waits_when_the_topic_is_deleted_is_told(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", flush_messages="1")
        waiting = asyncio.ensure_future(broker.ask(produce_request("orders"), 9, ProduceResponse))
        await asyncio.sleep(0)
        await broker.broker.partitions._close_topics([broker.broker.metadata.image.topics["orders"]])
        answer = (await waiting).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", [0, 1, 2, 14])
def test_versions_that_are_not_served_close_the_connection(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        frame = bytearray((0).to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + bytes(20))
        with pytest.raises(WireError, match="not supported in version"):
            broker._router.answer(broker._connection, memoryview(frame))

    with_broker(tmp_path, test)


def test_an_api_that_is_not_served_closes_the_connection(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for key in (4, 9999, -1):
            frame = bytearray(key.to_bytes(2, "big", signed=True) + bytes(6) + b"\xff\xff" + bytes(20))
            with pytest.raises(WireError, match="is not supported"):
                broker._router.answer(broker._connection, memoryview(frame))

    with_broker(tmp_path, test)


# --- Fetch


async def fetch(
    broker: TestedBroker, offset: int = 0, *, topic: str = "orders", version: int = 12, **fields: int
) -> PartitionData:
    partition_fields = {
        name: fields.pop(name)
        for name in ("partition", "current_leader_epoch", "last_fetched_epoch", "partition_max_bytes")
        if name in fields
    }
    wanted = FetchPartition(fetch_offset=offset, **({"partition_max_bytes": 1 << 20} | partition_fields))
    request = FetchRequest(session_epoch=-1, topics=[FetchTopic(topic=topic, partitions=[wanted])], **fields)
    return (await broker.ask(request, version, FetchResponse)).responses[0].partitions[0]


def offsets(data: PartitionData) -> list[int]:
    records = bytes(data.records)  # type: ignore[arg-type]
    return [
        record.offset
        for position, header in iterate_batches(records)
        for record in iterate_records(records, header, position)
    ]


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_returns_what_was_produced(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for _ in range(3):
            await broker.produce(records=2)
        data = await fetch(broker, version=version)
        assert (data.error_code, data.high_watermark, data.last_stable_offset) == (ErrorCode.NONE, 6, 6)
        assert offsets(data) == [0, 1, 2, 3, 4, 5]
        assert offsets(await fetch(broker, 3, version=version)) == [2, 3, 4, 5]
        assert offsets(await fetch(broker, 6, version=version)) == []

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", range(13, 19))
def test_fetch_names_topics_by_id_from_version_13(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce()
        for topic_id, code in (
            (broker.broker.metadata.image.topics["orders"].topic_id, ErrorCode.NONE),
            (NOBODY, ErrorCode.UNKNOWN_TOPIC_ID),
        ):
            wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition_max_bytes=1000)])
            response = await broker.ask(FetchRequest(session_epoch=-1, topics=[wanted]), version, FetchResponse)
            assert response.responses[0].topic_id == topic_id
            assert response.responses[0].partitions[0].error_code == code

    with_broker(tmp_path, test)


def test_fetch_refuses_each_partition_on_its_own(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=2)
        cases: list[tuple[dict[str, int], ErrorCode]] = [
            ({"partition": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"offset": 3}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ({"last_fetched_epoch": 7}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ]
        for arguments, code in cases:
            data = await fetch(broker, **arguments)
            assert (data.error_code, data.high_watermark, offsets(data)) == (code, -1, []), arguments
        assert (await fetch(broker, topic="nobody")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)


def test_fetch_tells_a_reader_where_its_log_and_ours_part(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=2)
        broker.broker.partitions.find("orders", 0).leader_epoch = 3
        await broker.produce(records=2)
        data = await fetch(broker, 3, last_fetched_epoch=0)
        assert data.diverging_epoch is not None
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset, offsets(data)) == (0, 2, [])

    with_broker(tmp_path, test)


def test_fetch_fences_readers_of_an_older_epoch(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        broker.broker.partitions.find("orders", 0).leader_epoch = 5
        assert (await fetch(broker, current_leader_epoch=4)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    with_broker(tmp_path, test)


def test_fetch_returns_one_whole_batch_however_small_the_limits_are(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for _ in range(3):
            await broker.produce(records=100)
        for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
            assert offsets(await fetch(broker, **limits)) == list(range(100))

    with_broker(tmp_path, test)


def test_what_is_produced_before_a_fetch_begins_to_wait_ends_its_wait(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        topics = [FetchTopic(topic="orders", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])]
        waiting = broker.answer(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics), 12)
        assert isinstance(waiting, asyncio.Future)
        # Answered before the fetch has had its first turn.
        answer = broker.answer(produce_request("orders", 1), 9)
        assert isinstance(answer, list)
        await asyncio.wait_for(waiting, 10)

    with_broker(tmp_path, test)


def test_fetch_waits_for_data_until_it_comes_or_the_time_is_over(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        waiting = asyncio.ensure_future(fetch(broker, max_wait_ms=60_000, min_bytes=1))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await broker.produce()
        assert offsets(await waiting) == [0]
        assert offsets(await fetch(broker, 1, max_wait_ms=10, min_bytes=1)) == []

    with_broker(tmp_path, test)


def test_fetch_sees_nothing_that_is_not_yet_promised(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", flush_messages="1")
        produced = asyncio.ensure_future(broker.produce())
        await asyncio.sleep(0)
        data = await fetch(broker)
        assert (data.high_watermark, offsets(data)) == (0, [])
        await produced
        assert offsets(await fetch(broker)) == [0]

    with_broker(tmp_path, test)


def test_a_fetch_session_is_told_only_what_is_new(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        topics = [
            FetchTopic(
                topic="orders",
                partitions=[FetchPartition(partition=number, partition_max_bytes=1000) for number in (0, 1)],
            )
        ]
        first = await broker.ask(FetchRequest(session_epoch=0, topics=topics), 12, FetchResponse)
        assert len(first.responses[0].partitions) == 2
        await broker.produce(partition=1)
        again = FetchRequest(session_id=first.session_id, session_epoch=1)
        second = await broker.ask(again, 12, FetchResponse)
        assert [data.partition_index for data in second.responses[0].partitions] == [1]
        third = await broker.ask(again, 12, FetchResponse)
        assert third.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    with_broker(tmp_path, test)


# --- ListOffsets


async def list_offsets(
    broker: TestedBroker, timestamp: int, *, topic: str = "orders", version: int = 11, epoch: int = -1
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    return (await broker.ask(request, version, ListOffsetsResponse)).topics[0].partitions[0]


def test_offsets_are_found_by_time_and_by_name(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        now = SystemClock().wall_ms()
        for age in (30, 10, 20):
            await broker.produce(data=bytes(build_batch([NewRecord(b"v", timestamp=now - age)])))
        expected = {-1: 3, -2: 0, -3: 1, -4: 0, -5: -1, -6: -1, now - 30: 0, now - 29: 1, now - 10: 1, now: -1, 0: 0}
        for timestamp, offset in expected.items():
            answer = await list_offsets(broker, timestamp)
            assert (answer.error_code, answer.offset) == (ErrorCode.NONE, offset), timestamp
        assert (await list_offsets(broker, -3)).timestamp == now - 10
        assert (await list_offsets(broker, -1)).leader_epoch == 0

    with_broker(tmp_path, test)


def test_questions_that_a_version_does_not_have_are_refused(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for timestamp, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10)):
            answer = await list_offsets(broker, timestamp, version=version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        answer = await list_offsets(broker, -1, topic="nobody")
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await list_offsets(broker, -1, epoch=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    with_broker(tmp_path, test)


# --- Metadata


async def metadata(
    broker: TestedBroker, *names: str, version: int = 12, create: bool = False
) -> list[MetadataResponseTopic]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create
    )
    return (await broker.ask(request, version, MetadataResponse)).topics


def test_metadata_tells_of_all_topics_or_those_asked_for(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        await broker.create("payments")
        everything = await broker.ask(MetadataRequest(topics=None), 12, MetadataResponse)
        assert [topic.name for topic in everything.topics] == ["orders", "payments"]
        assert [(each.node_id, each.host) for each in everything.brokers] == [(everything.controller_id, "127.0.0.1")]
        assert everything.brokers[0].port > 0
        assert (await broker.ask(MetadataRequest(topics=[]), 12, MetadataResponse)).topics == []
        assert len((await broker.ask(MetadataRequest(topics=[]), 0, MetadataResponse)).topics) == 2
        (orders,) = await metadata(broker, "orders")
        assert [(each.partition_index, each.leader_id) for each in orders.partitions] == [
            (0, everything.controller_id),
            (1, everything.controller_id),
        ]

    with_broker(tmp_path, test)


def test_metadata_creates_topics_only_where_both_sides_want_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        (absent,) = await metadata(broker, "orders")
        assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (created,) = await metadata(broker, "orders", create=True)
        assert (created.error_code, len(created.partitions)) == (ErrorCode.NONE, 1)
        (older,) = await metadata(broker, "payments", version=3)
        assert older.error_code == ErrorCode.NONE
        (illegal,) = await metadata(broker, "no spaces", create=True)
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    with_broker(tmp_path, test)
    with_broker(tmp_path / "other", _refuses_creation, auto_create_topics_enable="false")


async def _refuses_creation(broker: TestedBroker) -> None:
    (refused,) = await metadata(broker, "orders", create=True)
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_many_who_ask_for_the_same_new_topic_at_once_all_get_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        answers = await asyncio.gather(*(metadata(broker, "orders", create=True) for _ in range(10)))
        assert {topic.error_code for (topic,) in answers} <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
        assert len({topic.topic_id for topic in broker.broker.metadata.image.topics.values()}) == 1

    with_broker(tmp_path, test)


@pytest.mark.parametrize("no_name", [None, ""])
def test_metadata_by_id(tmp_path: Path, no_name: str | None) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        topic_id = broker.broker.metadata.image.topics["orders"].topic_id
        for wanted, name, code in ((topic_id, "orders", ErrorCode.NONE), (NOBODY, None, ErrorCode.UNKNOWN_TOPIC_ID)):
            request = MetadataRequest(topics=[MetadataRequestTopic(name=no_name, topic_id=wanted)])
            (topic,) = (await broker.ask(request, 12, MetadataResponse)).topics
            assert (topic.name, topic.topic_id, topic.error_code) == (name, wanted, code)

    with_broker(tmp_path, test)


# --- CreateTopics and DeleteTopics


async def create(
    broker: TestedBroker, *topics: CreatableTopic, validate_only: bool = False, version: int = 7
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return (await broker.ask(request, version, CreateTopicsResponse)).topics


def topic(name: str, partitions: int = 1, factor: int = 1, **fields: object) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def assigned(broker_id: int) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=0, broker_ids=[broker_id])]


def test_topics_are_created_each_on_its_own(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        own = broker.broker.services.broker_id
        bad_config = [CreatableTopicConfig(name="no.such.key", value="1")]
        bad_value = [CreatableTopicConfig(name="retention.ms", value="soon")]
        cases = [
            (topic("orders", 3), ErrorCode.NONE),
            (topic("defaults", -1, -1), ErrorCode.NONE),
            (topic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (topic("none", 0), ErrorCode.INVALID_PARTITIONS),
            (topic("many", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
            (topic("config", configs=bad_config), ErrorCode.INVALID_CONFIG),
            (topic("value", configs=bad_value), ErrorCode.INVALID_CONFIG),
            (
                topic("both", assignments=assigned(own)),
                ErrorCode.INVALID_REQUEST,
            ),
            (
                topic("other", -1, -1, assignments=assigned(own + 1)),
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ),
            (
                topic("mine", -1, -1, assignments=assigned(own)),
                ErrorCode.NONE,
            ),
        ]
        for wanted, code in cases:
            (result,) = await create(broker, wanted)
            assert (result.name, result.error_code) == (wanted.name, code), result.error_message
        assert list(broker.broker.metadata.image.topics) == ["orders", "defaults", "mine"]
        assert broker.broker.partitions.find("orders", 2).high_watermark == 0

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_defaults_are_filled_in_whatever_the_version(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        (result,) = await create(broker, topic("defaults", -1, -1), version=version)
        assert result.error_code == ErrorCode.NONE
        (partition,) = broker.broker.metadata.image.topics["defaults"].partitions
        assert partition.replicas == (broker.broker.services.broker_id,)

    with_broker(tmp_path, test)


def test_validation_creates_nothing_and_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        (result,) = await create(broker, topic("orders"), validate_only=True)
        assert result.error_code == ErrorCode.NONE
        results = await create(broker, topic("twice"), topic("once"), topic("twice"))
        assert [(each.name, each.error_code) for each in results] == [
            ("twice", ErrorCode.INVALID_REQUEST),
            ("once", ErrorCode.NONE),
        ]
        assert list(broker.broker.metadata.image.topics) == ["once"]

    with_broker(tmp_path, test)


async def delete(broker: TestedBroker, version: int, **state: object) -> DeletableTopicResult:
    states = [DeleteTopicState(**state)]
    request = DeleteTopicsRequest(topics=states, topic_names=[str(state.get("name"))])
    return (await broker.ask(request, version, DeleteTopicsResponse)).responses[0]


def test_topics_are_deleted_by_name_or_id_with_their_files(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for version in (1, 5, 6):
            await broker.create("orders")
            await broker.produce()
            assert (await delete(broker, version, name="orders")).error_code == ErrorCode.NONE
            assert (await broker.produce()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create("orders")
        topic_id = broker.broker.metadata.image.topics["orders"].topic_id
        assert (await delete(broker, 6, name="orders", topic_id=topic_id)).error_code == ErrorCode.INVALID_REQUEST
        assert (await delete(broker, 6, topic_id=topic_id)).name == "orders"
        assert (await delete(broker, 6, topic_id=topic_id)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await delete(broker, 6, name="orders")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not (tmp_path / "data" / "orders-0").exists()

    async def nothing_more(broker: TestedBroker) -> None:
        assert broker.broker.metadata.image.topics == {}

    # What a stop kept from being removed in the background is removed by the next start.
    store = MemoryStore()
    for each in (test, nothing_more):
        with_broker(tmp_path, each, store=store)
    assert [path.name for path in (tmp_path / "data").iterdir() if path.name.startswith("orders-0")] == []


def test_deletion_may_be_switched_off(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        assert (await delete(broker, 6, name="orders")).error_code == ErrorCode.TOPIC_DELETION_DISABLED

    with_broker(tmp_path, test, delete_topic_enable="false")


# --- DeleteRecords


async def delete_records(broker: TestedBroker, offset: int, *, topic: str = "orders") -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    response = await broker.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2, DeleteRecordsResponse)
    return response.topics[0].partitions[0]


def test_records_are_given_up_below_an_offset_durably(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=5)
        for offset, low in ((2, 2), (1, 2), (-1, 5)):
            result = await delete_records(broker, offset)
            assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, low)
            checkpoint = tmp_path / "data" / "log-start-offset-checkpoint"
            assert checkpoint.read_text() == f"0\n1\norders 0 {low}\n"
        assert (await delete_records(broker, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete_records(broker, -2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        nobody = await delete_records(broker, 0, topic="nobody")
        assert nobody.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await fetch(broker, 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    with_broker(tmp_path, test)


def test_many_who_give_up_records_at_once_do_no_harm(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=50)
        results = await asyncio.gather(*(delete_records(broker, offset) for offset in range(1, 50)))
        assert {result.error_code for result in results} == {ErrorCode.NONE}
        assert (await broker.produce()).error_code == ErrorCode.NONE

    with_broker(tmp_path, test)


# --- the others


def test_api_versions_tells_what_is_served(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        named = ApiVersionsRequest(client_software_name="a-test", client_software_version="1.0")
        for version in range(5):
            response = await broker.ask(named, version, ApiVersionsResponse)
            assert response.error_code == ErrorCode.NONE
            assert {0, 1, 2, 3, 18} <= {each.api_key for each in response.api_keys}
        unnamed = await broker.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        assert unnamed.error_code == ErrorCode.INVALID_REQUEST
        frame = bytearray((18).to_bytes(2, "big") + (99).to_bytes(2, "big") + bytes(4) + b"\xff\xff" + bytes(20))
        parts = broker._router.answer(broker._connection, memoryview(frame))
        assert isinstance(parts, list)
        data = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
        newer = ApiVersionsResponse.decode(0, memoryview(data)[8:])
        assert newer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert newer.api_keys

    with_broker(tmp_path, test)


def test_every_idempotent_producer_gets_an_id_of_its_own(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        answers = await asyncio.gather(
            *(broker.ask(InitProducerIdRequest(transactional_id=None), 4, InitProducerIdResponse) for _ in range(30))
        )
        assert len({answer.producer_id for answer in answers}) == 30
        assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
        transactional = InitProducerIdRequest(transactional_id="t")
        refused = await broker.ask(transactional, 4, InitProducerIdResponse)
        assert refused.error_code != ErrorCode.NONE

    with_broker(tmp_path, test)


async def epoch_end(broker: TestedBroker, epoch: int, *, current: int = -1, topic: str = "orders") -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
    return (await broker.ask(request, 4, OffsetForLeaderEpochResponse)).topics[0].partitions[0]


def test_where_an_epoch_ended(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=3)
        broker.broker.partitions.find("orders", 0).leader_epoch = 2
        await broker.produce(records=4)
        expected = {0: (0, 3), 1: (0, 3), 2: (2, 7), 3: (-1, -1)}
        for epoch, end in expected.items():
            answer = await epoch_end(broker, epoch)
            assert (answer.error_code, (answer.leader_epoch, answer.end_offset)) == (ErrorCode.NONE, end)
        assert (await epoch_end(broker, 0, current=1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await epoch_end(broker, 0, current=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        nobody = await epoch_end(broker, 0, topic="nobody")
        assert nobody.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)


async def describe(broker: TestedBroker, kind: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    return (await broker.ask(request, 4, DescribeConfigsResponse)).results[0]


def test_configurations_are_described_with_their_sources(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", retention_ms="77")
        (entry,) = (await describe(broker, 2, "orders", ["retention.ms"])).configs
        assert (entry.name, entry.value, entry.config_source) == ("retention.ms", "77", 1)
        assert [synonym.name for synonym in entry.synonyms] == ["retention.ms", "log.retention.hours"]
        assert len((await describe(broker, 2, "orders")).configs) > 10
        assert (await describe(broker, 2, "orders", [])).configs == []
        (own,) = (await describe(broker, 4, str(broker.broker.services.broker_id), ["node.id"])).configs
        assert own.read_only
        assert (await describe(broker, 4, "")).configs == []
        for kind, name, code in (
            (2, "nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (4, "99", ErrorCode.INVALID_REQUEST),
            (16, "1", ErrorCode.INVALID_REQUEST),
        ):
            assert (await describe(broker, kind, name)).error_code == code

    with_broker(tmp_path, test)


def test_the_cluster_is_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        response = await broker.ask(DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert [each.broker_id for each in response.brokers] == [response.controller_id]
        controllers = await broker.ask(DescribeClusterRequest(endpoint_type=2), 1, DescribeClusterResponse)
        assert controllers.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE

    with_broker(tmp_path, test)


def test_an_answer_that_cannot_be_encoded_costs_its_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: TestedBroker) -> None:
        resource = DescribeConfigsResource(resource_type=4, resource_name="x" * 32_767, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        # The message that there is no such broker is cut, or it would be longer than a classic string can be.
        (refused,) = (await broker.ask(request, 1, DescribeConfigsResponse)).results
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert 900 < len(refused.error_message or "") < 1_100
        monkeypatch.setattr("tailrace.errors._MOST_CHARACTERS", 1 << 20)
        with pytest.raises(WireError):
            broker.answer(request, 1)
        assert (await describe(broker, 2, "nobody")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)
