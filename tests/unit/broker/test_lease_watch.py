"""A leader without a lease: it redirects clients where another may lead, and continues where none can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.broker.assembly import Broker
from tailrace.cluster.store import Unavailable
from tailrace.errors import ErrorCode
from tailrace.stores.memory import MemoryStore
from tailrace.testing.clock import SimClock
from tailrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from tests.unit.broker.clusters import Cluster, simulate, values

SESSION = "3000"


def cut_off(cluster: Cluster, broker_id: int) -> None:
    """Let a broker reach the store no more; it can still be reached itself."""
    store: MemoryStore = cluster._stores[broker_id]

    async def unavailable(*_: Any) -> Any:
        await asyncio.sleep(0.5)
        raise Unavailable("out of reach")

    store.txn = store.get = store.list = store.open_session = unavailable  # type: ignore[method-assign,assignment]
    cluster.space.unfollow(store._feed)
    session = cluster.brokers[broker_id].registration.session
    session._renew = lambda: None  # type: ignore[union-attr]


async def leader_of(cluster: Cluster, asked: int, topic: str = "orders") -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    response = await cluster.ask(asked, request, 9, MetadataResponse)
    return response.topics[0].partitions[0].leader_id


async def list_offsets(cluster: Cluster, asked: int) -> int:
    wanted = ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    request = ListOffsetsRequest(replica_id=-1, topics=[wanted])
    response = await cluster.ask(asked, request, 5, ListOffsetsResponse)
    return response.topics[0].partitions[0].error_code


def holds_lease(broker: Broker) -> bool:
    return broker.partitions.holds_lease()


def test_a_leader_that_alone_does_not_reach_the_store_sends_its_clients_elsewhere() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.create("alone", [[1]])
        await cluster.produce(1, b"before")
        assert await leader_of(cluster, 1) == 1
        waiting = asyncio.ensure_future(cluster.fetch(1, offset=1, wait_ms=60_000))
        cut_off(cluster, 1)
        await cluster.until(lambda: cluster.state(2).leader in (2, 3), 20)
        # It knows itself for a leader still, and that it may be none.
        await cluster.until(lambda: cluster.partition(1).is_cut_off, 10)
        assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await cluster.fetch(1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await list_offsets(cluster, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for acks in (0, 1, 2, -1):
            if acks:
                answer = await cluster.produce(1, b"refused", acks=acks)
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Clients that are connected to nobody else have to be told of somebody who knows.
        assert await leader_of(cluster, 1) == 2
        leader = cluster.state(2).leader
        assert await leader_of(cluster, leader) == leader
        assert (await cluster.produce(leader, b"after")).error_code == ErrorCode.NONE
        # What has one replica nobody else can lead.
        assert await leader_of(cluster, 1, "alone") == 1
        assert (await cluster.produce(1, b"served", topic="alone", acks=1)).error_code == ErrorCode.NONE
        assert values(await cluster.fetch(1, topic="alone")) == [b"served"]

    simulate(test, broker_session_timeout_ms=SESSION)


def test_a_producer_that_waits_is_told_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"before")
        cut_off(cluster, 1)
        for broker_id in (2, 3):
            cluster.network.cut("broker-1", f"broker-{broker_id}")
        partition = cluster.partition(1)
        offset = partition.log.end_offset
        waiting = asyncio.ensure_future(cluster.produce(1, b"never committed"))
        await cluster.until(lambda: partition.log.end_offset > offset)
        waiter = partition.acknowledging.wait_for(offset)
        await cluster.until(lambda: partition.is_cut_off, 20)
        assert waiter.done()
        waiter.exception()
        # Either its own patience ended first, or it was told.
        assert (await waiting).error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)

    simulate(test, broker_session_timeout_ms=SESSION)


def test_a_store_that_is_away_for_all_changes_nothing_for_clients() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.create("quiet", [[1, 2, 3]])
        await cluster.produce(1, b"before")
        for broker_id in (1, 2, 3):
            cut_off(cluster, broker_id)
        await cluster.until(lambda: not holds_lease(cluster.brokers[1]), 10)
        for number in range(60):
            assert (await cluster.produce(1, f"{number}".encode())).error_code == ErrorCode.NONE
            assert (await cluster.fetch(1, offset=number)).error_code == ErrorCode.NONE
            assert await leader_of(cluster, 1) == 1
            # Also where nothing happens: followers fetch it all the same.
            assert (await cluster.fetch(1, topic="quiet")).error_code == ErrorCode.NONE
            await asyncio.sleep(0.5)
        assert not cluster.partition(1).is_cut_off

    simulate(test, broker_session_timeout_ms=SESSION)


def test_a_leader_that_followers_fetch_from_again_is_one_again() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"before")
        for broker_id in (1, 2, 3):
            cut_off(cluster, broker_id)
        for broker_id in (2, 3):
            cluster.network.stall(f"broker-{broker_id}")
        await cluster.until(lambda: cluster.partition(1).is_cut_off, 20)
        assert (await cluster.fetch(1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.network.unstall("broker-2")
        await cluster.until(lambda: not cluster.partition(1).is_cut_off, 20)
        assert values(await cluster.fetch(1)) == [b"before"]

    simulate(test, broker_session_timeout_ms=SESSION)


def test_a_coordinator_that_may_be_deposed_names_another_replica() -> None:
    async def test(cluster: Cluster) -> None:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["billing"])
        found = (await cluster.ask(1, request, 4, FindCoordinatorResponse)).coordinators[0]
        await cluster.until(lambda: found.node_id >= 0)
        coordinator = found.node_id
        cut_off(cluster, coordinator)
        broker = cluster.brokers[coordinator]
        await cluster.until(lambda: any(each.is_cut_off for each in broker.partitions), 30)
        found = (await cluster.ask(coordinator, request, 4, FindCoordinatorResponse)).coordinators[0]
        assert found.error_code == ErrorCode.NONE
        assert found.node_id in {1, 2, 3} - {coordinator}

    simulate(test, broker_session_timeout_ms=SESSION, offsets_topic_num_partitions="1")


async def committed(cluster: Cluster, coordinator: int) -> int:
    """What a coordinator answers to a group that asks from where it goes on: an error or nothing yet."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="billing", topics=None)])
    return (await cluster.ask(coordinator, request, 8, OffsetFetchResponse)).groups[0].error_code


