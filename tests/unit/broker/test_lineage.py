"""A topic keeps all that is its own when its id on the wire changes: brokers of one cluster in virtual time."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tailrace.cluster.features import TAILRACE_VERSION, FinalizedFeatures
from tailrace.cluster.image import TopicImage
from tailrace.cluster.keys import FINALIZED_FEATURES, topic_key
from tailrace.cluster.store import Write
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage, TopicId
from tailrace.records.record import NewRecord, build_batch
from tailrace.storage.checkpoints import encode_uuid
from tailrace.stores.memory import MemoryStore
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse
from tailrace.wire.messages.archive_describe import ArchiveDescribeRequest, ArchiveDescribeResponse, ArchivedPartition
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tailrace.wire.messages.describe_configs import (
    LINEAGE_KEY,
    TOPIC_ID_KEY,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.unit.broker.clusters import Cluster, simulate, values

GROUP = "readers"


def topic_of(cluster: Cluster, broker_id: int = 1) -> TopicImage:
    return cluster.brokers[broker_id].metadata.image.topics["orders"]


async def change_id(cluster: Cluster, by: int = 1) -> tuple[TopicId, TopicId]:
    """Give the topic another id; the former and the new one, when every broker goes by it."""
    former = topic_of(cluster, by)
    topic_id = await cluster.brokers[by].metadata.change_topic_id(former)
    await cluster.until(lambda: all(topic_of(cluster, each).topic_id == topic_id for each in cluster.brokers))
    assert topic_id != former.topic_id
    return former.topic_id, topic_id


async def fetch_by(cluster: Cluster, topic_id: TopicId, broker_id: int = 1) -> tuple[int, list[bytes | None]]:
    """What a consumer is told that names the topic so: the error, and the values from the beginning."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])])
    data = (await cluster.ask(broker_id, request, 17, FetchResponse)).responses[0].partitions[0]
    return data.error_code, values(data)


async def coordinator(cluster: Cluster) -> int:
    """The broker that coordinates the group, once it does."""
    while True:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        found = (await cluster.ask(1, request, 4, FindCoordinatorResponse)).coordinators[0]
        if not found.error_code:
            return found.node_id
        await asyncio.sleep(0.1)


async def commit(cluster: Cluster, topic_id: TopicId, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    request = OffsetCommitRequest(group_id=GROUP, topics=[topic])
    while True:
        response = await cluster.ask(await coordinator(cluster), request, 10, OffsetCommitResponse)
        code = response.topics[0].partitions[0].error_code
        if code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            return code
        await asyncio.sleep(0.1)


async def committed(cluster: Cluster, topic_id: TopicId) -> tuple[int, int]:
    """The error and the offset that a group is told that names the topic so."""
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])])
    while True:
        group = (await cluster.ask(await coordinator(cluster), request, 10, OffsetFetchResponse)).groups[0]
        if not group.error_code:
            partition = group.topics[0].partitions[0]
            return partition.error_code, partition.committed_offset
        await asyncio.sleep(0.1)


def test_records_stay_on_all_replicas_and_followers_go_on_under_another_id() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"a", b"b")
        await cluster.until_equal(1, 2, 3)
        logs = {each: cluster.partition(each).log for each in cluster.brokers}
        former, now = await change_id(cluster, by=2)
        assert await fetch_by(cluster, former) == (ErrorCode.UNKNOWN_TOPIC_ID, [])
        assert await fetch_by(cluster, now) == (ErrorCode.NONE, [b"a", b"b"])
        assert (await cluster.produce(1, b"c")).error_code == ErrorCode.NONE  # all three have it
        await cluster.until_equal(1, 2, 3)
        assert {each: cluster.partition(each).log for each in cluster.brokers} == logs
        assert [len(cluster.log(each)) for each in (1, 2, 3)] == [3, 3, 3]

    simulate(test, min_insync_replicas="3")


