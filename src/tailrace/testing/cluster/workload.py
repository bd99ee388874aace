"""Clients of a simulated cluster: producers that keep sending, consumers that keep reading, and topic creation.

Each behaves like a client library: it finds leaders, keeps batches in flight, and retries batches without a response.
The history gets all responses at once. A producer that retries keeps its name; one that does not takes another name
after each failure, so that under one name no record can be repeated or late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.batch import has_valid_crc, iterate_batches
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.runtime.disk import FileRange
from tailrace.testing.client import KafkaClient
from tailrace.testing.cluster.client import ClusterClient, code_of
from tailrace.testing.cluster.history import ACKS_ALL, BEYOND, CORRUPT, LOST, ORDER, ClusterHistory, Promise, Violation
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tailrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

START_MS = 1_700_000_000_000
RETRY_SECONDS = (0.05, 0.4)
ANSWER_SECONDS = 8.0
PRODUCE_TIMEOUT_MS = 5_000
_IN_FLIGHT = 5
PRODUCE_VERSION = 9
_PRODUCE_BY_ID_VERSION = 13
_FETCH_VERSION = 12
_FETCH_BY_ID_VERSION = 13
INIT_VERSION = 4
_CREATE_TOPICS_VERSION = 7
_CREATE_PARTITIONS_VERSION = 3
_CONTROL_BIT = 0x20
#: A deposed leader that does not know it may refuse an idempotent producer, but not for as long as this.
_STALE_SECONDS = 60.0
NOT_NOW = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
#: How a change of topics may be refused for now: too few brokers, a store that is down or calls it too large, no lease.
_NOT_CHANGED_NOW = (
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.POLICY_VIOLATION,
    *NOT_NOW,
)
_FETCH_ELSEWHERE = (
    *NOT_NOW,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)


@dataclass(slots=True)
class _Batch:
    values: list[bytes]
    base_sequence: int
    #: When it was first sent: replicas may have it since then, whichever response arrives.
    sent_at: float | None = None


@dataclass(slots=True)
class ClusterProducer:
    """One producer to one partition."""

    name: str
    partition: TopicPartition
    acks: int
    #: Whether brokers recognize duplicates; such a producer keeps several batches in flight.
    is_idempotent: bool
    client: ClusterClient
    loop: SimLoop
    random: Random
    history: ClusterHistory
    watch: ClusterWatch
    min_insync_replicas: int
    pause_seconds: float
    #: The time without a response after which it gives up its records, and continues under another name; None for
    #: never.
    give_up_seconds: float | None = None
    is_stopping: bool = False
    #: The numbers of acknowledged batches and of failures.
    acknowledged: int = 0
    failures: int = 0
    _unanswered: deque[_Batch] = field(default_factory=deque)
    _numbers_used: int = 0
    _renamed: int = 0
    _producer_id: int = -1
    _next_sequence: int = 0
    _refused_since: float | None = None

    @property
    def sends_again(self) -> bool:
        return self.acks == ACKS_ALL

    @property
    def is_done(self) -> bool:
        return self.is_stopping and not self._unanswered

    async def run(self) -> None:
        """Produce until told to stop, and then until everything sent is acknowledged."""
        while not self.is_done:
            try:
                await self._produce()
            except ConnectionError:
                self.failures += 1
                self.client.doubt(self.partition)
                if not self.sends_again or self._has_waited_too_long():
                    self._unanswered.clear()
                    self._renamed += 1
                    self._producer_id, self._next_sequence = -1, 0
                await asyncio.sleep(self.random.uniform(*RETRY_SECONDS))

    def _has_waited_too_long(self) -> bool:
        """True if brokers may have forgotten the producer because it has retried for so long."""
        if self.give_up_seconds is None or not self._unanswered:
            return False
        sent_at = self._unanswered[0].sent_at
        return sent_at is not None and self.loop.time() - sent_at > self.give_up_seconds

    async def _produce(self) -> None:
        connection, leader, _ = await self.client.leader_of(self.partition)
        if self.is_idempotent and self._producer_id < 0:
            await self._take_identity(connection)
        in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]] = deque(
            (batch, self._send(connection, batch)) for batch in self._unanswered
        )
        try:
            await self._keep_in_flight(connection, leader, in_flight)
        finally:
            for _, future in in_flight:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # it will be sent again, or given up

    async def _keep_in_flight(
        self, connection: KafkaClient, leader: int, in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]]
    ) -> None:
        # Without idempotence, only a single batch in flight keeps its order when it is retried.
        most = _IN_FLIGHT if self.is_idempotent or not self.sends_again else 1
        while True:
            while len(in_flight) < most and not self.is_stopping:
                batch = self._new_batch()
                in_flight.append((batch, self._send(connection, batch)))
                if self.random.random() < 0.5:
                    break
            if not in_flight:
                return
            batch, future = in_flight[0]
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    body = await asyncio.shield(future)
            except TimeoutError:
                # Ignore further responses on this connection: requests in flight may still arrive.
                connection.close()
                raise ConnectionError("no answer") from None
            in_flight.popleft()
            self._answered(batch, leader, ProduceResponse.decode(self._version, body))
            await asyncio.sleep(self.random.expovariate(1 / self.pause_seconds))

    async def _take_identity(self, connection: KafkaClient) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        response = await connection.call(request, INIT_VERSION, InitProducerIdResponse, ANSWER_SECONDS)
        if response.error_code:
            raise ConnectionError("no producer id yet")
        self._producer_id = response.producer_id

    def _new_batch(self) -> _Batch:
        name = f"{self.name}~{self._renamed}"
        first = self._numbers_used
        self._numbers_used += self.random.randint(1, 4)
        values = [f"{name}:{number}".encode() for number in range(first, self._numbers_used)]
        self.history.sent.update(dict.fromkeys(values, name))
        batch = _Batch(values, self._next_sequence if self.is_idempotent else -1)
        if self.is_idempotent:
            self._next_sequence += len(values)
        self._unanswered.append(batch)
        return batch

    def _send(self, connection: KafkaClient, batch: _Batch) -> asyncio.Future[memoryview]:
        now = self.loop.time()
        if batch.sent_at is None:
            batch.sent_at = now
        now_ms = START_MS + int(now * 1000)
        records = build_batch(
            [NewRecord(value, timestamp=now_ms) for value in batch.values],
            compression=self.random.choice((Compression.NONE, Compression.LZ4)),
            producer_id=self._producer_id if self.is_idempotent else -1,
            producer_epoch=0 if self.is_idempotent else -1,
            base_sequence=batch.base_sequence,
        )
        topic, number = self.partition
        data = topic_data(self.client, topic, [PartitionProduceData(index=number, records=records)])
        request = ProduceRequest(acks=self.acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[data])
        return connection.send(request, self._version)

    @property
    def _version(self) -> int:
        return _PRODUCE_BY_ID_VERSION if self.partition.topic in self.client.ids else PRODUCE_VERSION

    def _answered(self, batch: _Batch, leader: int, response: ProduceResponse) -> None:
        result = response.responses[0].partition_responses[0]
        code = code_of(result.error_code)
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.is_idempotent:
            self._refused(batch)
            raise ConnectionError("must send again")
        if code in NOT_NOW:
            raise ConnectionError(code.name)
        if code is not ErrorCode.NONE:
            raise AssertionError(f"{self.name} was refused: {code.name} {result.error_message}")
        self._refused_since = None
        assert self._unanswered[0] is batch
        assert batch.sent_at is not None
        self._unanswered.popleft()
        self.acknowledged += 1
        for index, value in enumerate(batch.values):
            promise = Promise(
                f"{self.name}~{self._renamed}",
                self.partition,
                value,
                result.base_offset + index,
                self.acks,
                leader,
                batch.sent_at,
                self.loop.time(),
            )
            self.history.acknowledged(promise)
            if self.acks != 1:
                self.watch.check_holders(promise, self.min_insync_replicas if self.acks == ACKS_ALL else self.acks)

    def _refused(self, batch: _Batch) -> None:
        """Handle a gap in the sequence: right after a refused batch, a bug if it lasts for the first in line."""
        if batch is not self._unanswered[0]:
            return
        if self._refused_since is None:
            self._refused_since = self.loop.time()
        elif self.loop.time() - self._refused_since > _STALE_SECONDS:
            raise Violation(
                LOST,
                f"{self.name}: the brokers do not know what was acknowledged before sequence {batch.base_sequence}",
            )


@dataclass(slots=True)
class ClusterConsumer:
    """Reads one partition from its start, for as long as it is told to."""

    name: str
    partition: TopicPartition
    client: ClusterClient
    loop: SimLoop
    random: Random
    history: ClusterHistory
    #: The probability, after each response, that it starts over.
    starts_over: float = 0.0
    #: Whether it starts at the first record again after the next response.
    shall_start_over: bool = False
    #: The offset that it reads next.
    offset: int = 0

    async def run(self) -> None:
        while True:
            try:
                await self._read()
            except ConnectionError:
                self.client.doubt(self.partition)
                await asyncio.sleep(self.random.uniform(*RETRY_SECONDS))

    async def _read(self) -> None:
        connection, leader, epoch = await self.client.leader_of(self.partition)
        topic, number = self.partition
        while True:
            asked_at = self.loop.time()
            wanted = FetchPartition(
                partition=number, current_leader_epoch=epoch, fetch_offset=self.offset, partition_max_bytes=1 << 16
            )
            topic_id = self.client.ids.get(topic)
            fetched = FetchTopic(topic=topic) if topic_id is None else FetchTopic(topic_id=topic_id)
            fetched.partitions = [wanted]
            request = FetchRequest(max_wait_ms=1000, min_bytes=1, session_epoch=-1, topics=[fetched])
            version = _FETCH_VERSION if topic_id is None else _FETCH_BY_ID_VERSION
            response = await connection.call(request, version, FetchResponse, ANSWER_SECONDS)
            data = response.responses[0].partitions[0]
            code = code_of(data.error_code)
            if code in _FETCH_ELSEWHERE or (code is ErrorCode.CORRUPT_MESSAGE and leader in self.history.rotten):
                raise ConnectionError(code.name)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._was_removed():
                continue
            if code is not ErrorCode.NONE:
                raise Violation(
                    LOST, f"{self.partition}: broker {leader} returned {code.name} at {self.offset} in epoch {epoch}"
                )
            self.history.high_watermark(
                self.partition, epoch, data.high_watermark, asked_at, f"b{leader} to a consumer"
            )
            self._take(data, leader)
            if self.shall_start_over or (self.starts_over and self.random.random() < self.starts_over):
                self.shall_start_over = False
                self.offset = 0
            await asyncio.sleep(self.random.uniform(0.0, 0.5))

    def _was_removed(self) -> bool:
        """Skip records that may have been deleted on request; return whether the next one may have been."""
        if self.history.may_lose(self.partition):
            self.offset = 0
            return True
        trimmed = self.history.trimmed.get(self.partition, 0)
        if self.offset >= trimmed:
            return False
        self.offset = trimmed
        return True

    def _take(self, data: PartitionData, leader: int) -> None:
        records = data.records
        assert records is not None
        assert not isinstance(records, FileRange)
        for position, header in iterate_batches(records):
            if not has_valid_crc(records, header, position):
                raise Violation(CORRUPT, f"{self.partition} at {header.base_offset} by b{leader}")
            if header.next_offset > data.high_watermark:
                raise Violation(
                    BEYOND, f"{self.partition}: up to {header.next_offset - 1} of {data.high_watermark} by b{leader}"
                )
            if not header.attributes & _CONTROL_BIT:
                for record in iterate_records(records, header, position):
                    if record.offset >= self.offset:
                        by = f"consumer {self.name} of b{leader}"
                        self.history.is_committed(self.partition, record.offset, record.key, record.value, by)
            if header.base_offset > self.offset and not self.history.may_lose(self.partition):
                raise Violation(ORDER, f"{self.partition}: read {header.base_offset}, expected {self.offset}")
            self.offset = max(self.offset, header.next_offset)


def topic_data(client: ClusterClient, topic: str, partitions: list[PartitionProduceData]) -> TopicProduceData:
    """Return the data for one topic, which is named as the client knows it."""
    topic_id = client.ids.get(topic)
    data = TopicProduceData(name=topic) if topic_id is None else TopicProduceData(topic_id=topic_id)
    data.partition_data = partitions
    return data


async def create_topic(client: ClusterClient, name: str, partitions: int, configs: dict[str, str]) -> None:
    """Create a topic with three replicas, however long it takes."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=3,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    while True:
        try:
            connection = await client.any_broker()
            response = await connection.call(
                CreateTopicsRequest(topics=[topic]), _CREATE_TOPICS_VERSION, CreateTopicsResponse, ANSWER_SECONDS
            )
            code = code_of(response.topics[0].error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            # Too few brokers are up, or the store is down, or calls it too large.
            assert code in _NOT_CHANGED_NOW, f"{name} was refused: {code.name}"
        except ConnectionError:
            pass
        await asyncio.sleep(0.5)


async def add_partitions(client: ClusterClient, name: str, count: int) -> None:
    """Increase the partitions of a topic to this number, however long it takes."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=5000
    )
    while client.partitions.get(name, 0) < count:
        try:
            connection = await client.any_broker()
            response = await connection.call(
                request, _CREATE_PARTITIONS_VERSION, CreatePartitionsResponse, ANSWER_SECONDS
            )
            code = code_of(response.results[0].error_code)
            expected = (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, *_NOT_CHANGED_NOW)
            assert code in expected, f"partitions of {name} were refused: {code.name}"
            await client.refresh(name)
        except ConnectionError:
            pass
        await asyncio.sleep(0.3)
