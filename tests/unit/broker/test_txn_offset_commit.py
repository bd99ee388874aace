"""TxnOffsetCommit through the router: every version, what is refused, and what other clients see meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.broker.handlers import txn_offset_commit
from tailrace.coordinator.shards import partition_for
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tailrace.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.wire.messages.offset_commit import OffsetCommitResponse
from tailrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tailrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.support.authorizers import Listed
from tests.unit.broker.brokers import TestedBroker, with_broker
from tests.unit.broker.test_authorization import ANYBODY
from tests.unit.broker.test_repeated_requests import GROUP, ORDERS, Member, frame_of, is_known

FEW = {"offsets_topic_num_partitions": "2", "group_initial_rebalance_delay_ms": "0"}
VERSIONS = range(6)
MEMBERS_SINCE = 3
#: The first id that a new cluster gives out.
PRODUCER = 0
COMMITTED = [(ORDERS.topic, [ORDERS.partition])]


def offsets_of(*topics: tuple[str, list[int]], offset: int = 5) -> list[TxnOffsetCommitRequestTopic]:
    return [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata="m")
                for number in numbers
            ],
        )
        for name, numbers in topics
    ]


def request_of(
    *topics: tuple[str, list[int]], offset: int = 5, group_id: str = GROUP, member_id: str = "", generation: int = -1
) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=PRODUCER,
        producer_epoch=0,
        generation_id=generation,
        member_id=member_id,
        topics=offsets_of(*(topics or COMMITTED), offset=offset),
    )


async def send(broker: TestedBroker, version: int, request: TxnOffsetCommitRequest | None = None) -> list[int]:
    """The errors of all partitions, in the order of the request."""
    request = request or request_of()
    response = await broker.ask(request, version, TxnOffsetCommitResponse)
    assert [
        (topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics
    ] == [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in request.topics]
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def end(broker: TestedBroker, *, is_commit: bool = True) -> None:
    """End the producer's transaction; with one replica it takes effect at once."""
    assert broker.broker.services.groups.shard(GROUP).end_transaction(PRODUCER, 0, is_commit, 0) is None


async def fetch(broker: TestedBroker, *, require_stable: bool = False, by_name: bool = True) -> list[tuple[int, int]]:
    """The error and the offset of each partition in the answer."""
    topics = [OffsetFetchRequestTopics(name=ORDERS.topic, partition_indexes=[ORDERS.partition])] if by_name else None
    asked = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    request = OffsetFetchRequest(groups=[asked], require_stable=require_stable)
    (group,) = (await broker.ask(request, 9, OffsetFetchResponse)).groups
    assert group.error_code == ErrorCode.NONE
    return [(each.error_code, each.committed_offset) for topic in group.topics for each in topic.partitions]


async def prepare(broker: TestedBroker) -> None:
    """Begin a transaction with the group's offsets; for its coordinator it is open to the end of the test."""
    await broker.create(ORDERS.topic, 2)
    for key_type, key in ((0, GROUP), (1, "t")):
        wanted = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        (found,) = (await broker.ask(wanted, 4, FindCoordinatorResponse)).coordinators
        assert found.error_code == ErrorCode.NONE
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=600_000)
    producer = await broker.ask(request, 5, InitProducerIdResponse)
    assert (producer.error_code, producer.producer_id, producer.producer_epoch) == (ErrorCode.NONE, PRODUCER, 0)
    adding = AddOffsetsToTxnRequest(transactional_id="t", producer_id=PRODUCER, producer_epoch=0, group_id=GROUP)
    assert (await broker.ask(adding, 3, AddOffsetsToTxnResponse)).error_code == ErrorCode.NONE


UNSTABLE = [(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)]


def test_every_version_commits_offsets_that_take_effect_with_the_transaction(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        before = -1
        for version in VERSIONS:
            assert await send(broker, version, request_of(offset=10 + version)) == [ErrorCode.NONE]
            assert await fetch(broker) == [(ErrorCode.NONE, before)]
            assert await fetch(broker, require_stable=True) == UNSTABLE
            end(broker)
            before = 10 + version
            assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, before)]
            assert await send(broker, version, request_of(offset=99)) == [ErrorCode.NONE]
            end(broker, is_commit=False)
            assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, before)]

    with_broker(tmp_path, test, **FEW)