def test_directories_are_found_again_after_restarts_and_a_loss_of_power() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"a", b"b")
        await cluster.until_equal(1, 2, 3)
        lineage = topic_of(cluster).lineage
        _, now = await change_id(cluster)
        await cluster.stop()
        await cluster.start(1, 2, 3)
        cluster.kill(3)
        await cluster.start(3)
        await cluster.until(lambda: len(cluster.partition(3).isr) == 3)
        await cluster.until_equal(1, 2, 3)
        for each in cluster.brokers:
            assert (topic_of(cluster, each).topic_id, topic_of(cluster, each).lineage) == (now, lineage)
            assert [value for _, _, value in cluster.log(each)] == [b"a", b"b"]
            names = cluster.disks[each].list("/data")
            assert "orders-0" in names
            assert not [name for name in names if name.endswith(("-delete", "-stray"))]

    simulate(test)


def test_a_broker_that_was_away_adopts_its_log_and_what_was_deleted_meanwhile_goes() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        await cluster.until_equal(1, 2)
        await cluster.stop(2)
        await change_id(cluster)
        await change_id(cluster)
        await cluster.start(2)
        await cluster.until_equal(1, 2)
        assert [value for _, _, value in cluster.log(2)] == [b"a"]
        await cluster.brokers[1].metadata.delete_topic(topic_of(cluster))
        images = [each.metadata for each in cluster.brokers.values()]
        await cluster.until(lambda: all("orders" not in each.image.topics for each in images))
        await cluster.until(lambda: all("orders-0" not in cluster.disks[each].list("/data") for each in (1, 2)))
        image = cluster.brokers[2].metadata.image
        assert not {**image.topics_by_id, **image.topics_by_lineage}

    simulate(test, brokers=2)


def test_commits_count_under_the_new_id_and_after_the_coordinator_has_loaded_them_again() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        first = topic_of(cluster).topic_id
        assert await commit(cluster, first, 5) == ErrorCode.NONE
        former, now = await change_id(cluster)
        assert await committed(cluster, former) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        assert await committed(cluster, now) == (ErrorCode.NONE, 5)
        assert await commit(cluster, former, 6) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await commit(cluster, now, 7) == ErrorCode.NONE
        await cluster.stop()
        await cluster.start(1, 2)
        assert await committed(cluster, now) == (ErrorCode.NONE, 7)

    simulate(test, brokers=2)


def test_a_member_keeps_its_partitions_and_is_told_of_them_by_the_new_id() -> None:
    async def heartbeat(cluster: Cluster, epoch: int, **fields: object) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=epoch, **fields)  # type: ignore[arg-type]
        while True:
            response = await cluster.ask(await coordinator(cluster), request, 1, ConsumerGroupHeartbeatResponse)
            if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return response
            await asyncio.sleep(0.1)

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1], [1]])
        joined = await heartbeat(
            cluster, 0, rebalance_timeout_ms=5000, subscribed_topic_names=["orders"], topic_partitions=[]
        )
        assert joined.assignment is not None
        (given,) = joined.assignment.topic_partitions
        former, now = await change_id(cluster)
        assert (given.topic_id, given.partitions) == (former, [0, 1])
        # It says all again, in the words that it knows.
        owned = [TopicPartitions(topic_id=former, partitions=[0, 1])]
        told = await heartbeat(
            cluster,
            joined.member_epoch,
            rebalance_timeout_ms=5000,
            subscribed_topic_names=["orders"],
            topic_partitions=owned,
        )
        assert (told.error_code, told.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
        assert told.assignment is not None
        assert [(each.topic_id, each.partitions) for each in told.assignment.topic_partitions] == [(now, [0, 1])]

    simulate(test, brokers=1)


def test_a_producer_that_names_the_topic_by_id_goes_on_where_it_was() -> None:
    async def produce(cluster: Cluster, topic_id: TopicId, value: bytes) -> int:
        batch = build_batch([NewRecord(value, timestamp=1)], producer_id=7, producer_epoch=0, base_sequence=value[0])
        data = PartitionProduceData(index=0, records=bytes(batch))
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])]
        )
        response = await cluster.ask(1, request, 13, ProduceResponse)
        return response.responses[0].partition_responses[0].error_code

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        assert await produce(cluster, topic_of(cluster).topic_id, b"\0") == ErrorCode.NONE
        former, now = await change_id(cluster)
        assert await produce(cluster, former, b"\1") == ErrorCode.UNKNOWN_TOPIC_ID
        assert await produce(cluster, now, b"\1") == ErrorCode.NONE
        assert await produce(cluster, now, b"\1") == ErrorCode.NONE  # again: it is there already
        assert [value for _, _, value in cluster.log(1)] == [b"\0", b"\1"]

    simulate(test, brokers=2)


