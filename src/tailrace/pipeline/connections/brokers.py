"""Questions to the brokers of a cluster over blocking sockets: who leads what, and where partitions begin and end.

Owns connections, and the patience with leaders that move and brokers that start again: whatever passes by itself is
asked again until a deadline. Versions are ones that Kafka has served for years; nothing is negotiated.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tailrace.errors import ErrorCode, WireError
from tailrace.model import ZERO_UUID, TopicPartition
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.source.client_settings import ClientSettings, split_address
from tailrace.pipeline.source.offsets import Offsets
from tailrace.pipeline.source.options import Selection
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Answer = TypeVar("Answer", bound=Message)
T = TypeVar("T")

_METADATA_VERSION = 10
_LIST_OFFSETS_VERSION = 5
_DESCRIBE_CONFIGS_VERSION = 1
_TOPIC_RESOURCE = 2
_LENGTH_BYTES = 4
_MAX_ANSWER_BYTES = 1 << 30
#: A cluster that was never reached is given up sooner than one that was: the address is probably wrong.
_FIRST_CONTACT_SECONDS = 5.0
#: What passes by itself: a leader moves, a broker starts or loads.
PASSING = frozenset(
    (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)


class PassingError(Exception):
    """Something that is worth another try; the text says what."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's id and the broker that leads each of its partitions, None where nobody does."""

    topic_id: UUID
    leaders: Mapping[int, tuple[str, int] | None]


