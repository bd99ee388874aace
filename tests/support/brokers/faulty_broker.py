"""Two brokers in threads that fail on purpose, by seed, as no real broker does on demand.

They keep one log for each partition and know a producer's batches by their sequence numbers, the last five of them, as
Kafka does. Before or after a batch is in the log they refuse it, move its partition to the other broker, or hang up. It
must not know the producer under test.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Sequence
from types import TracebackType

from tailrace.errors import ErrorCode
from tailrace.records.batch import BatchHeader, has_valid_crc, increment_sequence, read_header
from tailrace.records.record import Record, iterate_records
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import decode_request_header
from tailrace.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.response_header import encode_response_header

TOPIC = "orders"
PRODUCER_ID = 4711
_REMEMBERED = 5
_SERVED: tuple[type[Message], ...] = (ApiVersionsRequest, MetadataRequest, InitProducerIdRequest, ProduceRequest)
_FLEXIBLE_FROM = {int(kind.API_KEY): kind.FLEXIBLE_FROM for kind in _SERVED}

#: What may happen to a batch instead of append and acknowledgement.
FAULTS = ("refuse", "refuse after append", "move", "hang up", "hang up after append", "too large")


class _HangUpError(Exception):
    """End the connection without an answer."""


class PartitionLog:
    """The content of one partition, and the state of the producer."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.leader = 0
        self._next_sequence = 0
        self._remembered: list[int] = []

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch is there already."""
        return header.base_sequence in self._remembered

    def append(self, data: memoryview, header: BatchHeader) -> ErrorCode:
        """Accept a batch that follows the last one, recognize a duplicate, refuse any other."""
        if self.has(header):
            return ErrorCode.NONE
        if header.producer_id >= 0 and header.base_sequence != self._next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self._next_sequence = increment_sequence(self._next_sequence, header.record_count)
        if header.producer_id >= 0:
            self._remembered = [*self._remembered, header.base_sequence][-_REMEMBERED:]
        self.records += iterate_records(data, header)
        return ErrorCode.NONE


class FaultyBrokers:
    """Nodes 0 and 1 with one topic; use it in a `with` block."""

    def __init__(self, partitions: int, *, seed: int = 0, faults: Sequence[str] = (), rate: float = 0.0) -> None:
        self.logs = [PartitionLog() for _ in range(partitions)]
        self.faults_done: list[str] = []
        self._random = random.Random(seed)
        self._faults = faults
        self._rate = rate
        self._lock = threading.Lock()
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._connections: list[socket.socket] = []
        self._threads = [
            threading.Thread(target=self._accept, args=(node, listener))
            for node, listener in enumerate(self._listeners)
        ]

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return tuple(("127.0.0.1", listener.getsockname()[1]) for listener in self._listeners)

    def __enter__(self) -> FaultyBrokers:
        for thread in list(self._threads):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            # A thread that waits in accept is woken by this, and not by close.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # Nobody is there any more.
        for thread in self._threads:
            thread.join()

    def _accept(self, node: int, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(node, connection))
                self._threads.append(thread)
            thread.start()

    def _serve(self, node: int, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while prefix := stream.read(4):
                    (length,) = struct.unpack(">i", prefix)
                    body = memoryview(stream.read(length))
                    header, position = decode_request_header(body, _FLEXIBLE_FROM)
                    with self._lock:
                        answer = self._answer(node, header.api_key, header.api_version, body[position:])
                    flexible = header.api_key != ApiKey.API_VERSIONS and answer.is_flexible(header.api_version)
                    data = encode_response_header(header.correlation_id, flexible) + answer.encode(header.api_version)
                    connection.sendall(struct.pack(">i", len(data)) + data)
            except (_HangUpError, OSError):
                return

    def _answer(self, node: int, api_key: int, version: int, body: memoryview) -> Message:
        if api_key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=kind.API_KEY, min_version=kind.MIN_VERSION, max_version=kind.MAX_VERSION)
                    for kind in _SERVED
                ]
            )
        if api_key == ApiKey.METADATA:
            return self._metadata()
        if api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0)
        assert api_key == ApiKey.PRODUCE
        request = ProduceRequest.decode(version, body)
        (topic,) = request.topic_data
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(
                            index=part.index,
                            error_code=self._produce(node, self.logs[part.index], memoryview(part.records or b"")),
                            base_offset=0,
                        )
                        for part in topic.partition_data
                    ],
                )
            ]
        )

    def _produce(self, node: int, log: PartitionLog, data: memoryview) -> ErrorCode:
        header = read_header(data)
        assert header.size == len(data)
        assert has_valid_crc(data, header)
        if log.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        fault = self._random.choice(self._faults) if self._faults and self._random.random() < self._rate else "none"
        self.faults_done.append(fault)
        if fault == "refuse":
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if fault == "move":
            log.leader = 1 - node
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fault == "hang up":
            raise _HangUpError
        # One that is in the log already cannot have been too large for it.
        if fault == "too large" and header.record_count > 1 and not log.has(header):
            return ErrorCode.MESSAGE_TOO_LARGE
        if fault == "too large, even alone":
            return ErrorCode.MESSAGE_TOO_LARGE
        if fault == "invalid":
            return ErrorCode.INVALID_RECORD
        code = log.append(data, header)
        if fault == "hang up after append":
            raise _HangUpError
        if fault == "refuse after append" and code == ErrorCode.NONE:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return code

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node, host=host, port=port)
                for node, (host, port) in enumerate(self.bootstrap)
            ],
            topics=[
                MetadataResponseTopic(
                    name=TOPIC,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index, leader_id=log.leader, replica_nodes=[0, 1], isr_nodes=[0, 1]
                        )
                        for index, log in enumerate(self.logs)
                    ],
                )
            ],
        )
