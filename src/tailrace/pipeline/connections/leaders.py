"""The leaders of partitions, as a producer needs them, and a producer's identity.

Owns what a producer knows about topics, and the errors for topics that cannot be written to. The protocol client owns
connections and retries. This module must not know records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from tailrace.errors import ErrorCode
from tailrace.pipeline.connections.brokers import source_errors
from tailrace.pipeline.failures import SourceError, UnknownTopicError
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.protocol_client.cluster import Cluster, TopicState
from tailrace.protocol_client.errors import RetriableError, error_name
from tailrace.protocol_client.settings import Address
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

T = TypeVar("T")

_INIT_PRODUCER_ID = Versions(0, 1)
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
#: How long a topic may take to be created after the first request has triggered it.
CREATION_SECONDS = 5.0
_NOT_YET = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch of a producer's batches."""

    producer_id: int
    epoch: int


class Leaders:
    """The cluster as a producer sees it, as of the last `refresh`."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._cluster = Cluster(settings.cluster)
        self._partitions: dict[str, list[Address | None]] = {}

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions; asks once, and waits if the topic is just being created."""
        if topic not in self._partitions:
            self.refresh([topic], self._settings.max_block_ms / 1000)
        return len(self._partitions[topic])

    def leader(self, topic: str, partition: int) -> Address | None:
        """Return the address of a partition's leader, if it is known and exists."""
        leaders = self._partitions.get(topic, [])
        return leaders[partition] if partition < len(leaders) else None

    def forget(self) -> None:
        """Ask again about every topic when it is next needed."""
        self._partitions.clear()

    def refresh(self, topics: Iterable[str], patience: float) -> None:
        """Ask again about these topics; UnknownTopicError or UnreachableBrokerError if that fails."""
        names = list(topics)
        deadline = time.monotonic() + min(patience, CREATION_SECONDS)

        def look() -> None:
            found = self._cluster.topics(names, may_create=True)
            is_last = time.monotonic() >= deadline
            for name, state in found.items():
                self._take(name, state, is_last=is_last)

        self._retry(f"looking up {', '.join(names) or 'brokers'}", look, patience)

    def identify(self, patience: float) -> ProducerIdentity:
        """Return a new producer id."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)

        def look() -> ProducerIdentity:
            answer = self._cluster.ask_any(request, _INIT_PRODUCER_ID, InitProducerIdResponse)
            if answer.error_code != ErrorCode.NONE:
                raise RetriableError(f"cannot get a producer id: {error_name(answer.error_code)}", answer.error_code)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        return self._retry("requesting a producer id", look, patience)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _take(self, name: str, state: TopicState, *, is_last: bool) -> None:
        code = state.error_code
        if code in _NOT_YET and not is_last:
            raise RetriableError(f"topic '{name}': {error_name(code)}", code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopicError(f"topic '{name}' does not exist; create it with: tailrace topic create {name}")
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise UnknownTopicError(f"'{name}' cannot be the name of a topic")
        if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise SourceError(f"cannot write to topic '{name}': {error_name(code)}")
        self._partitions[name] = [state.leaders[number] for number in range(len(state.leaders))]

    def _retry(self, doing: str, look: Callable[[], T], patience: float) -> T:
        with source_errors(doing):
            return self._cluster.retry(look, patience)