class BrokerConnection:
    """One connection to one broker, with answers in the order of questions."""

    def __init__(self, address: tuple[str, int], settings: ClientSettings) -> None:
        self.address = address
        self._settings = settings
        self._correlation_id = 0
        self._buffer = bytearray()
        self._timeout = settings.request_timeout_ms / 1000
        self._socket = socket.create_connection(address, timeout=settings.connect_timeout_ms / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.receive_buffer_bytes > 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Message, version: int, kind: type[Answer]) -> Answer:
        """Send one question and wait for its answer."""
        self.send(request, version)
        return kind.decode(version, self.receive(request.is_flexible(version)))

    def send(self, request: Message, version: int) -> None:
        """Send a question whose answer is received later."""
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._settings.client_id)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(encode_request(header, request.is_flexible(version), request.encode(version)))

    def receive(self, flexible: bool) -> memoryview:
        """The body of the next answer, a view of the buffer that the next answer overwrites."""
        deadline = time.monotonic() + self._timeout
        prefix = bytearray(_LENGTH_BYTES)
        self._fill(memoryview(prefix), deadline)
        length = int.from_bytes(prefix, "big", signed=True)
        if not 0 <= length <= _MAX_ANSWER_BYTES:
            raise WireError(f"an answer of {length} bytes")
        if len(self._buffer) < length:
            self._buffer = bytearray(length + length // 8)
        answer = memoryview(self._buffer)[:length]
        self._fill(answer, deadline)
        correlation_id, position = decode_response_header(answer, flexible)
        if correlation_id != self._correlation_id:
            raise WireError(f"an answer to question {correlation_id}")
        return answer[position:]

    @property
    def buffer(self) -> bytearray:
        """Where the last answer is."""
        return self._buffer

    def _fill(self, target: memoryview, deadline: float) -> None:
        filled = 0
        while filled < len(target):
            # One call that waits for all of it costs less than many that take what is there.
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            received = self._socket.recv_into(target[filled:])
            if not received:
                raise ConnectionError("the connection was closed")
            filled += received


class Brokers:
    """A cluster behind its bootstrap addresses."""

    def __init__(self, settings: ClientSettings, *, reached: bool = False) -> None:
        """Where the cluster is `reached` already by somebody else, more patience is right from the beginning."""
        self._settings = settings
        self._bootstrap = [split_address(address) for address in settings.bootstrap.split(",")]
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._others: list[tuple[str, int]] = []
        self._reached = reached

    def close(self) -> None:
        """Close all connections; questions that come later open new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connect(self, address: tuple[str, int]) -> BrokerConnection:
        """The connection to a broker, opened if it is not there."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(address, self._settings)
        return connection

    def drop(self, address: tuple[str, int]) -> None:
        """Forget a connection that did not do well."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def patiently(self, doing: str, look: Callable[[], T], *, passing_means: type[SourceError] = SourceError) -> T:
        """Look again until nothing is in the way that passes by itself, or the time is up."""
        begun = time.monotonic()
        while True:
            try:
                return look()
            except UnreachableBrokerError:
                patience = self._settings.api_timeout_ms / 1000 if self._reached else _FIRST_CONTACT_SECONDS
                if time.monotonic() - begun >= patience:
                    raise
            except PassingError as error:
                if time.monotonic() - begun >= self._settings.api_timeout_ms / 1000:
                    raise passing_means(f"{doing} failed: {error}") from None
            time.sleep(self._settings.retry_backoff_ms / 1000)

    def topics(self, names: tuple[str, ...] | None) -> dict[str, TopicState]:
        """The topics of these names, or all that are not internal; those that do not exist are left out."""
        return self.patiently("looking up topics", lambda: self._topics(names))

    def _topics(self, names: tuple[str, ...] | None) -> dict[str, TopicState]:
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.ask_any(request, _METADATA_VERSION, MetadataResponse)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._others = list(addresses.values())
        found: dict[str, TopicState] = {}
        for topic in answer.topics:
            if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                continue
            name = topic.name or ""
            if topic.error_code:
                raise _refusal(topic.error_code, f"topic '{name}'")
            if names is None and topic.is_internal:
                continue
            found[name] = TopicState(
                topic.topic_id,
                {one.partition_index: addresses.get(one.leader_id) for one in topic.partitions},
            )
        return found

    def ask_any(self, request: Message, version: int, kind: type[Answer]) -> Answer:
        """Ask any broker that answers, those with a connection first."""
        reason = "no address given"
        for address in dict.fromkeys([*self._connections, *self._bootstrap, *self._others]):
            try:
                answer = self.connect(address).ask(request, version, kind)
            except WireError as error:
                self.drop(address)
                raise SourceError(
                    f"what listens at {self._settings.bootstrap} does not answer as a broker ({error})"
                ) from None
            except OSError as error:
                self.drop(address)
                reason = (error.strerror or str(error)).lower()
            else:
                self._reached = True
                return answer
        raise UnreachableBrokerError(
            f"cannot reach a broker at {self._settings.bootstrap} ({reason}); is one running? "
            "start it with: tailrace serve"
        )

    def topic_setting(self, topic: str, key: str) -> str | None:
        """The value of a topic's setting; None where these brokers do not know it, or do not tell."""
        resource = DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[key])
        request = DescribeConfigsRequest(resources=[resource])
        answer = self.ask_any(request, _DESCRIBE_CONFIGS_VERSION, DescribeConfigsResponse)
        found = [one.value for result in answer.results for one in result.configs if one.name == key]
        return found[0] if found else None

    def partitions(self, selection: Selection) -> dict[TopicPartition, UUID]:
        """The partitions that are selected and exist, each with its topic's id."""
        if selection.pattern is not None:
            # As Spark's Kafka connector does it: found anywhere in the name.
            pattern = re.compile(selection.pattern)
            topics = {name: state for name, state in self.topics(None).items() if pattern.search(name)}
        else:
            names = selection.topics or tuple(dict.fromkeys(name.topic for name in selection.assigned))
            topics = self.topics(names)
        found = {
            TopicPartition(topic, partition): state.topic_id
            for topic, state in sorted(topics.items())
            for partition in sorted(state.leaders)
        }
        if not selection.assigned:
            return found
        return {name: found[name] for name in selection.assigned if name in found}

    def offsets_at(self, timestamps: Mapping[TopicPartition, int], version: int = _LIST_OFFSETS_VERSION) -> Offsets:
        """The offset of a time in each partition, -1 where no record is so young; -2 and -1 are a partition's ends."""
        found: Offsets = {}

        def look() -> Offsets:
            self._offsets_at({name: time for name, time in timestamps.items() if name not in found}, found, version)
            return found

        return self.patiently("looking up offsets", look)

    def _offsets_at(self, timestamps: Mapping[TopicPartition, int], found: Offsets, version: int) -> None:
        if not timestamps:
            return
        problem: str | None = None
        for address, names in self._by_leader(timestamps).items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=self._settings.isolation_level,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(partition_index=name.partition, timestamp=timestamps[name])
                            for name in names
                            if name.topic == topic
                        ],
                    )
                    for topic in dict.fromkeys(name.topic for name in names)
                ],
            )
            try:
                answer = self.connect(address).ask(request, version, ListOffsetsResponse)
            except (OSError, WireError) as error:
                self.drop(address)
                problem = f"lost the broker at {address[0]}:{address[1]}: {error}"
                continue
            for topic in answer.topics:
                for one in topic.partitions:
                    name = TopicPartition(topic.name, one.partition_index)
                    if one.error_code == ErrorCode.NONE:
                        found[name] = one.offset
                    elif one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        problem = f"the leader of {name} does not know it yet, or no longer"
                    else:
                        refusal = _refusal(one.error_code, f"partition {name}")
                        if not isinstance(refusal, PassingError):
                            raise refusal
                        problem = str(refusal)
        if problem is not None:
            raise PassingError(problem)

    def leader_of(self, name: TopicPartition, topic_id: UUID | None = None) -> tuple[str, int]:
        """Who leads a partition now; UnknownTopicError where its topic is not the one that has this id."""
        state = self._topics((name.topic,)).get(name.topic)
        if state is None or name.partition not in state.leaders:
            raise unknown_partition(name)
        if is_other_topic(state.topic_id, topic_id):
            raise UnknownTopicError(f"topic '{name.topic}' was deleted and created again")
        leader = state.leaders[name.partition]
        if leader is None:
            raise PassingError(f"partition {name} has no leader")
        return leader

    def is_replaced(self, topic: str, topic_id: UUID | None) -> bool:
        """Whether another topic has the name now; one that is gone is not replaced."""
        if topic_id is None:
            return False
        state = self.topics((topic,)).get(topic)
        return state is not None and is_other_topic(state.topic_id, topic_id)

    def _by_leader(self, names: Mapping[TopicPartition, int]) -> dict[tuple[str, int], list[TopicPartition]]:
        topics = self._topics(tuple(dict.fromkeys(name.topic for name in names)))
        by_leader: dict[tuple[str, int], list[TopicPartition]] = {}
        for name in names:
            state = topics.get(name.topic)
            if state is None or name.partition not in state.leaders:
                raise unknown_partition(name)
            leader = state.leaders[name.partition]
            if leader is None:
                raise PassingError(f"partition {name} has no leader")
            by_leader.setdefault(leader, []).append(name)
        return by_leader


def is_other_topic(one: UUID | None, other: UUID | None) -> bool:
    """Whether two ids are of different topics; old brokers have none."""
    return one is not None and other is not None and ZERO_UUID not in (one, other) and one != other


def unknown_partition(name: TopicPartition) -> UnknownTopicError:
    """Say that a partition does not exist."""
    return UnknownTopicError(f"partition {name.partition} of topic '{name.topic}' does not exist")


def unknown_topic(topic: str) -> UnknownTopicError:
    """Say that a topic does not exist."""
    return UnknownTopicError(f"topic '{topic}' does not exist; see which do with: tailrace topic list")


def _refusal(code: int, what: str) -> Exception:
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    message = f"{what} answers {name}"
    return PassingError(message) if code in PASSING else SourceError(message)
