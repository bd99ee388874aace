"""What every API answers on a broker of a cluster: leaders, brokers to ask, refusals."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from uuid import UUID

import pytest

from tailrace.broker.partition_view import ListenerView
from tailrace.broker.producer_ids import ProducerIds
from tailrace.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage, PartitionState, TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import OFFSETS_TOPIC
from tailrace.runtime.tasks import Tasks
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tailrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tailrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.unit.broker.clusters import Cluster, simulate, values

ALL = (1, 2, 3)


async def metadata(cluster: Cluster, broker_id: int, *names: str, version: int = 12) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await cluster.ask(broker_id, MetadataRequest(topics=topics), version, MetadataResponse)


async def partitions(
    cluster: Cluster, broker_id: int, name: str = "orders", version: int = 12
) -> list[MetadataResponsePartition]:
    return (await metadata(cluster, broker_id, name, version=version)).topics[0].partitions


# --- who leads


def test_every_broker_tells_the_same_of_brokers_leaders_and_replicas() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2], [2, 3], [3, 1]])
        for broker_id in ALL:
            response = await metadata(cluster, broker_id, "orders")
            assert sorted((one.node_id, one.host) for one in response.brokers) == [
                (one, f"broker-{one}") for one in ALL
            ]
            assert response.controller_id in ALL
            told = [(one.leader_id, one.replica_nodes, one.isr_nodes) for one in response.topics[0].partitions]
            assert told == [(1, [1, 2], [1, 2]), (2, [2, 3], [2, 3]), (3, [3, 1], [3, 1])]
            described = await cluster.ask(broker_id, DescribeClusterRequest(), 1, DescribeClusterResponse)
            assert described.controller_id == response.controller_id
            assert sorted(one.broker_id for one in described.brokers) == [1, 2, 3]

    simulate(test)


def test_a_broker_that_is_cut_off_from_the_store_says_so_and_tells_what_it_knew() -> None:
    async def test(cluster: Cluster) -> None:
        described = await cluster.ask(2, DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert described.error_message is None
        cluster.brokers[2].partitions.holds_lease = lambda: False
        described = await cluster.ask(2, DescribeClusterRequest(), 1, DescribeClusterResponse)
        assert described.error_code == ErrorCode.NONE
        assert (described.error_message or "").startswith("Broker 2 cannot reach the metadata store")
        assert sorted(one.broker_id for one in described.brokers) == [1, 2, 3]

    simulate(test)


@pytest.mark.parametrize(
    ("version", "error", "replicas", "offline"),
    [
        (0, ErrorCode.REPLICA_NOT_AVAILABLE, [2], []),
        (4, ErrorCode.NONE, [2, 1], []),
        (12, ErrorCode.NONE, [2, 1], [1]),
    ],
)
def test_replicas_of_a_broker_that_is_gone_are_offline(
    version: int, error: ErrorCode, replicas: list[int], offline: list[int]
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[2, 1]])
        await cluster.stop(1)
        await cluster.until(lambda: 1 not in cluster.brokers[2].metadata.image.brokers)
        (told,) = await partitions(cluster, 2, version=version)
        assert (told.error_code, told.leader_id, told.replica_nodes, told.offline_replicas) == (
            error,
            2,
            replicas,
            offline,
        )

    simulate(test)


def test_without_a_leader_that_lives_none_is_told() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        await cluster.stop(1)
        await cluster.until(lambda: 1 not in cluster.brokers[2].metadata.image.brokers)
        (told,) = await partitions(cluster, 2)
        assert (told.error_code, told.leader_id, told.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1])
        described = await cluster.ask(2, DescribeTopicPartitionsRequest(), 0, DescribeTopicPartitionsResponse)
        (one,) = [topic for topic in described.topics if topic.name == "orders"]
        assert (one.error_code, one.partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        assert (one.partitions[0].leader_id, one.partitions[0].offline_replicas) == (-1, [1])
        data = await cluster.fetch(2)
        assert (data.error_code, data.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)

    simulate(test)


def test_a_leader_without_the_listener_is_told_apart_from_one_that_is_gone() -> None:
    reached = BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "one", 1), BrokerEndpoint("INTERNAL", "one", 2)))
    unreached = BrokerImage(2, (BrokerEndpoint("PLAINTEXT", "two", 1),))
    image = ClusterImage("", 1, brokers=MappingProxyType({1: reached, 2: unreached}))
    states = tuple(PartitionState((1, 2, 3), (1,), leader, 0) for leader in (1, 2, 3, -1))
    topic = TopicImage("orders", UUID(int=1), states, {})
    view = ListenerView(image, "INTERNAL")
    assert view.of(topic, 0) == (1, ErrorCode.NONE, [2, 3])
    assert view.of(topic, 1) == (-1, ErrorCode.LISTENER_NOT_FOUND, [2, 3])
    assert view.of(topic, 2) == (-1, ErrorCode.LEADER_NOT_AVAILABLE, [2, 3])
    assert view.of(topic, 3) == (-1, ErrorCode.LEADER_NOT_AVAILABLE, [2, 3])


# --- who is to be asked


def test_reading_is_for_the_leader_and_others_say_who_that_is() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        topic_id = cluster.brokers[1].metadata.image.topics["orders"].topic_id
        wanted = FetchPartition(partition=0, partition_max_bytes=1000)
        for broker_id in (2, 3):
            for version in (12, 15, 16, 17):
                request = FetchRequest(topics=[FetchTopic(topic="orders", topic_id=topic_id, partitions=[wanted])])
                response = await cluster.ask(broker_id, request, version, FetchResponse)
                data = response.responses[0].partitions[0]
                assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                if version >= 16:
                    assert data.current_leader is not None
                    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 0)
                    assert [(one.node_id, one.host) for one in response.node_endpoints] == [(1, "broker-1")]
                else:
                    assert (data.current_leader, response.node_endpoints) == (None, [])

    simulate(test)


def test_who_compares_replicas_is_answered_by_each_of_them() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a", b"b")
        await cluster.until_equal(1, 2)
        await cluster.until(lambda: cluster.partition(2).high_watermark == 2)
        topic_id = cluster.brokers[1].metadata.image.topics["orders"].topic_id

        async def compare(broker_id: int, version: int, **changes: int) -> PartitionData:
            wanted = FetchPartition(partition=0, partition_max_bytes=1000, **changes)
            request = FetchRequest(
                replica_id=-2,
                replica_state=ReplicaState(replica_id=-2),
                topics=[FetchTopic(topic="orders", topic_id=topic_id, partitions=[wanted])],
            )
            return (await cluster.ask(broker_id, request, version, FetchResponse)).responses[0].partitions[0]

        for broker_id in (1, 2):
            for version in (12, 17):
                data = await compare(broker_id, version)
                assert (data.error_code, data.high_watermark, values(data)) == (ErrorCode.NONE, 2, [b"a", b"b"])
        refused = await compare(2, 17, current_leader_epoch=5)
        assert refused.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await compare(3, 17)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    simulate(test)


async def offset_at(
    cluster: Cluster, broker_id: int, timestamp: int, *, replica_id: int = -1, version: int = 9
) -> tuple[int, int]:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    answer = (await cluster.ask(broker_id, request, version, ListOffsetsResponse)).topics[0].partitions[0]
    return answer.error_code, answer.offset


def test_offsets_are_the_leaders_business() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        for timestamp, offset in ((-1, 1), (-2, 0), (0, 0)):
            assert await offset_at(cluster, 1, timestamp) == (ErrorCode.NONE, offset)
            assert await offset_at(cluster, 2, timestamp) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            assert await offset_at(cluster, 3, timestamp) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        # A tool that looks into one replica says so.
        assert await offset_at(cluster, 2, -1, replica_id=-2) == (ErrorCode.NONE, 1)
        for broker_id, expected in ((1, ErrorCode.NONE), (2, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
            request = OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic="orders", partitions=[OffsetForLeaderPartition(leader_epoch=0)])]
            )
            response = await cluster.ask(broker_id, request, 4, OffsetForLeaderEpochResponse)
            assert response.topics[0].partitions[0].error_code == expected

    simulate(test)


def test_a_new_leader_says_that_it_does_not_know_yet_what_is_committed() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"a")
        await cluster.until(lambda: all(cluster.partition(one).high_watermark == 1 for one in ALL))
        for other in (1, 3):
            cluster.network.cut("broker-2", f"broker-{other}")
        # It reaches broker 2 and no follower has said so: nobody but 2 has it, so it counts only when they fetch.
        await cluster.move(leader=2)
        await cluster.produce(2, b"b", acks=1)
        await cluster.move(leader=2)
        assert await offset_at(cluster, 2, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await offset_at(cluster, 2, -1, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await offset_at(cluster, 2, -2) == (ErrorCode.NONE, 0)
        cluster.network.heal()
        await cluster.until(lambda: cluster.partition(2).high_watermark == 2)
        assert await offset_at(cluster, 2, -1) == (ErrorCode.NONE, 2)

    simulate(test)


# --- topics


async def create(cluster: Cluster, broker_id: int, name: str, factor: int) -> tuple[int, int]:
    wanted = CreatableTopic(name=name, num_partitions=3, replication_factor=factor)
    response = await cluster.ask(broker_id, CreateTopicsRequest(topics=[wanted]), 7, CreateTopicsResponse)
    return response.topics[0].error_code, response.topics[0].replication_factor


def test_any_broker_creates_topics_of_any_replication_factor_there_are_brokers_for() -> None:
    async def test(cluster: Cluster) -> None:
        for broker_id in ALL:
            name = f"topic-{broker_id}"
            assert await create(cluster, broker_id, name, broker_id) == (ErrorCode.NONE, broker_id)
            for other in ALL:
                await cluster.until(lambda other=other, name=name: name in cluster.brokers[other].metadata.image.topics)
            told = await partitions(cluster, 1, name)
            assert sorted(one.leader_id for one in told) == [1, 2, 3]
            assert all(len(dict.fromkeys(one.replica_nodes)) == broker_id for one in told)
        assert (await create(cluster, 1, "wide", 4))[0] == ErrorCode.INVALID_REPLICATION_FACTOR
        assert (await create(cluster, 2, "topic-1", 1))[0] == ErrorCode.TOPIC_ALREADY_EXISTS

    simulate(test)


def test_topics_that_clients_ask_for_are_made_with_the_default_replication_factor() -> None:
    async def test(cluster: Cluster) -> None:
        response = await metadata(cluster, 2, "wanted")
        assert response.topics[0].error_code == ErrorCode.NONE
        assert [len(one.replica_nodes) for one in response.topics[0].partitions] == [3, 3]

    simulate(test, default_replication_factor="3", num_partitions="2")


def test_log_directories_are_each_brokers_own() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        for broker_id, expected in ((1, ["orders"]), (2, ["orders"]), (3, [])):
            response = await cluster.ask(broker_id, DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
            assert [topic.name for topic in response.results[0].topics] == expected
            assert [one.offset_lag for topic in response.results[0].topics for one in topic.partitions] in ([0], [])

    simulate(test)


def test_producer_ids_of_all_brokers_differ() -> None:
    async def test(cluster: Cluster) -> None:
        given = []
        for _ in range(20):
            for broker_id in ALL:
                request = InitProducerIdRequest(transactional_id=None)
                response = await cluster.ask(broker_id, request, 4, InitProducerIdResponse)
                assert response.error_code == ErrorCode.NONE
                given.append(response.producer_id)
        assert len(dict.fromkeys(given)) == 60

    simulate(test)


class _CountingMetadata:
    """Reserves blocks slowly, and fails when it is told to."""

    def __init__(self) -> None:
        self.claims = 0
        self.fails = False

    async def claim_producer_ids(self) -> range:
        self.claims += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.fails:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return range(1000 * self.claims, 1000 * self.claims + 3)


def test_a_crowd_of_producers_has_one_block_reserved_at_a_time_and_shares_its_failure() -> None:
    async def test() -> None:
        metadata = _CountingMetadata()
        ids = ProducerIds(metadata, Tasks(lambda error: None))  # type: ignore[arg-type]
        given = await asyncio.gather(*(ids.next() for _ in range(9)))
        assert (len(dict.fromkeys(given)), metadata.claims) == (9, 3)
        metadata.fails = True
        refused = await asyncio.gather(*(ids.next() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(one, KafkaError) for one in refused)
        assert metadata.claims == 4
        metadata.fails = False
        # Who is cancelled while it reserves leaves that to the next.
        first = asyncio.ensure_future(ids.next())
        second = asyncio.ensure_future(ids.next())
        await asyncio.sleep(0)
        first.cancel()
        assert await second >= 1000

    asyncio.run(test())


# --- groups


async def find(cluster: Cluster, broker_id: int, group: str = "g") -> tuple[int, int]:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    found = (await cluster.ask(broker_id, request, 4, FindCoordinatorResponse)).coordinators[0]
    return found.error_code, found.node_id


async def commit(cluster: Cluster, broker_id: int, offset: int, group: str = "g") -> int:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name="orders",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
            )
        ],
    )
    return (await cluster.ask(broker_id, request, 8, OffsetCommitResponse)).topics[0].partitions[0].error_code


async def committed(cluster: Cluster, broker_id: int, group: str = "g") -> tuple[int, list[int]]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    found = (await cluster.ask(broker_id, request, 8, OffsetFetchResponse)).groups[0]
    return found.error_code, [one.committed_offset for topic in found.topics for one in topic.partitions]


async def loaded(cluster: Cluster, broker_id: int) -> tuple[int, list[int]]:
    """What is committed, as soon as the coordinator knows it."""
    await cluster.until(lambda: not cluster.brokers[broker_id].groups.is_loading)
    return await committed(cluster, broker_id)


def join_request(member: str = "", group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


async def joined(cluster: Cluster, broker_id: int, group: str = "g") -> JoinGroupResponse:
    """Join with the member id that the first answer gives."""
    first = await cluster.ask(broker_id, join_request(group=group), 9, JoinGroupResponse)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return await cluster.ask(broker_id, join_request(first.member_id, group), 9, JoinGroupResponse)


async def coordinator(cluster: Cluster) -> tuple[int, int]:
    """The coordinator of group g, told alike by all brokers, and the partition that decides it."""
    code, found = await find(cluster, 1)
    assert code == ErrorCode.NONE
    image = cluster.brokers[1].metadata.image
    number = next(n for n, one in enumerate(image.topics[OFFSETS_TOPIC].partitions) if one.leader == found)
    for other in cluster.brokers:
        await cluster.until(lambda other=other: OFFSETS_TOPIC in cluster.brokers[other].metadata.image.topics)
        assert await find(cluster, other) == (ErrorCode.NONE, found)
    return found, number


def test_all_brokers_name_the_same_coordinator_and_the_others_refuse() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        found, _ = await coordinator(cluster)
        topic = cluster.brokers[1].metadata.image.topics[OFFSETS_TOPIC]
        assert all(sorted(one.replicas) == [1, 2, 3] for one in topic.partitions)
        assert await commit(cluster, found, 7) == ErrorCode.NONE
        for other in ALL:
            if other != found:
                assert await commit(cluster, other, 8) == ErrorCode.NOT_COORDINATOR
                assert (await committed(cluster, other))[0] == ErrorCode.NOT_COORDINATOR
                request = ConsumerGroupHeartbeatRequest(
                    group_id="g",
                    member_id="m",
                    member_epoch=0,
                    rebalance_timeout_ms=1000,
                    subscribed_topic_names=["orders"],
                    topic_partitions=[],
                )
                response = await cluster.ask(other, request, 1, ConsumerGroupHeartbeatResponse)
                assert response.error_code == ErrorCode.NOT_COORDINATOR
        assert await committed(cluster, found) == (ErrorCode.NONE, [7])

    simulate(test)


def test_a_new_coordinator_knows_what_was_committed_with_the_old_one() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        found, number = await coordinator(cluster)
        for turn in range(12):
            assert await commit(cluster, found, turn) == ErrorCode.NONE
            leader = found % 3 + 1
            await cluster.move(OFFSETS_TOPIC, (number,), leader=leader)
            former, found = found, leader
            assert await commit(cluster, former, 99) == ErrorCode.NOT_COORDINATOR
            assert await loaded(cluster, found) == (ErrorCode.NONE, [turn])

    simulate(test)


def test_a_coordinator_that_comes_and_goes_while_it_loads_serves_what_is_true_in_the_end() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        found, number = await coordinator(cluster)
        assert await commit(cluster, found, 7) == ErrorCode.NONE
        # No time to load in between: some epochs are over before their log was read.
        for _ in range(10):
            await cluster.move(OFFSETS_TOPIC, (number,), leader=found % 3 + 1)
            await cluster.move(OFFSETS_TOPIC, (number,), leader=found)
        assert await loaded(cluster, found) == (ErrorCode.NONE, [7])
        assert not cluster.brokers[found % 3 + 1].groups.is_loading
        assert await commit(cluster, found, 8) == ErrorCode.NONE

    simulate(test)


def test_who_waits_for_a_group_is_told_when_its_coordinator_is_another_one() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        found, number = await coordinator(cluster)
        assert (await joined(cluster, found)).error_code == ErrorCode.NONE
        # The second member waits until the first joins again, which it never does.
        first = await cluster.ask(found, join_request(), 9, JoinGroupResponse)
        waiting = asyncio.ensure_future(cluster.ask(found, join_request(first.member_id), 9, JoinGroupResponse))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await cluster.move(OFFSETS_TOPIC, (number,), leader=found % 3 + 1)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR

    simulate(test)


def test_a_commit_that_followers_have_not_confirmed_is_not_acknowledged_by_a_deposed_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        found, number = await coordinator(cluster)
        assert await commit(cluster, found, 1) == ErrorCode.NONE
        others = [one for one in ALL if one != found]
        for other in others:
            cluster.network.cut(f"broker-{found}", f"broker-{other}")
        waiting = asyncio.ensure_future(commit(cluster, found, 2))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await cluster.move(OFFSETS_TOPIC, (number,), leader=others[0])
        assert await waiting == ErrorCode.NOT_COORDINATOR
        cluster.network.heal()
        assert await loaded(cluster, others[0]) == (ErrorCode.NONE, [1])

    simulate(test)
