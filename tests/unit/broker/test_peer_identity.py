"""Requests for brokers only: refused to peers that only claim to be a broker, served to those that proved it."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from tailrace.cluster.broker_proof import NONCE_BYTES, PROOF_BYTES, Challenge, proof_of
from tailrace.cluster.features import OLDEST, TAILRACE_VERSION
from tailrace.errors import ErrorCode
from tailrace.testing.client import KafkaClient
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse
from tailrace.wire.messages.replica_start import ReplicaStartRequest, ReplicaStartResponse
from tailrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.unit.broker.clusters import PORT, Cluster, simulate, token_of
from tests.unit.broker.test_lease_watch import cut_off

UPGRADE, DOWNGRADE = 1, 2
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
#: Brokers that are played by the test.
FOLLOWER, OTHER = 8, 9
EPOCH = 5


def epoch_of(cluster: Cluster, broker_id: int) -> int:
    """The epoch that broker 1 knows of a broker."""
    return cluster.brokers[1].metadata.image.brokers[broker_id].epoch


def replica_fetch(cluster: Cluster, replica_id: int, offset: int, version: int = 17) -> FetchRequest:
    """What a follower with a log up to an offset would send."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="orders", partitions=[wanted])
    if version >= 13:
        topic = FetchTopic(topic_id=cluster.brokers[1].metadata.image.topics["orders"].topic_id, partitions=[wanted])
    if version >= 15:
        state = ReplicaState(replica_id=replica_id, replica_epoch=epoch_of(cluster, replica_id))
        return FetchRequest(replica_state=state, max_wait_ms=0, topics=[topic])
    return FetchRequest(replica_id=replica_id, max_wait_ms=0, topics=[topic])


async def fetched(cluster: Cluster, replica_id: int, offset: int, version: int = 17) -> int:
    """The code that a fetch of a replica is answered with."""
    response = await cluster.ask(1, replica_fetch(cluster, replica_id, offset, version), version, FetchResponse)
    return response.error_code or response.responses[0].partitions[0].error_code


async def finalize(cluster: Cluster, level: int, upgrade_type: int) -> None:
    key = FeatureUpdateKey(feature=TAILRACE_VERSION, max_version_level=level, upgrade_type=upgrade_type)
    response = await cluster.ask(1, UpdateFeaturesRequest(feature_updates=[key]), 1, UpdateFeaturesResponse)
    assert response.error_code == ErrorCode.NONE, response.error_message
    await cluster.until(
        lambda: all(
            broker.metadata.image.features.level(TAILRACE_VERSION) == level for broker in cluster.brokers.values()
        )
    )


async def challenged(client: KafkaClient, broker_id: int, epoch: int) -> ProveBrokerResponse:
    request = ProveBrokerRequest(broker_id=broker_id, broker_epoch=epoch, nonce=bytes(NONCE_BYTES))
    return await client.call(request, 0, ProveBrokerResponse)


async def another_client(cluster: Cluster, name: str = "another") -> KafkaClient:
    return await KafkaClient.connect(cluster.network.host(name), "broker-1", PORT, name)


def peers_of(cluster: Cluster, broker_id: int) -> set[int | None]:
    """Whom the connections to a broker are from, as far as that is proved."""
    return {connection.peer_broker for connection in cluster.brokers[broker_id].server._connections}


# --- who has proved nothing


@pytest.mark.parametrize("version", [4, 6, 7, 12, 13, 15, 17])
def test_a_client_that_says_it_is_a_follower_is_refused_and_moves_nothing(version: int) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"committed")
        cluster.network.cut("broker-1", "broker-2")
        await cluster.produce(1, b"not yet", acks=1)
        assert await fetched(cluster, 2, 2, version) == REFUSED
        assert cluster.partition(1).high_watermark == 1
        # Nor is it given what is not committed.
        response = await cluster.ask(1, replica_fetch(cluster, 2, 0, version), version, FetchResponse)
        assert [data.records for topic in response.responses for data in topic.partitions if data.records] == []
        cluster.network.heal()

    simulate(test, brokers=2)


def test_a_dead_replica_is_not_kept_in_sync_by_who_says_that_it_is_that_one() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        claimed = replica_fetch(cluster, 2, 1)
        cluster.kill(2)
        for _ in range(100):
            assert (await cluster.ask(1, claimed, 17, FetchResponse)).error_code == REFUSED
            await asyncio.sleep(0.1)
        assert cluster.state(1).isr == (1,)

    simulate(test, brokers=2, replica_lag_time_max_ms="2000")


