"""An idempotent producer to several partitions at once, which sometimes changes its epoch, as Jepsen's clients do.

Each request goes to one leader and has a batch for each partition that it leads. A batch without a response is sent
again unchanged, to the leader at that time. When nothing is unanswered, it may take a new epoch, or be silent for so
long that brokers forget it, and then continue. The history gets all responses at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.record import NewRecord, build_batch
from tailrace.testing.cluster.client import ClusterClient, code_of
from tailrace.testing.cluster.history import ACKS_ALL, LOST, ClusterHistory, Promise, Violation
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.cluster.workload import (
    ANSWER_SECONDS,
    INIT_VERSION,
    NOT_NOW,
    PRODUCE_TIMEOUT_MS,
    PRODUCE_VERSION,
    RETRY_SECONDS,
    START_MS,
    topic_data,
)
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse

#: The probabilities, when nothing is unanswered, of a new epoch and of a long silence.
_NEW_EPOCH, _SILENCE = 0.05, 0.04
#: A broker may lag and refuse the first batch in line, but not for as long as this.
_REFUSED_SECONDS = 30.0


@dataclass(slots=True)
class _Batch:
    values: list[bytes]
    base_sequence: int
    sent_at: float | None = None


@dataclass(slots=True)
class _Lane:
    """The batches for one partition."""

    partition: TopicPartition
    next_number: int = 0
    next_sequence: int = 0
    unanswered: deque[_Batch] = field(default_factory=deque)
    refused_since: float | None = None


@dataclass(slots=True)
class RovingProducer:
    """One producer to several partitions."""

    name: str
    partitions: Sequence[TopicPartition]
    client: ClusterClient
    loop: SimLoop
    random: Random
    history: ClusterHistory
    watch: ClusterWatch
    min_insync_replicas: int
    pause_seconds: float
    #: How long it is silent, in seconds.
    silence_seconds: float
    #: The time without a response after which it gives up its records, and continues under another name.
    give_up_seconds: float
    is_stopping: bool = False
    acknowledged: int = 0
    new_epochs: int = 0
    silences: int = 0
    is_idempotent: bool = True
    sends_again: bool = True
    _lanes: list[_Lane] = field(default_factory=list)
    _producer_id: int = -1
    _epoch: int = -1
    _renamed: int = 0

    @property
    def is_done(self) -> bool:
        return self.is_stopping and not any(lane.unanswered for lane in self._lanes)

    async def run(self) -> None:
        """Produce until told to stop, and then until everything sent is acknowledged."""
        self._lanes = [_Lane(partition) for partition in self.partitions]
        while not self.is_done:
            try:
                await self._turn()
            except ConnectionError:
                for lane in self._lanes:
                    self.client.doubt(lane.partition)
                self._give_up()
                await asyncio.sleep(self.random.uniform(*RETRY_SECONDS))

    def _give_up(self) -> None:
        """Start over if brokers may have forgotten this producer."""
        sent = [batch.sent_at for lane in self._lanes for batch in lane.unanswered if batch.sent_at is not None]
        if sent and self.loop.time() - min(sent) > self.give_up_seconds:
            self._renamed += 1
            self._producer_id = self._epoch = -1
            for lane in self._lanes:
                lane.unanswered.clear()
                lane.refused_since = None

    async def _turn(self) -> None:
        if self._producer_id < 0:
            await self._take_identity()
        if not any(lane.unanswered for lane in self._lanes):
            await self._rest()
        if not self.is_stopping:
            for lane in self._lanes:
                if not lane.unanswered and self.random.random() < 0.7:
                    self._add_batch(lane)
        by_leader: dict[int, list[_Lane]] = {}
        for lane in self._lanes:
            if lane.unanswered:
                _, leader, _ = await self.client.leader_of(lane.partition)
                by_leader.setdefault(leader, []).append(lane)
        for leader, lanes in by_leader.items():
            await self._send(leader, lanes)
        await asyncio.sleep(self.random.expovariate(1 / self.pause_seconds))

    async def _rest(self) -> None:
        if self.is_stopping:
            return
        drawn = self.random.random()
        if drawn < _NEW_EPOCH:
            # Without a transaction no broker is asked: clients count epochs themselves (KIP-360).
            self._begin_epoch(self._epoch + 1)
            self.new_epochs += 1
        elif drawn < _NEW_EPOCH + _SILENCE:
            self.silences += 1
            await asyncio.sleep(self.silence_seconds)

    async def _take_identity(self) -> None:
        connection = await self.client.any_broker()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        response = await connection.call(request, INIT_VERSION, InitProducerIdResponse, ANSWER_SECONDS)
        if response.error_code:
            raise ConnectionError("no producer id yet")
        self._producer_id = response.producer_id
        self._begin_epoch(response.producer_epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Restart sequences at 0."""
        self._epoch = epoch
        for lane in self._lanes:
            lane.next_sequence = 0

    def _add_batch(self, lane: _Lane) -> None:
        first = lane.next_number
        lane.next_number += self.random.randint(1, 4)
        name = f"{self.name}~{self._renamed}"
        values = [f"{name}/{lane.partition}:{number}".encode() for number in range(first, lane.next_number)]
        self.history.sent.update(dict.fromkeys(values, name))
        lane.unanswered.append(_Batch(values, lane.next_sequence))
        lane.next_sequence += len(values)

    async def _send(self, leader: int, lanes: Sequence[_Lane]) -> None:
        connection, leader_now, _ = await self.client.leader_of(lanes[0].partition)
        if leader_now != leader:
            return
        now = self.loop.time()
        now_ms = START_MS + int(now * 1000)
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for lane in lanes:
            batch = lane.unanswered[0]
            batch.sent_at = now if batch.sent_at is None else batch.sent_at
            records = build_batch(
                [NewRecord(value, timestamp=now_ms) for value in batch.values],
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=batch.base_sequence,
            )
            data = PartitionProduceData(index=lane.partition.partition, records=records)
            by_topic.setdefault(lane.partition.topic, []).append(data)
        topics = [topic_data(self.client, topic, data) for topic, data in by_topic.items()]
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics)
        try:
            response = await connection.call(request, PRODUCE_VERSION, ProduceResponse, ANSWER_SECONDS)
        except ConnectionError:
            # Ignore further responses on this connection: requests in flight may still arrive.
            connection.close()
            raise
        codes: dict[TopicPartition, tuple[ErrorCode, int]] = {
            TopicPartition(topic.name, result.index): (code_of(result.error_code), result.base_offset)
            for topic in response.responses
            for result in topic.partition_responses
        }
        refused = [self._answered(lane, leader, *codes[lane.partition]) for lane in lanes]
        if any(refused):
            raise ConnectionError("must send again")

    def _answered(self, lane: _Lane, leader: int, code: ErrorCode, base_offset: int) -> bool:
        """Handle the response for one partition; return whether it was refused for now."""
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            since = lane.refused_since = self.loop.time() if lane.refused_since is None else lane.refused_since
            if self.loop.time() - since > _REFUSED_SECONDS:
                sequence = lane.unanswered[0].base_sequence
                raise Violation(LOST, f"{self.name}: {lane.partition} does not know what came before {sequence}")
            return True
        if code in NOT_NOW:
            return True
        if code is not ErrorCode.NONE:
            raise AssertionError(f"{self.name} was refused by {lane.partition}: {code.name}")
        lane.refused_since = None
        batch = lane.unanswered.popleft()
        self.acknowledged += 1
        assert batch.sent_at is not None
        for index, value in enumerate(batch.values):
            promise = Promise(
                f"{self.name}~{self._renamed}",
                lane.partition,
                value,
                base_offset + index,
                ACKS_ALL,
                leader,
                batch.sent_at,
                self.loop.time(),
            )
            self.history.acknowledged(promise)
            self.watch.check_holders(promise, self.min_insync_replicas)
        return False
