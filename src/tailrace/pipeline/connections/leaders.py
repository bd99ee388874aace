"""Who leads which partition, asked of any broker that answers, and a producer's identity.

Owns the addresses: those the user gave, then those the cluster named. Every question is patient for as long as it is
told to be, and then says what was in the way. It must not know records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from tailrace.errors import ErrorCode, WireError
from tailrace.pipeline.connections.pipelined_connection import PipelinedConnection
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")

#: Versions that every Kafka since 2.1 serves and that are encoded plainly.
_METADATA_VERSION = 7
_INIT_PRODUCER_ID_VERSION = 1
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
_PAUSE_SECONDS = 0.1
#: How long a topic may take to come into being after the first question has made the broker create it.
CREATION_SECONDS = 5.0
_NOT_YET = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class _NotYetError(Exception):
    """The answer is one that may be another soon."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What a broker knows a producer's batches by."""

    producer_id: int
    epoch: int


class Leaders:
    """The cluster as a producer needs to see it; what it says is as old as the last `refresh`."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._addresses: dict[int, tuple[str, int]] = {}
        self._partitions: dict[str, list[int | None]] = {}
        self._connection: PipelinedConnection | None = None

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; asked for once, patiently where it is just being created."""
        if topic not in self._partitions:
            self.refresh([topic], self._settings.max_block_ms / 1000)
        return len(self._partitions[topic])

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition, if it is known and the partition has one."""
        nodes = self._partitions.get(topic, [])
        return nodes[partition] if partition < len(nodes) else None

    def address(self, node: int) -> tuple[str, int]:
        """Where a node listens."""
        return self._addresses[node]

    def forget(self) -> None:
        """Ask again about every topic when it is next needed."""
        self._partitions.clear()

    def refresh(self, topics: Iterable[str], patience: float) -> None:
        """Ask again about these topics; UnknownTopicError, UnreachableBrokerError where that does not help."""
        names = list(topics)
        deadline = time.monotonic() + min(patience, CREATION_SECONDS)

        def look(connection: PipelinedConnection) -> None:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
            self._take(
                connection.ask(request, _METADATA_VERSION, MetadataResponse), is_last=time.monotonic() >= deadline
            )

        self._ask(look, patience)

    def identify(self, patience: float) -> ProducerIdentity:
        """A producer id that nobody else has."""

        def ask(connection: PipelinedConnection) -> ProducerIdentity:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
            answer = connection.ask(request, _INIT_PRODUCER_ID_VERSION, InitProducerIdResponse)
            if answer.error_code != ErrorCode.NONE:
                raise _NotYetError(f"no producer id: {_name(answer.error_code)}")
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        return self._ask(ask, patience)

    def close(self) -> None:
        """Let go of the connection that questions were asked over."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take(self, answer: MetadataResponse, *, is_last: bool) -> None:
        alive = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        # Others are kept: they may still lead partitions of topics that nobody has asked about since.
        self._addresses.update(alive)
        for topic in answer.topics:
            name, code = topic.name or "", topic.error_code
            if code in _NOT_YET and not is_last:
                raise _NotYetError(f"topic '{name}': {_name(code)}")
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicError(f"topic '{name}' does not exist; create it with: tailrace topic create {name}")
            if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise UnknownTopicError(f"'{name}' cannot be the name of a topic")
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise SourceError(f"topic '{name}' cannot be written to: {_name(code)}")
            nodes: list[int | None] = [None] * len(topic.partitions)
            for partition in topic.partitions:
                nodes[partition.partition_index] = partition.leader_id if partition.leader_id in alive else None
            self._partitions[name] = nodes

    def _ask(self, question: Callable[[PipelinedConnection], T], patience: float) -> T:
        deadline = time.monotonic() + patience
        while True:
            try:
                return question(self._connected(deadline))
            except (OSError, WireError) as error:
                self.close()
                reason: Exception = error
            except _NotYetError as error:
                reason = error
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                raise UnreachableBrokerError(_unreachable(self._settings.servers, reason)) from reason
            time.sleep(_PAUSE_SECONDS)

    def _connected(self, deadline: float) -> PipelinedConnection:
        if self._connection is not None:
            return self._connection
        failure: OSError = ConnectionError("no address given")
        for host, port in dict.fromkeys((*self._settings.bootstrap, *self._addresses.values())):
            try:
                self._connection = PipelinedConnection(
                    host,
                    port,
                    client_id=self._settings.client_id,
                    connect_timeout=min(
                        self._settings.connect_timeout_ms / 1000, max(0.1, deadline - time.monotonic())
                    ),
                    timeout=self._settings.request_timeout_ms / 1000,
                )
            except OSError as error:
                failure = error
            else:
                return self._connection
        raise failure


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _unreachable(servers: str, reason: Exception) -> str:
    if isinstance(reason, WireError):
        return f"what listens at {servers} does not answer as a broker ({reason})"
    why = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return f"cannot reach a broker at {servers} ({why.lower()}); is one running? start it with: tailrace serve"