def test_concurrent_commits_of_one_transaction_are_all_accepted(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        for version in VERSIONS:
            # None of them finds the transaction open in the log, and each but the last opens it before the next one.
            requests = [request_of(offset=version + 1), request_of((ORDERS.topic, [1])), request_of(offset=version + 1)]
            results = await asyncio.gather(*(send(broker, version, request) for request in requests))
            assert results == [[ErrorCode.NONE]] * 3
            end(broker)
            assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, version + 1)]

    with_broker(tmp_path, test, **FEW)


def test_unknown_partitions_are_refused_alone(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = request_of(("missing", [0]), (ORDERS.topic, [1, 2, -1, 0]), ("missing", [3]))
        for version in VERSIONS:
            errors = await send(broker, version, request)
            assert errors == [unknown, ErrorCode.NONE, unknown, unknown, ErrorCode.NONE, unknown]
            assert await send(broker, version, request_of(("missing", [0]))) == [unknown]
        end(broker)
        assert await fetch(broker, by_name=False) == [(ErrorCode.NONE, 5)] * 2
        counters = broker.broker.services.counters.requests[request.API_KEY]
        assert counters.errors[unknown] == 5 * len(VERSIONS)

    with_broker(tmp_path, test, **FEW)


def test_a_producer_is_fenced_with_the_member_whose_offsets_it_sends(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        member = Member(broker)
        await member.join()
        for version in range(MEMBERS_SINCE, 6):
            for member_id, generation, code in (
                (member.member_id, member.generation, ErrorCode.NONE),
                (member.member_id, member.generation - 1, ErrorCode.ILLEGAL_GENERATION),
                ("nobody", member.generation, ErrorCode.UNKNOWN_MEMBER_ID),
                ("", -1, ErrorCode.NONE),
            ):
                request = request_of(member_id=member_id, generation=generation)
                assert await send(broker, version, request) == [code]
        for version in range(MEMBERS_SINCE):
            assert await send(broker, version) == [ErrorCode.NONE]

    with_broker(tmp_path, test, **FEW)


def test_a_request_without_a_group_or_a_producer_is_refused(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        for version in VERSIONS:
            assert await send(broker, version, request_of(group_id="")) == [ErrorCode.INVALID_GROUP_ID]
            request = request_of()
            request.producer_id = -1
            assert await send(broker, version, request) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
            request = request_of()
            request.topics[0].partitions[0].committed_metadata = "x" * 5000
            assert await send(broker, version, request) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
            request.topics[0].partitions[0].committed_metadata = None
            assert await send(broker, version, request) == [ErrorCode.NONE]
            end(broker, is_commit=False)
        listed = await broker.ask(ListGroupsRequest(), 5, ListGroupsResponse)
        assert listed.groups == []

    with_broker(tmp_path, test, **FEW)


def test_old_producers_are_told_of_a_loading_coordinator_as_they_can_bear_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        for held in broker.broker.services.groups._shards._held.values():
            held.is_loaded = False
        for version in VERSIONS:
            loading = ErrorCode.COORDINATOR_NOT_AVAILABLE if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await send(broker, version) == [loading]
        for held in broker.broker.services.groups._shards._held.values():
            held.is_loaded = True

    with_broker(tmp_path, test, **FEW)


def test_only_what_a_client_may_do_is_committed(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        await broker.create("payments")
        transaction = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "t")
        group = (Operation.READ, ResourceType.GROUP, GROUP)
        topic = (Operation.READ, ResourceType.TOPIC, ORDERS.topic)
        request = request_of(("payments", [0]), (ORDERS.topic, [0]), ("missing", [0]))
        of_topic = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for rights, expected in (
            ([group, topic], [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 3),
            ([transaction, topic], [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 3),
            ([transaction, group], [of_topic] * 3),
            ([transaction, group, topic], [of_topic, ErrorCode.NONE, of_topic]),
        ):
            broker.use(authorizer=Listed({ANYBODY: rights}))
            for version in VERSIONS:
                assert await send(broker, version, request) == expected
        broker.use(authorizer=None)
        end(broker)
        assert await fetch(broker, by_name=False) == [(ErrorCode.NONE, 5)]

    with_broker(tmp_path, test, **FEW)


def test_what_is_refused_as_part_of_the_transaction_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def refuse(*arguments: object) -> None:
        asked.append("")
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)

    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        monkeypatch.setattr(txn_offset_commit, "_admit", refuse)
        request = request_of((ORDERS.topic, [0]), ("missing", [0]))
        assert await send(broker, 5, request) == [ErrorCode.INVALID_TXN_STATE] * 2
        assert len(asked) == 1
        assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, -1)]
        # Nobody asks the transaction coordinator for nothing.
        assert await send(broker, 5, request_of(("missing", [0]))) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert len(asked) == 1

    with_broker(tmp_path, test, **FEW)


def test_a_topic_that_is_deleted_while_the_producer_is_admitted_leaves_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        metadata = broker.broker.metadata

        async def delete(*arguments: object) -> None:
            await metadata.delete_topic(metadata.image.topics[ORDERS.topic])

        monkeypatch.setattr(txn_offset_commit, "_admit", delete)
        assert await send(broker, 5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await broker.create(ORDERS.topic, 2)
        end(broker)
        assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, -1)]

    with_broker(tmp_path, test, **FEW)


def test_tools_see_the_group_with_its_committed_offsets_alone(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        assert await send(broker, 5) == [ErrorCode.NONE]
        listed = await broker.ask(ListGroupsRequest(), 5, ListGroupsResponse)
        assert [(each.group_id, each.group_state) for each in listed.groups] == [(GROUP, "Empty")]
        described = await broker.ask(DescribeGroupsRequest(groups=[GROUP]), 6, DescribeGroupsResponse)
        assert [(each.error_code, each.group_state, each.members) for each in described.groups] == [(0, "Empty", [])]
        for require_stable in (True, False):
            assert await fetch(broker, require_stable=require_stable, by_name=False) == []
        end(broker)
        assert await fetch(broker, by_name=False) == [(ErrorCode.NONE, 5)]

    with_broker(tmp_path, test, **FEW)


@pytest.mark.parametrize("deletes_group", [True, False], ids=["group", "offset"])
def test_what_is_deleted_is_not_committed_later(tmp_path: Path, deletes_group: bool) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        assert await send(broker, 5) == [ErrorCode.NONE]
        if deletes_group:
            deleted = await broker.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2, DeleteGroupsResponse)
            assert [each.error_code for each in deleted.results] == [ErrorCode.NONE]
        else:
            wanted = OffsetDeleteRequestTopic(
                name=ORDERS.topic, partitions=[OffsetDeleteRequestPartition(partition_index=ORDERS.partition)]
            )
            request = OffsetDeleteRequest(group_id=GROUP, topics=[wanted])
            gone = await broker.ask(request, 0, OffsetDeleteResponse)
            assert (gone.error_code, gone.topics[0].partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, -1)]
        end(broker)
        assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, -1)]
        assert (await broker.ask(ListGroupsRequest(), 5, ListGroupsResponse)).groups == []

    with_broker(tmp_path, test, **FEW)


