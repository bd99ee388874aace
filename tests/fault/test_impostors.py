"""Clients that claim to be brokers, against real brokers over sockets: refused, and without any effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.client.features import update_feature
from tailrace.errors import ErrorCode
from tailrace.wire.apis import ApiKey
from tailrace.wire.frames import decode_response_header
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.produce import ProduceResponse
from tailrace.wire.messages.prove_broker import ProveBrokerResponse
from tests.support.brokers.cluster_process import ClusterBroker, ClusterProcess, coordination_store
from tests.support.brokers.watched_broker import PRODUCE_VERSION, produce_request, small_batch
from tests.support.clients.raw_client import RawClient
from tests.support.network.overheard_line import OverheardLine
from tests.support.topics import eventually

TOPIC = "orders"
LEADER, VICTIM = 1, 2
FETCH_VERSION = 17
FEATURE = "tailrace.version"
#: A broker that was started for the first time is in the first epoch.
EPOCHS = range(1, 4)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ClusterProcess, OverheardLine]]:
    """Three brokers, and the line through which all others reach the first one, which leads."""
    with ExitStack() as stack:
        store = stack.enter_context(coordination_store("local", tmp_path / "store"))
        cluster = ClusterProcess(tmp_path, store, replica_lag_time_max_ms="10000")
        line = stack.enter_context(OverheardLine(cluster.broker(LEADER).port))
        cluster.broker(LEADER).configure(advertised_listeners=f"PLAINTEXT://{line.endpoint}")
        stack.enter_context(cluster)
        wanted = NewTopic(TOPIC, 1, replica_assignment=[[LEADER, VICTIM, 3]])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([wanted], operation_timeout=60)[TOPIC].result(90)
        cluster.wait_until_whole()
        yield cluster, line


def topic_id_of(broker: ClusterBroker) -> UUID:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    with RawClient(broker.port) as client:
        return client.ask(request, 12, MetadataResponse).topics[0].topic_id


def claimed(client: RawClient, topic_id: UUID, offset: int, epoch: int, replica_id: int = VICTIM) -> FetchResponse:
    """The leader's answer to a fetch that claims to be a replica's, with a log up to an offset."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=epoch),
        max_wait_ms=0,
        topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )
    return client.ask(request, FETCH_VERSION, FetchResponse)


def produce(broker: ClusterBroker, acks: int) -> int:
    with RawClient(broker.port) as client:
        response = client.ask(
            produce_request(TOPIC, small_batch(b"value"), acks=acks), PRODUCE_VERSION, ProduceResponse
        )
    (partition,) = response.responses[0].partition_responses
    assert partition.error_code == 0, partition
    return partition.base_offset


def code_of(frame: bytes | None) -> int:
    assert frame is not None
    _, position = decode_response_header(memoryview(frame), True)
    return ProveBrokerResponse.decode(0, frame[position:]).error_code


def test_a_client_that_says_it_is_a_replica_moves_nothing(cluster: tuple[ClusterProcess, OverheardLine]) -> None:
    brokers, _ = cluster
    leader, topic_id = brokers.broker(LEADER), topic_id_of(brokers.broker(LEADER))
    assert produce(leader, acks=-1) == 0
    for each in (VICTIM, 3):
        brokers.broker(each).pause()
    end = produce(leader, acks=1) + 1
    with RawClient(leader.port) as client:
        for replica_id in (VICTIM, 3):
            for epoch in (-1, *EPOCHS):
                for offset in (0, end, end + 100):
                    answer = claimed(client, topic_id, offset, epoch, replica_id)
                    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    assert answer.responses == []
    assert leader.end_offset(TOPIC) == 1  # for clients: the high watermark
    # Nor is one that does not fetch kept in sync.
    with RawClient(leader.port) as client:
        brokers.wait_for(
            lambda state: (
                claimed(client, topic_id, end, EPOCHS[0]).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                and [each["isr"] for each in state["partitions"] if each["topic"] == TOPIC] == [[LEADER]]
            ),
            "the silent replicas to leave the ISR",
        )
    for each in (VICTIM, 3):
        brokers.broker(each).resume()
    brokers.wait_until_whole()
    assert produce(leader, acks=-1) == end
    for broker in brokers.brokers:
        assert "Traceback" not in broker.all_error_output()


def test_what_was_overheard_is_of_no_use_on_another_connection(cluster: tuple[ClusterProcess, OverheardLine]) -> None:
    brokers, line = cluster
    leader, topic_id = brokers.broker(LEADER), topic_id_of(brokers.broker(LEADER))
    # Answered once both followers have fetched it: then both have proved who they are.
    assert produce(leader, acks=-1) == 0
    overheard = [frames[:2] for frames in line.conversations(ApiKey.PROVE_BROKER)]
    assert len(overheard) >= 2  # one of each follower
    for hello, _ in overheard:
        for _, proof in overheard:
            with RawClient(leader.port) as thief:
                thief.send(hello)
                assert code_of(thief.receive_frame()) == ErrorCode.NONE
                thief.send(proof)
                assert code_of(thief.receive_frame()) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                assert thief.is_closed_by_broker()
    with RawClient(leader.port) as thief:
        thief.send(overheard[0][1])
        assert code_of(thief.receive_frame()) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert thief.is_closed_by_broker()
    with RawClient(leader.port) as thief:
        thief.send(overheard[0][0])
        assert code_of(thief.receive_frame()) == ErrorCode.NONE
        assert claimed(thief, topic_id, 0, EPOCHS[0]).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "which claims to be a broker" in leader.all_error_output()
    assert produce(leader, acks=-1) == 1


def test_replicas_without_proof_are_taken_below_the_level_only(cluster: tuple[ClusterProcess, OverheardLine]) -> None:
    brokers, _ = cluster
    leader, topic_id = brokers.broker(LEADER), topic_id_of(brokers.broker(LEADER))

    def codes() -> set[int]:
        with RawClient(leader.port) as client:
            return {claimed(client, topic_id, 0, epoch).error_code for epoch in EPOCHS}

    refused, stale = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.STALE_BROKER_EPOCH
    assert codes() == {refused}
    update_feature(brokers.bootstrap, FEATURE, 2, downgrade=True)
    assert eventually(lambda: codes() == {ErrorCode.NONE, stale})
    assert produce(leader, acks=-1) == 0
    brokers.broker(VICTIM).stop()
    brokers.broker(VICTIM).start()
    brokers.wait_until_whole()
    assert produce(leader, acks=-1) == 1
    update_feature(brokers.bootstrap, FEATURE, 3)
    assert eventually(lambda: codes() == {refused})
    assert produce(leader, acks=-1) == 2
    brokers.wait_until_whole()