def test_everything_that_is_for_brokers_is_refused_and_the_rest_is_not() -> None:
    async def epochs(cluster: Cluster, replica_id: int) -> int:
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        topics = [OffsetForLeaderTopic(topic="orders", partitions=[asked])]
        request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics)
        answer = await cluster.ask(1, request, 4, OffsetForLeaderEpochResponse)
        return answer.topics[0].partitions[0].error_code

    async def offsets(cluster: Cluster, replica_id: int) -> int:
        asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
        topics = [ListOffsetsTopic(name="orders", partitions=[asked])]
        request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
        return (await cluster.ask(1, request, 9, ListOffsetsResponse)).topics[0].partitions[0].error_code

    async def start(cluster: Cluster) -> int:
        lineage = cluster.brokers[1].metadata.image.topics["orders"].lineage
        request = ReplicaStartRequest(lineage=lineage, partition_index=0, current_leader_epoch=0)
        return (await cluster.ask(1, request, 0, ReplicaStartResponse)).error_code

    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        await cluster.register_stranger(OTHER, EPOCH)
        await cluster.create("orders", [[1, FOLLOWER]])
        for ask in (epochs, offsets):
            assert [await ask(cluster, each) for each in (-2, -1, FOLLOWER)] == [0, 0, REFUSED]
        assert await start(cluster) == REFUSED
        assert await cluster.prove(1, FOLLOWER, EPOCH) == ErrorCode.NONE
        for ask in (epochs, offsets):
            assert [await ask(cluster, each) for each in (FOLLOWER, OTHER)] == [0, REFUSED]
        assert await start(cluster) == ErrorCode.NONE
        assert await fetched(cluster, FOLLOWER, 0) == ErrorCode.NONE
        assert await fetched(cluster, OTHER, 0) == REFUSED

    simulate(test, brokers=1)


# --- proofs that are none


def test_a_proof_is_good_for_one_connection_and_one_challenge() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        cluster_id = cluster.brokers[1].metadata.image.cluster_id
        first = await another_client(cluster)
        nonce = bytes((await challenged(first, FOLLOWER, EPOCH)).nonce)
        challenge = Challenge(cluster_id, FOLLOWER, EPOCH, 1, bytes(NONCE_BYTES), nonce)
        overheard = ProveBrokerRequest(proof=proof_of(token_of(FOLLOWER), challenge))
        for begins in (True, False):
            thief = await another_client(cluster, f"thief {begins}")
            if begins:
                assert (await challenged(thief, FOLLOWER, EPOCH)).error_code == ErrorCode.NONE
            assert (await thief.call(overheard, 0, ProveBrokerResponse)).error_code == REFUSED
            await cluster.until(lambda thief=thief: not thief.is_open)
        assert (await first.call(overheard, 0, ProveBrokerResponse)).error_code == ErrorCode.NONE
        assert (await first.call(overheard, 0, ProveBrokerResponse)).error_code == REFUSED
        await cluster.until(lambda: not first.is_open)

    simulate(test, brokers=1)


def test_an_earlier_challenge_is_void_when_there_is_another() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        cluster_id = cluster.brokers[1].metadata.image.cluster_id
        client = await another_client(cluster)
        nonces = [bytes((await challenged(client, FOLLOWER, EPOCH)).nonce) for _ in range(3)]
        assert len(set(nonces)) == 3
        challenge = Challenge(cluster_id, FOLLOWER, EPOCH, 1, bytes(NONCE_BYTES), nonces[0])
        proof = ProveBrokerRequest(proof=proof_of(token_of(FOLLOWER), challenge))
        assert (await client.call(proof, 0, ProveBrokerResponse)).error_code == REFUSED

    simulate(test, brokers=1)


def test_wrong_proofs_close_the_connection_and_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        random = Random(1)
        for broker_id in (1, FOLLOWER):
            client = await another_client(cluster)
            assert (await challenged(client, broker_id, epoch_of(cluster, broker_id))).error_code == ErrorCode.NONE
            guess = ProveBrokerRequest(proof=random.randbytes(PROOF_BYTES))
            assert (await client.call(guess, 0, ProveBrokerResponse)).error_code == REFUSED
            await cluster.until(lambda client=client: not client.is_open)
            assert f"its proof is not that of broker {broker_id} in epoch" in caplog.text
        assert peers_of(cluster, 1) <= {None}
        assert {record.__dict__["repeats"] for record in caplog.records if "its proof" in record.message} == {
            "broker not proved"
        }

    simulate(test, brokers=1)