def test_the_archive_goes_on() -> None:
    async def described(cluster: Cluster) -> tuple[Lineage, int, int]:
        response = await cluster.ask(1, ArchiveDescribeRequest(topics=["orders"]), 0, ArchiveDescribeResponse)
        (archive,) = response.archives
        return archive.lineage, archive.version, archive.partitions[0].end_offset

    async def archive(cluster: Cluster, lineage: Lineage, version: int, end: int) -> int:
        partition = ArchivedPartition(partition_index=0, start_offset=0, end_offset=end)
        request = ArchiveCommitRequest(
            lineage=lineage, expected_version=version, uri="/archive", manifest=f"m{version}", partitions=[partition]
        )
        return (await cluster.ask(1, request, 0, ArchiveCommitResponse)).error_code

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]], tailrace_archive_enable="true", tailrace_archive_uri="/archive")
        await cluster.produce(1, b"a", b"b")
        lineage = topic_of(cluster).lineage
        assert await archive(cluster, lineage, 0, 1) == ErrorCode.NONE
        _, now = await change_id(cluster)
        assert await described(cluster) == (lineage, 1, 1)
        assert await archive(cluster, Lineage(now), 1, 2) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await archive(cluster, lineage, 1, 2) == ErrorCode.NONE
        assert cluster.partition(1).archived_end == 2
        await cluster.stop()
        await cluster.start(1)
        assert await described(cluster) == (lineage, 2, 2)
        assert cluster.partition(1).archived_end == 2

    simulate(test, brokers=1)


def test_who_asks_by_name_is_told_the_lineage_and_nobody_else() -> None:
    async def told(cluster: Cluster, keys: list[str] | None) -> dict[str, str | None]:
        resource = DescribeConfigsResource(resource_type=2, resource_name="orders", configuration_keys=keys)
        response = await cluster.ask(1, DescribeConfigsRequest(resources=[resource]), 4, DescribeConfigsResponse)
        return {each.name: each.value for each in response.results[0].configs}

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        former, now = await change_id(cluster)
        wanted = {TOPIC_ID_KEY: encode_uuid(now), LINEAGE_KEY: encode_uuid(former)}
        assert await told(cluster, list(wanted)) == wanted
        assert not wanted.keys() & (await told(cluster, None)).keys()

    simulate(test, brokers=1)


def test_clients_are_refused_the_former_id_and_find_the_new_one_by_name() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        former, now = await change_id(cluster)
        wanted = [MetadataRequestTopic(name=None, topic_id=former), MetadataRequestTopic(name="orders")]
        response = await cluster.ask(1, MetadataRequest(topics=wanted), 12, MetadataResponse)
        by_id, by_name = response.topics
        assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (by_name.error_code, by_name.topic_id) == (ErrorCode.NONE, now)

    simulate(test, brokers=1)


def test_an_id_does_not_change_while_an_older_release_may_take_part() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        before = topic_of(cluster)
        features = FinalizedFeatures(1, {TAILRACE_VERSION: 2})
        store = MemoryStore(cluster.space)
        await store.txn([], [Write(FINALIZED_FEATURES, features.to_bytes())])
        await cluster.until(lambda: cluster.brokers[1].metadata.image.features == features)
        with pytest.raises(KafkaError) as refused:
            await cluster.brokers[1].metadata.change_topic_id(before)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        entry = await store.get(topic_key(before.lineage))
        assert entry is not None
        assert TopicImage.from_bytes(entry.value) == before
        assert UUID(entry.key.rpartition("/")[2]) == before.topic_id

    simulate(test, brokers=1)
