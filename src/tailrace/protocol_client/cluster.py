"""A cluster as its brokers describe it: brokers, leaders and coordinators.

Owns the addresses, one connection to each broker it has asked, and the retries: while a leader moves or a broker
restarts, it asks again until a deadline. Its view of topics is as old as the response that brought it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from tailrace.errors import ErrorCode
from tailrace.model import TopicId, TopicPartition
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import (
    ConnectFailedError,
    ConnectionFailure,
    MalformedAnswerError,
    NotABrokerError,
    ProtocolClientError,
    RetriableError,
    UnknownPartitionError,
    UnreachableClusterError,
    refusal,
)
from tailrace.protocol_client.retries import retry
from tailrace.protocol_client.settings import Address, ClusterSettings, join_address, split_addresses
from tailrace.protocol_client.versions import Versions
from tailrace.wire.codec import Message
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Answer = TypeVar("Answer", bound=Message)
T = TypeVar("T")

#: From 4 on, a request says whether it may create topics; from 10 on, topics have ids; 12 would take ids in requests.
_METADATA = Versions(4, 10)
#: From 4 on, keys are a list.
_FIND_COORDINATOR = Versions(4, 4)
_SHORTEST_CONNECT_SECONDS = 0.1
#: The key type of groups.
GROUP = 0


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic, or the error code that a broker returned for it."""

    topic_id: TopicId
    is_internal: bool
    error_code: int
    #: The address of each partition's leader; None if it has none.
    leaders: Mapping[int, Address | None]


@dataclass(frozen=True, slots=True)
class CoordinatorLocation:
    """The broker that coordinates a key."""

    node_id: int
    address: Address


class Cluster:
    """A cluster behind its bootstrap addresses; a context manager."""

    def __init__(self, settings: ClusterSettings, *, reached: bool = False) -> None:
        """Pass `reached` if another process has reached the cluster: retries then last longer from the start."""
        self._settings = settings
        self._bootstrap = split_addresses(settings.bootstrap)
        self._connections: dict[Address, BrokerConnection] = {}
        self._others: list[Address] = []
        self._reached = reached
        #: If a retry has its own time limit, connection attempts do not last much longer than that.
        self._deadline = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; later requests open new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- requests

    def connect(self, address: Address) -> BrokerConnection:
        """Return the connection to a broker, opening it if necessary."""
        connection = self._connections.get(address)
        if connection is None:
            timeout = self._settings.connection.connect_timeout_ms / 1000
            timeout = min(timeout, max(_SHORTEST_CONNECT_SECONDS, self._deadline - time.monotonic()))
            connection = BrokerConnection(address, self._settings.connection, connect_timeout=timeout)
            self._connections[address] = connection
        return connection

    def drop(self, address: Address) -> None:
        """Close and forget a connection that failed."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def ask(self, address: Address, request: Message, usable: Versions, kind: type[Answer]) -> Answer:
        """Send a request to one broker; drop the connection if it fails."""
        try:
            answer = self.connect(address).ask(request, usable, kind)
        except ConnectionFailure:
            self.drop(address)
            raise
        self._reached = True
        return answer

    def ask_any(self, request: Message, usable: Versions, kind: type[Answer]) -> Answer:
        """Ask brokers until one answers, connected ones first; the request may be executed more than once."""
        addresses = dict.fromkeys([*self._connections, *self._bootstrap, *self._others])
        return first_of(
            self._settings.bootstrap, addresses, lambda address, _: self.ask(address, request, usable, kind)
        )

    def retry(self, look: Callable[[], T], seconds: float | None = None) -> T:
        """Retry until there is no retriable error, or the time is over: then raise the last error."""
        settings = self._settings

        def patience(error: RetriableError | UnreachableClusterError) -> float:
            if seconds is not None:
                return seconds
            is_new = isinstance(error, UnreachableClusterError) and not self._reached
            return (settings.first_contact_ms if is_new else settings.api_timeout_ms) / 1000

        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        try:
            return retry(look, patience, settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)
        finally:
            self._deadline = math.inf

    # --- cluster state

    def topics(self, names: Iterable[str] | None, *, may_create: bool = False) -> dict[str, TopicState]:
        """Return the state of topics, all of them if None, including those that do not exist or are refused."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create)
        answer = self.ask_any(request, _METADATA, MetadataResponse)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._others = list(addresses.values())
        return {
            topic.name or "": TopicState(
                topic.topic_id,
                topic.is_internal,
                topic.error_code,
                {one.partition_index: addresses.get(one.leader_id) for one in topic.partitions},
            )
            for topic in answer.topics
        }

    def coordinator(self, key: str, key_type: int = GROUP) -> CoordinatorLocation:
        """Return the broker that coordinates a key, such as a group; retries while the coordinator starts or moves."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])

        def look() -> CoordinatorLocation:
            answer = self.ask_any(request, _FIND_COORDINATOR, FindCoordinatorResponse)
            found = next((each for each in answer.coordinators if each.key == key), None)
            if found is None:
                raise RetriableError(f"the broker did not name the coordinator of '{key}'")
            if found.error_code != ErrorCode.NONE:
                raise refusal(found.error_code, f"the coordinator of '{key}'")
            return CoordinatorLocation(found.node_id, (found.host, found.port))

        return self.retry(look)


def leader_in(topics: Mapping[str, TopicState], name: TopicPartition) -> Address:
    """Return the address of a partition's leader; UnknownPartitionError, or RetriableError if it has none now."""
    state = topics.get(name.topic)
    if state is None or name.partition not in state.leaders:
        raise UnknownPartitionError(name)
    leader = state.leaders[name.partition]
    if leader is None:
        raise RetriableError(f"partition {name} has no leader")
    return leader


def first_of(
    bootstrap: str,
    addresses: Iterable[Address],
    attempt: Callable[[Address, float], T],
    seconds: float = math.inf,
) -> T:
    """Return the result of the first address that succeeds; each attempt gets the remaining time."""
    deadline = time.monotonic() + seconds
    failures: dict[Address, ConnectionFailure] = {}
    for address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            failures[address] = ConnectFailedError("not tried, no time was left")
            continue
        try:
            return attempt(address, left)
        except ConnectionFailure as error:
            failures[address] = error
    raise _unreachable(bootstrap, failures)


def _unreachable(bootstrap: str, failures: Mapping[Address, ConnectionFailure]) -> ProtocolClientError:
    if len(failures) == 1:
        (reason,) = map(str, failures.values())
    else:
        reason = "; ".join(f"{join_address(address)}: {failure}" for address, failure in failures.items())
    if all(isinstance(failure, MalformedAnswerError) for failure in failures.values()):
        return NotABrokerError(f"the server at {bootstrap} does not answer like a Kafka broker ({reason})")
    return UnreachableClusterError(
        f"cannot reach a broker at {bootstrap} ({reason}); is one running? start it with: tailrace serve"
    )
