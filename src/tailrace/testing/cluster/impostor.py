"""A client that claims to be a replica with all of its leader's records: if trusted, it would move the high watermark.

It prefers in-sync replicas that are not fetching at the moment, since others would catch up too soon. It sees what no
client can: log ends, epochs, paused brokers. It must not know which part objects, nor whether it is trusted.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tailrace.cluster.broker_proof import NONCE_BYTES, PROOF_BYTES
from tailrace.cluster.image import NO_LEADER
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.testing.client import KafkaClient
from tailrace.testing.cluster.machines import ClusterNode, SimCluster
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.node import PORT
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse

_NAME = "impostor"
_FETCH_VERSION = 17
_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
#: How long it plays one replica, how often it fetches meanwhile, and how long it rests in between.
_PLAYED_SECONDS = (1.0, 6.0)
_PAUSE_SECONDS = 0.1
_REST_SECONDS = (1.0, 5.0)
#: How often it first sends an invented proof.
_PROOF_CHANCE = 0.5


class _Role(NamedTuple):
    """The replica that it plays, and its leader."""

    partition: TopicPartition
    leader: ClusterNode
    victim: ClusterNode


class Impostor:
    """Plays one replica after another."""

    def __init__(self, cluster: SimCluster, watch: ClusterWatch) -> None:
        self._cluster = cluster
        self._watch = watch
        self._random = cluster.loop.random_for(_NAME)

    async def run(self, until: float) -> None:
        """Play replicas for as long as faults are injected."""
        loop = self._cluster.loop
        while loop.time() < until:
            await asyncio.sleep(self._random.uniform(*_REST_SECONDS))
            role = self._choose()
            if role is not None:
                await self._play(role, loop.time() + self._random.uniform(*_PLAYED_SECONDS))

    def _choose(self) -> _Role | None:
        roles: list[_Role] = []
        silent: list[_Role] = []
        for partition in self._watch.states:
            state = self._watch.state(partition)
            if state is None or state.leader == NO_LEADER or partition.topic in self._watch.deleted:
                continue
            leader = self._cluster.node(state.leader)
            if not leader.is_serving or leader.is_paused:
                continue
            for broker_id in state.isr:
                if broker_id != state.leader:
                    victim = self._cluster.node(broker_id)
                    role = _Role(partition, leader, victim)
                    (roles if victim.is_serving and not victim.is_paused else silent).append(role)
        return self._random.choice(silent or roles) if silent or roles else None

    async def _play(self, role: _Role, until: float) -> None:
        client: KafkaClient | None = None
        try:
            network = self._cluster.network.host(_NAME)
            client = await KafkaClient.connect(network, role.leader.name, PORT, _NAME, _CONNECT_SECONDS)
            while self._cluster.loop.time() < until and client.is_open:
                if self._random.random() < _PROOF_CHANCE:
                    await self._prove(role, client)
                request = self._request(role)
                if request is None:
                    return
                await client.call(request, _FETCH_VERSION, FetchResponse, _ANSWER_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS)
        except OSError:
            pass  # the broker has failed, or has closed the connection because of a proof
        finally:
            if client is not None:
                client.close()

    async def _prove(self, role: _Role, client: KafkaClient) -> None:
        """Answer a challenge at random."""
        first = ProveBrokerRequest(
            broker_id=role.victim.broker_id,
            broker_epoch=_epoch_of(role),
            nonce=self._random.randbytes(NONCE_BYTES),
        )
        answer = await client.call(first, 0, ProveBrokerResponse, _ANSWER_SECONDS)
        if answer.error_code == ErrorCode.NONE:
            second = ProveBrokerRequest(proof=self._random.randbytes(PROOF_BYTES))
            await client.call(second, 0, ProveBrokerResponse, _ANSWER_SECONDS)

    def _request(self, role: _Role) -> FetchRequest | None:
        """Return what a follower with all of its leader's records would send; None if the leader no longer leads."""
        replica = self._replica_of(role)
        broker = role.leader.broker
        if replica is None or not replica.is_leader or broker is None:
            return None
        topic = broker.metadata.image.topics_by_lineage.get(replica.lineage)
        if topic is None:
            return None
        wanted = FetchPartition(
            partition=role.partition.partition,
            current_leader_epoch=replica.leader_epoch,
            fetch_offset=replica.log.end_offset,
            log_start_offset=replica.log.start_offset,
            partition_max_bytes=1 << 20,
        )
        return FetchRequest(
            replica_state=ReplicaState(replica_id=role.victim.broker_id, replica_epoch=_epoch_of(role)),
            max_wait_ms=0,
            topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])],
        )

    def _replica_of(self, role: _Role) -> Partition | None:
        broker = role.leader.broker
        for replica in broker.partitions if broker is not None else ():
            if self._watch.key_of(replica) == role.partition:
                return replica
        return None


def _epoch_of(role: _Role) -> int:
    """Return the epoch in which a leader knows a replica's broker."""
    broker = role.leader.broker
    registered = None if broker is None else broker.metadata.last_registration(role.victim.broker_id)
    return -1 if registered is None else registered.epoch