@pytest.mark.parametrize("sizes", [(0, 0), (NONCE_BYTES - 1, 0), (NONCE_BYTES, PROOF_BYTES), (0, PROOF_BYTES + 1)])
def test_nonces_and_proofs_of_other_sizes_are_refused(sizes: tuple[int, int]) -> None:
    async def test(cluster: Cluster) -> None:
        client = await another_client(cluster)
        request = ProveBrokerRequest(broker_id=1, broker_epoch=1, nonce=bytes(sizes[0]), proof=bytes(sizes[1]))
        assert (await client.call(request, 0, ProveBrokerResponse)).error_code == ErrorCode.INVALID_REQUEST
        assert peers_of(cluster, 1) <= {None}

    simulate(test, brokers=1)


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_broker_that_is_not_known_in_its_epoch_may_try_again(epoch: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        assert await cluster.prove(1, FOLLOWER, epoch) == ErrorCode.STALE_BROKER_EPOCH
        assert await cluster.prove(1, 77, 1) == ErrorCode.STALE_BROKER_EPOCH
        await cluster.register_stranger(FOLLOWER, epoch)
        assert await cluster.prove(1, FOLLOWER, epoch) == ErrorCode.NONE
        assert "claims to be a broker" not in caplog.text

    simulate(test, brokers=1)


def test_the_process_before_a_restart_is_refused_on_the_connection_that_it_has() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(FOLLOWER, EPOCH)
        await cluster.create("orders", [[1, FOLLOWER]])
        assert await cluster.prove(1, FOLLOWER, EPOCH) == ErrorCode.NONE
        assert await fetched(cluster, FOLLOWER, 0) == ErrorCode.NONE
        await cluster.register_stranger(FOLLOWER, EPOCH + 1)
        assert await fetched(cluster, FOLLOWER, 0) == REFUSED
        assert await cluster.prove(1, FOLLOWER, EPOCH) == ErrorCode.STALE_BROKER_EPOCH

    simulate(test, brokers=1)


# --- brokers among themselves


def test_brokers_prove_to_each_other_who_they_are(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3], [2, 3, 1]])
        await cluster.produce(1, b"a")
        await cluster.produce(2, b"b", number=1)
        assert peers_of(cluster, 1) >= {2, 3}
        assert peers_of(cluster, 2) >= {1, 3}

    with caplog.at_level(logging.INFO):
        simulate(test)
    assert "refuse" not in caplog.text
    assert "claims to be a broker" not in caplog.text


def test_no_two_starts_of_a_broker_have_the_same_verifier() -> None:
    async def test(cluster: Cluster) -> None:
        seen = {cluster.brokers[each].identity.verifier for each in (1, 2)}
        await cluster.stop(2)
        await cluster.start(2)
        seen.add(cluster.brokers[2].identity.verifier)
        assert len(seen) == 3
        assert cluster.brokers[1].metadata.image.brokers[2].verifier == cluster.brokers[2].identity.verifier

    simulate(test, brokers=2)


def test_a_follower_that_lost_its_session_proves_itself_on_a_new_connection() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        cut_off(cluster, 2)
        await cluster.until(lambda: 2 not in cluster.brokers[1].metadata.image.brokers)
        server = cluster.brokers[1].server
        former = list(server._connections)
        cluster.network.cut("broker-1", "broker-2")
        await asyncio.sleep(10)
        cluster.network.heal()
        await cluster.until(lambda: any(each.peer_broker == 2 for each in server._connections if each not in former))
        assert 2 not in cluster.brokers[1].metadata.image.brokers
        await cluster.produce(1, b"b", acks=1)
        await cluster.until_equal(1, 2)

    simulate(test, brokers=2, broker_session_timeout_ms="3000", replica_socket_timeout_ms="2000")


def test_below_the_level_nothing_is_refused_and_brokers_prove_themselves_all_the_same() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await finalize(cluster, 2, DOWNGRADE)
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.until(lambda: 2 in peers_of(cluster, 1))
        await cluster.produce(1, b"a")
        await cluster.until(lambda: cluster.partition(1).high_watermark == 1)
        assert await fetched(cluster, 2, 1) == ErrorCode.NONE
        await finalize(cluster, 3, UPGRADE)
        assert await fetched(cluster, 2, 1) == REFUSED
        await cluster.produce(1, b"b")
        await cluster.until_equal(1, 2)

    simulate(test, brokers=2)


def test_a_rolling_upgrade_begins_without_proofs_and_ends_with_them() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.supported[1] = cluster.supported[2] = OLDEST
        await cluster.start(1, 2)
        await cluster.create("orders", [[1, 2], [2, 1]])
        await cluster.produce(1, b"old")
        assert peers_of(cluster, 1) <= {None}
        for broker_id in (2, 1):
            await cluster.stop(broker_id)
            del cluster.supported[broker_id]
            await cluster.start(broker_id)
            await cluster.until(lambda: set(cluster.state(1).isr) == {1, 2})
            for number in (0, 1):
                leader = cluster.state(1, number=number).leader
                assert (await cluster.produce(leader, b"mixed", number=number)).error_code == ErrorCode.NONE
        await finalize(cluster, 3, UPGRADE)
        for number in (0, 1):
            leader = cluster.state(1, number=number).leader
            assert (await cluster.produce(leader, b"new", number=number)).error_code == ErrorCode.NONE
            await cluster.until_equal(1, 2, number=number)
        assert await fetched(cluster, 2, 0) == REFUSED

    simulate(test, brokers=0)
