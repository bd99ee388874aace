"""Producers for a simulated broker, and the record of everything they were promised.

Each producer sends numbered records and notes what was acknowledged, where and when; the checkers compare that with
what a reader finds. A producer behaves like a client library: it keeps several batches in flight, and after a lost
connection it sends batches without a response again, in order.
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
from tailrace.records.record import NewRecord, Record, build_batch, iterate_records
from tailrace.runtime.disk import FileRange
from tailrace.runtime.transport import Network
from tailrace.testing.client import KafkaClient
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS_ALL = -1
_RETRY_SECONDS = 0.05
_IN_FLIGHT = 5
_PRODUCE_VERSION = 9
_FETCH_VERSION = 12
_INIT_VERSION = 4
_RETRIABLE = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CORRUPT_MESSAGE,
)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that was acknowledged to a producer."""

    value: bytes
    offset: int
    #: When the response arrived, and when its connection was opened: a response may arrive after its broker has died.
    at: float
    connected_at: float


@dataclass(slots=True)
class _Batch:
    values: list[bytes]
    base_sequence: int
    producer_id: int
    producer_epoch: int

    def encode(self, random: Random, now_ms: int) -> bytearray:
        return build_batch(
            [NewRecord(value, timestamp=now_ms) for value in self.values],
            compression=random.choice((Compression.NONE, Compression.LZ4)),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )


@dataclass(slots=True)
class SimProducer:
    """One producer to one partition."""

    name: str
    partition: TopicPartition
    is_idempotent: bool
    network: Network
    host: str
    port: int
    loop: SimLoop
    random: Random
    acknowledged: list[Acknowledged] = field(default_factory=list)
    #: Everything ever sent in a request, in order.
    sent: list[bytes] = field(default_factory=list)
    is_stopping: bool = False
    #: The mean pause after a response; batches in flight are sent without one.
    pause_seconds: float = 0.1
    _unanswered: deque[_Batch] = field(default_factory=deque)
    _producer_id: int = -1
    _next_sequence: int = 0
    _connected_at: float = 0.0

    async def run(self) -> None:
        """Produce until told to stop, and then until everything sent is acknowledged."""
        while not (self.is_stopping and not self._unanswered):
            try:
                client = await KafkaClient.connect(self.network, self.host, self.port, self.name)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._connected_at = self.loop.time()
            try:
                await self._produce(client)
            except ConnectionError:
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                client.close()

    async def _produce(self, client: KafkaClient) -> None:
        if self.is_idempotent and self._producer_id < 0:
            await self._take_identity(client)
        in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]] = deque(
            (batch, self._send(client, batch)) for batch in self._unanswered
        )
        try:
            await self._keep_in_flight(client, in_flight)
        finally:
            for _, future in in_flight:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # it will be sent again

    async def _keep_in_flight(
        self, client: KafkaClient, in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]]
    ) -> None:
        while True:
            while len(in_flight) < _IN_FLIGHT and not self.is_stopping:
                batch = self._new_batch()
                in_flight.append((batch, self._send(client, batch)))
                if self.random.random() < 0.3:
                    break
            if not in_flight:
                return
            batch, future = in_flight.popleft()
            try:
                async with asyncio.timeout(60):
                    body = await future
            except TimeoutError:
                raise ConnectionError("no answer") from None
            if not self._answered(batch, ProduceResponse.decode(_PRODUCE_VERSION, body)):
                raise ConnectionError("must send again")
            await asyncio.sleep(self.random.expovariate(1 / self.pause_seconds))

    async def _take_identity(self, client: KafkaClient) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        response = await client.call(request, _INIT_VERSION, InitProducerIdResponse)
        if response.error_code:
            raise ConnectionError("no producer id yet")
        self._producer_id, self._next_sequence = response.producer_id, 0
        for batch in self._unanswered:
            batch.producer_id, batch.base_sequence = self._producer_id, self._next_sequence
            self._next_sequence += len(batch.values)

    def _new_batch(self) -> _Batch:
        first = len(self.sent)
        values = [f"{self.name}:{first + index}".encode() for index in range(self.random.randint(1, 5))]
        self.sent += values
        batch = _Batch(values, -1, -1, -1)
        if self.is_idempotent:
            batch = _Batch(values, self._next_sequence, self._producer_id, 0)
            self._next_sequence += len(values)
        self._unanswered.append(batch)
        return batch

    def _send(self, client: KafkaClient, batch: _Batch) -> asyncio.Future[memoryview]:
        if self.is_idempotent:
            batch.producer_epoch = 0
        records = batch.encode(self.random, 1_700_000_000_000 + int(self.loop.time() * 1000))
        topic, number = self.partition
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=number, records=records)])
            ],
        )
        return client.send(request, _PRODUCE_VERSION)

    def _answered(self, batch: _Batch, response: ProduceResponse) -> bool:
        result = response.responses[0].partition_responses[0]
        if result.error_code == ErrorCode.NONE:
            assert self._unanswered[0] is batch
            self._unanswered.popleft()
            for index, value in enumerate(batch.values):
                offset = result.base_offset + index
                self.acknowledged.append(Acknowledged(value, offset, self.loop.time(), self._connected_at))
            return True
        if result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Records acknowledged under a weaker flush policy are gone after the power failure: start over.
            self._producer_id = -1
            return False
        if result.error_code in _RETRIABLE:
            return False
        raise AssertionError(f"{self.name} was refused: {ErrorCode(result.error_code).name} {result.error_message}")


async def read_partition(client: KafkaClient, partition: TopicPartition, max_bytes: int = 1 << 16) -> list[Record]:
    """Return everything that a consumer can read of a partition, from offset 0 on."""
    records: list[Record] = []
    offset = 0
    while True:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=partition.topic,
                    partitions=[
                        FetchPartition(
                            partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
                        )
                    ],
                )
            ],
        )
        response = await client.call(request, _FETCH_VERSION, FetchResponse)
        data = response.responses[0].partitions[0]
        if data.error_code:
            raise AssertionError(f"{partition} at {offset}: {ErrorCode(data.error_code).name}")
        assert data.records is not None
        assert not isinstance(data.records, FileRange)
        batches = list(iterate_batches(data.records))
        if not batches:
            assert offset == data.high_watermark, f"{partition}: nothing at {offset}, below {data.high_watermark}"
            return records
        for position, header in batches:
            assert has_valid_crc(data.records, header, position), (
                f"{partition}: a corrupt batch at {header.base_offset}"
            )
            records += [record for record in iterate_records(data.records, header, position) if record.offset >= offset]
            offset = header.next_offset