async def coordinator_of(cluster: Cluster) -> int:
    """Who coordinates the group, once its shard is loaded."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["billing"])
    found = (await cluster.ask(1, request, 4, FindCoordinatorResponse)).coordinators[0].node_id
    await cluster.until(lambda: len(list(cluster.brokers[found].groups._shards)) == 1)
    assert await committed(cluster, found) == ErrorCode.NONE
    return found


def test_a_coordinator_that_was_suspended_tells_no_offsets_before_it_knows_whether_it_still_is() -> None:
    async def test(cluster: Cluster) -> None:
        coordinator = await coordinator_of(cluster)
        clock = cluster.brokers[coordinator]._runtime.clock
        assert isinstance(clock, SimClock)
        # Another may have coordinated for an hour; no timer has noticed, and followers' fetches may be waiting here.
        clock.suspended_seconds = 3600
        assert await committed(cluster, coordinator) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        clock.suspended_seconds = 0
        assert holds_lease(cluster.brokers[coordinator])
        assert await committed(cluster, coordinator) == ErrorCode.NONE

    simulate(test, broker_session_timeout_ms=SESSION, offsets_topic_num_partitions="1")


def test_a_store_that_is_away_for_all_holds_up_groups_for_as_long_as_it_takes_to_know_that() -> None:
    async def test(cluster: Cluster) -> None:
        coordinator = await coordinator_of(cluster)
        for broker_id in (1, 2, 3):
            cut_off(cluster, broker_id)
        await cluster.until(lambda: not holds_lease(cluster.brokers[coordinator]), 10)
        assert await committed(cluster, coordinator) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(4)
        for _ in range(20):
            assert await committed(cluster, coordinator) == ErrorCode.NONE
            await asyncio.sleep(0.5)

    simulate(test, broker_session_timeout_ms=SESSION, offsets_topic_num_partitions="1")


def test_groups_of_a_broker_alone_wait_for_no_store() -> None:
    async def test(cluster: Cluster) -> None:
        coordinator = await coordinator_of(cluster)
        cut_off(cluster, coordinator)
        await cluster.until(lambda: not holds_lease(cluster.brokers[coordinator]), 10)
        assert await committed(cluster, coordinator) == ErrorCode.NONE

    simulate(test, brokers=1, broker_session_timeout_ms=SESSION, offsets_topic_num_partitions="1")


@pytest.mark.parametrize("acks", [1, 0])
def test_a_machine_that_was_suspended_for_longer_than_its_session_acknowledges_nothing_alone(acks: int) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        assert (await cluster.produce(1, b"before", acks=1)).error_code == ErrorCode.NONE
        broker = cluster.brokers[1]
        clock = broker._runtime.clock
        assert isinstance(clock, SimClock)
        # No timer has noticed yet, and no answer of the store has come: only the clock tells.
        clock.suspended_seconds = 3600
        assert not holds_lease(broker)
        partition = cluster.partition(1)
        assert not partition.acknowledging.may_acknowledge(acks)
        if acks:
            answer = await cluster.produce(1, b"after", acks=acks)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    simulate(test, broker_session_timeout_ms=SESSION)


def test_a_machine_that_was_suspended_places_no_replicas() -> None:
    """It would lead them itself, while the others take it for gone."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        clock = cluster.brokers[1]._runtime.clock
        assert isinstance(clock, SimClock)
        clock.suspended_seconds = 3600
        for validate_only in (True, False):
            topic = CreatableTopic(name="new", num_partitions=1, replication_factor=3)
            created = await cluster.ask(
                1, CreateTopicsRequest(topics=[topic], validate_only=validate_only), 7, CreateTopicsResponse
            )
            assert [each.error_code for each in created.topics] == [ErrorCode.NOT_CONTROLLER]
            more = CreatePartitionsTopic(name="orders", count=2)
            grown = await cluster.ask(
                1, CreatePartitionsRequest(topics=[more], validate_only=validate_only), 3, CreatePartitionsResponse
            )
            assert [each.error_code for each in grown.results] == [ErrorCode.NOT_CONTROLLER]
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        response = await cluster.ask(1, request, 9, MetadataResponse)
        assert [each.error_code for each in response.topics] == [ErrorCode.LEADER_NOT_AVAILABLE]
        clock.suspended_seconds = 0
        assert set(cluster.brokers[2].metadata.image.topics) == {"orders"}

    simulate(test, broker_session_timeout_ms=SESSION)
