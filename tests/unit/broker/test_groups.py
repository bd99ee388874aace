"""The group APIs through the router: where the coordinator is, both protocols, offsets, and what is refused."""

from __future__ import annotations

from pathlib import Path

from tailrace.errors import ErrorCode
from tailrace.model import OFFSETS_TOPIC
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tailrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tailrace.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tailrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.broker.brokers import TestedBroker, with_broker

FEW = {"offsets_topic_num_partitions": "2", "group_initial_rebalance_delay_ms": "0"}


async def find(broker: TestedBroker, version: int, key: str = "g", key_type: int = 0) -> tuple[int, int]:
    """The error and the broker that coordinates."""
    request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
    response = await broker.ask(request, version, FindCoordinatorResponse)
    found = response.coordinators[0] if version >= 4 else response
    return found.error_code, found.node_id


def test_the_coordinator_is_found_in_every_version_and_the_offsets_topic_made_once(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for version in range(7):
            assert await find(broker, version) == (ErrorCode.NONE, broker.broker.config.get_int("node.id"))
        topic = broker.broker.metadata.image.topics[OFFSETS_TOPIC]
        assert len(topic.partitions) == 2
        assert topic.configs["cleanup.policy"] == "compact"
        assert (await find(broker, 6, ""))[0] == ErrorCode.INVALID_GROUP_ID
        assert (await find(broker, 6, "s", 9))[0] == ErrorCode.INVALID_REQUEST

    with_broker(tmp_path, test, **FEW)


def test_only_brokers_write_to_the_offsets_topic(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await find(broker, 6)
        assert (await broker.produce(OFFSETS_TOPIC)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        request = MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS_TOPIC)])
        response = await broker.ask(request, 12, MetadataResponse)
        assert response.topics[0].is_internal
        await broker.create("__mine")
        request = MetadataRequest(topics=[MetadataRequestTopic(name="__mine")])
        assert not (await broker.ask(request, 12, MetadataResponse)).topics[0].is_internal

    with_broker(tmp_path, test, **FEW)


async def join(broker: TestedBroker, version: int, group_id: str, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    return await broker.ask(request, version, JoinGroupResponse)


def test_a_member_of_each_version_lives_its_whole_life(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await find(broker, 6)
        for version in range(10):
            group_id = f"g{version}"
            joined = await join(broker, version, group_id)
            if version >= 4:
                assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
                joined = await join(broker, version, group_id, joined.member_id)
            assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
            member_id = joined.member_id
            assert joined.leader == member_id
            assert [member.member_id for member in joined.members] == [member_id]
            sync = SyncGroupRequest(
                group_id=group_id,
                generation_id=1,
                member_id=member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"plan")],
            )
            synced = await broker.ask(sync, min(version, 5), SyncGroupResponse)
            assert bytes(synced.assignment) == b"plan"
            beat = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=member_id)
            assert (await broker.ask(beat, min(version, 4), HeartbeatResponse)).error_code == ErrorCode.NONE
            described = await broker.ask(
                DescribeGroupsRequest(groups=[group_id], include_authorized_operations=True),
                min(version, 6),
                DescribeGroupsResponse,
            )
            (found,) = described.groups
            assert (found.group_state, found.protocol_data) == ("Stable", "range")
            assert bytes(found.members[0].member_assignment) == b"plan"
            if version >= 3:
                assert found.authorized_operations == 0b110101001000
            leave = LeaveGroupRequest(group_id=group_id, member_id=member_id)
            left = await broker.ask(leave, min(version, 2), LeaveGroupResponse)
            assert left.error_code == ErrorCode.NONE
        listed = await broker.ask(ListGroupsRequest(states_filter=["empty"]), 5, ListGroupsResponse)
        assert sorted(group.group_id for group in listed.groups) == [f"g{version}" for version in range(10)]

    with_broker(tmp_path, test, **FEW)