def test_a_commit_known_by_its_bytes_neither_ends_a_transaction_nor_loses_to_an_older_one(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        member = Member(broker)
        await member.join()
        await broker.ask(member.commit(20), 8, OffsetCommitResponse)
        sent = request_of(offset=30, member_id=member.member_id, generation=member.generation)
        assert await send(broker, 5, sent) == [ErrorCode.NONE]
        assert is_known(broker, frame_of(member.commit(22), 8))
        assert await fetch(broker) == [(ErrorCode.NONE, 22)]
        assert await fetch(broker, require_stable=True) == UNSTABLE
        end(broker)
        assert await fetch(broker, require_stable=True) == [(ErrorCode.NONE, 22)]

    with_broker(tmp_path, test, **FEW)


def test_a_producer_whose_transaction_lacks_the_group_is_refused_or_has_it_added(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await prepare(broker)
        # Of another partition of the offsets topic.
        other = next(name for name in map(str, range(100)) if partition_for(name, 2) != partition_for(GROUP, 2))
        for version in range(4):
            assert await send(broker, version, request_of(group_id=other)) == [ErrorCode.INVALID_TXN_STATE]
        assert await send(broker, 4, request_of(group_id=other)) == [ErrorCode.TRANSACTION_ABORTABLE]
        assert await send(broker, 5, request_of(group_id=other)) == [ErrorCode.NONE]
        assert await send(broker, 4, request_of(group_id=other)) == [ErrorCode.NONE]
        late = request_of()
        late.producer_epoch = 1
        assert await send(broker, 5, late) == [ErrorCode.INVALID_PRODUCER_EPOCH]

    with_broker(tmp_path, test, **FEW)