async def commit(
    broker: TestedBroker, version: int, topic: str = "orders", partition: int = 0, generation: int = -1
) -> int:
    known = broker.broker.metadata.image.topics.get(topic)
    item = OffsetCommitRequestTopic(
        name=topic,
        partitions=[
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=version, committed_leader_epoch=3, committed_metadata="m"
            )
        ],
    )
    if known is not None:
        item.topic_id = known.topic_id
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=generation, topics=[item])
    response = await broker.ask(request, version, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


def test_a_commit_for_a_group_that_is_not_there_is_refused_as_its_version_knows(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await find(broker, 6)
        await broker.create("orders", 1)
        for version in range(2, 11):
            wanted = ErrorCode.ILLEGAL_GENERATION if version < 9 else ErrorCode.GROUP_ID_NOT_FOUND
            assert await commit(broker, version, generation=3) == wanted
        errors = broker.broker.services.counters.requests[ApiKey.OFFSET_COMMIT].errors
        assert errors == {ErrorCode.ILLEGAL_GENERATION: 7, ErrorCode.GROUP_ID_NOT_FOUND: 2}

    with_broker(tmp_path, test, **FEW)


def test_offsets_are_committed_and_fetched_in_every_version(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        assert await commit(broker, 9) == ErrorCode.NOT_COORDINATOR
        await find(broker, 6)
        await broker.create("orders", 2)
        for version in range(2, 11):
            assert await commit(broker, version) == ErrorCode.NONE
            one = OffsetFetchRequest(
                group_id="g", topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])]
            )
            for fetch_version in range(1, 8):
                (topic,) = (await broker.ask(one, fetch_version, OffsetFetchResponse)).topics
                assert [item.committed_offset for item in topic.partitions] == [version, -1]
            for fetch_version in (8, 9, 10):
                wanted = OffsetFetchRequestTopics(
                    name="orders",
                    topic_id=broker.broker.metadata.image.topics["orders"].topic_id,
                    partition_indexes=[0],
                )
                for topics in ([wanted], None):
                    many = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
                    (group,) = (await broker.ask(many, fetch_version, OffsetFetchResponse)).groups
                    (found,) = group.topics[0].partitions
                    assert (found.committed_offset, found.metadata) == (version, "m")
        assert await commit(broker, 9, "unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(broker, 10, "unknown") == ErrorCode.UNKNOWN_TOPIC_ID
        assert await commit(broker, 9, "orders", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test, **FEW)


def test_a_deleted_topic_takes_its_offsets_along(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await find(broker, 6)
        await broker.create("orders")
        assert await commit(broker, 9) == ErrorCode.NONE
        metadata = broker.broker.metadata
        await metadata.delete_topic(metadata.image.topics["orders"])
        many = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await broker.ask(many, 9, OffsetFetchResponse)).groups
        assert group.topics == []

    with_broker(tmp_path, test, **FEW)


def test_what_no_member_may_say_is_refused_in_kafkas_words(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await find(broker, 6)
        joining = {"rebalance_timeout_ms": 1000, "topic_partitions": [], "subscribed_topic_names": ["orders"]}
        cases = [
            ({"group_id": ""}, "GroupId can't be empty."),
            ({"member_id": ""}, "MemberId can't be empty."),
            ({"instance_id": ""}, "InstanceId can't be empty."),
            ({"rack_id": ""}, "RackId can't be empty."),
            ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
            ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
            (
                {"subscribed_topic_names": None},
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            ),
            ({"member_epoch": -2}, "InstanceId can't be null."),
            ({"member_epoch": -3}, "MemberEpoch is invalid."),
        ]
        for fields, message in cases:
            request = ConsumerGroupHeartbeatRequest(**{"group_id": "c", "member_id": "m", **joining, **fields})
            response = await broker.ask(request, 1, ConsumerGroupHeartbeatResponse)
            assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)
        given = await broker.ask(
            ConsumerGroupHeartbeatRequest(**{"group_id": "c", "member_id": "", **joining}),
            0,
            ConsumerGroupHeartbeatResponse,
        )
        assert given.error_code == ErrorCode.NONE
        assert given.member_id
        assert given.member_epoch == 1

    with_broker(tmp_path, test, **FEW)


def test_a_client_that_asks_for_its_operations_gets_all_of_them(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for asks in (True, False, True):
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name="orders")],
                include_cluster_authorized_operations=asks,
                include_topic_authorized_operations=asks,
            )
            response = await broker.ask(request, 10, MetadataResponse)
            omitted = -(2**31)
            assert response.topics[0].topic_authorized_operations == (0xDF8 if asks else omitted)
            assert response.cluster_authorized_operations == (0x1FA0 if asks else omitted)
            cluster = await broker.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=asks), 1, DescribeClusterResponse
            )
            assert cluster.cluster_authorized_operations == (0x1FA0 if asks else omitted)

    with_broker(tmp_path, test)
