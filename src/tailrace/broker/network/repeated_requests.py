"""Requests that group members repeat: heartbeats and commits whose bytes were decoded before.

Owns the meaning of such bytes, so that they are not decoded each time, and the bytes of the successful response. The
same bytes always mean the same, so nothing here can become stale: each time, the group itself says who coordinates it,
who its members are, and in which generation, as for the handlers. Anything unusual goes to the handlers, which start
from the beginning, as nothing was changed. Requests that the authorizer does not allow go there too. The memory is
bounded: when it is full, it is cleared.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

from tailrace.broker import access
from tailrace.broker.handlers import offset_commit
from tailrace.broker.network.connection import Connection, Pending
from tailrace.broker.services import Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.runtime.outcome import Outcome
from tailrace.runtime.transport import Part
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

#: API key, version and correlation id; the bytes behind them are remembered.
_START_BYTES = 8
_CORRELATION_BYTES = 4
#: Longer requests are decoded each time. The limits allow some ten megabytes in all.
_MOST_BYTES = 400
_MOST_REQUESTS = 10_000
_NONE = ErrorCode.NONE
_pack_start = struct.Struct(">ii").pack

# The only part of a commit that changes each time: its offset and leader epoch.
_PROGRESS = struct.Struct(">qi")
_PROGRESS_BYTES = _PROGRESS.size
_unpack_progress = _PROGRESS.unpack_from
#: From the first version on, a commit has a leader epoch; after the last one, topic ids instead of names.
_COMMITS_FROM = 6
_COMMITS_UNTIL = 9


class Repeated(Protocol):
    """The requests of one version of an API."""

    #: The remembered requests, by the bytes that never change.
    calls: dict[bytes, Any]

    def answer(self, connection: Connection, correlation_id: int, frame: memoryview) -> list[Part] | Pending | None:
        """Return the response to a known request without problems, else None."""
        ...

    def call_of(self, frame: memoryview, position: int, request: Any) -> tuple[bytes, Any] | None:
        """Return what to remember of a request, whose body begins at a position, if its kind repeats."""
        ...


class RepeatedRequests:
    """Every API version whose requests are remembered, by the first four bytes of such a request."""

    def __init__(self, services: Services) -> None:
        self._all: dict[int, Repeated] = {}
        for version in range(HeartbeatRequest.MIN_VERSION, HeartbeatRequest.MAX_VERSION + 1):
            self._all[ApiKey.HEARTBEAT << 16 | version] = RepeatedHeartbeats(services, version)
        for version in range(_COMMITS_FROM, _COMMITS_UNTIL + 1):
            self._all[ApiKey.OFFSET_COMMIT << 16 | version] = RepeatedCommits(services, version)
        #: Looks up a request by its first four bytes as a number; None for most.
        self.find = self._all.get

    def remember(self, repeated: Repeated, frame: memoryview, position: int, request: Any) -> None:
        """Remember a request that was decoded."""
        if len(frame) > _MOST_BYTES:
            return
        known = repeated.call_of(frame, position, request)
        if known is None:
            return
        if sum([len(each.calls) for each in self._all.values()]) >= _MOST_REQUESTS:
            for each in self._all.values():
                each.calls.clear()
        key, call = known
        repeated.calls[key] = call


class RepeatedHeartbeats:
    """Heartbeats of one version."""

    def __init__(self, services: Services, version: int) -> None:
        self._services = services
        self._groups = services.groups
        self._counter = services.counters.requests[ApiKey.HEARTBEAT].versions[version]
        self._rest = _after_correlation(HeartbeatResponse(), version)
        self._length = _CORRELATION_BYTES + len(self._rest)
        #: Group, member, instance, generation.
        self.calls: dict[bytes, tuple[str, str, str | None, int]] = {}

    def answer(self, connection: Connection, correlation_id: int, frame: memoryview) -> list[Part] | None:
        call = self.calls.get(bytes(frame[_START_BYTES:]))
        if call is None:
            return None
        if self._services.authorizer is not None and not _may_read(self._services, connection, call[0]):
            return None
        try:
            if self._groups.shard(call[0]).heartbeat(*call) is not _NONE:
                return None
        except KafkaError:
            return None
        connection.answered.append(self._counter)
        return [_pack_start(self._length, correlation_id) + self._rest]

    def call_of(self, frame: memoryview, position: int, request: HeartbeatRequest) -> tuple[bytes, Any]:
        call = (request.group_id, request.member_id, request.group_instance_id, request.generation_id)
        return bytes(frame[_START_BYTES:]), call


class _Commit(NamedTuple):
    """A commit for one partition without metadata, except its offset and leader epoch, and its response."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    partition: TopicPartition
    #: The bytes after the leader epoch.
    end: bytes
    rest_of_answer: bytes


class RepeatedCommits:
    """Commits of one version for one partition, which differ only in their offset and leader epoch.

    A request is parsed from beginning to end. So two requests with the same bytes before the offset and the same bytes
    after the leader epoch differ only in these two.
    """

    def __init__(self, services: Services, version: int) -> None:
        self._services = services
        self._version = version
        self._counters = services.counters.requests[ApiKey.OFFSET_COMMIT]
        self._counter = self._counters.versions[version]
        # No metadata, and no tagged fields for the partition, the topic and the request.
        self._end_bytes = 4 if OffsetCommitRequest.is_flexible(version) else 2
        self.calls: dict[bytes, _Commit] = {}

    def answer(self, connection: Connection, correlation_id: int, frame: memoryview) -> Outcome[list[Part]] | None:
        end = len(frame) - self._end_bytes
        progress = end - _PROGRESS_BYTES
        if progress <= _START_BYTES:
            return None
        call = self.calls.get(bytes(frame[_START_BYTES:progress]))
        if call is None or frame[end:] != call.end:
            return None
        group_id, member_id, instance_id, generation, partition, _, _ = call
        services = self._services
        if services.authorizer is not None and not _may_read(services, connection, group_id, partition.topic):
            return None
        topic = services.metadata.image.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        offset, leader_epoch = _unpack_progress(frame, progress)
        answer = _CommitAnswer(self, call, correlation_id, connection.last_active)
        try:
            services.groups.shard(group_id).commit_one(
                group_id, member_id, instance_id, generation, partition, topic.lineage, offset, leader_epoch, answer
            )
        except KafkaError:
            return None
        self._counter.requests += 1
        return answer

    def took(self, received: float) -> None:
        """Record how long a request took."""
        self._counters.times.observe(self._services.clock.monotonic() - received)

    def refusal(self, partition: TopicPartition, error: KafkaError) -> bytes:
        """Return the response to a commit that could not be written, without its correlation id."""
        return _after_correlation(offset_commit.refuse(self._services, _response(partition), error), self._version)

    def call_of(self, frame: memoryview, position: int, request: OffsetCommitRequest) -> tuple[bytes, _Commit] | None:
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return None
        topic = request.topics[0]
        item = topic.partitions[0]
        # It is encoded as this broker would encode it, so the offset is in the expected place.
        if item.committed_metadata or item.partition_index < 0 or frame[position:] != request.encode(self._version):
            return None
        partition = TopicPartition(topic.name, item.partition_index)
        end = len(frame) - self._end_bytes
        return bytes(frame[_START_BYTES : end - _PROGRESS_BYTES]), _Commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            partition,
            bytes(frame[end:]),
            _after_correlation(_response(partition), self._version),
        )


class _CommitAnswer(Outcome[Any]):
    """Ends when the commit does, without a result, and then becomes the response to its request."""

    __slots__ = ("_call", "_commits", "_correlation_id", "_received")

    def __init__(self, commits: RepeatedCommits, call: _Commit, correlation_id: int, received: float) -> None:
        super().__init__()
        self._commits = commits
        self._call = call
        self._correlation_id = correlation_id
        self._received = received

    def set_result(self, result: None) -> None:
        self._answer(self._call.rest_of_answer)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, KafkaError):
            self._answer(self._commits.refusal(self._call.partition, error))
        else:
            self._end(None, error)

    def _answer(self, content: bytes) -> None:
        self._commits.took(self._received)
        self._end([_pack_start(_CORRELATION_BYTES + len(content), self._correlation_id) + content], None)


def _may_read(services: Services, connection: Connection, group_id: str, topic: str | None = None) -> bool:
    """True if a client may use a group, and commit offsets of a topic."""
    context = connection.context
    if context is None:
        return False  # the handlers check it
    return access.is_allowed(services, context, Operation.READ, ResourceType.GROUP, group_id) and (
        topic is None or access.is_allowed(services, context, Operation.READ, ResourceType.TOPIC, topic)
    )


def _response(partition: TopicPartition) -> OffsetCommitResponse:
    items = [OffsetCommitResponsePartition(partition_index=partition.partition)]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=partition.topic, partitions=items)])


def _after_correlation(response: Message, version: int) -> bytes:
    """Return the rest of a response's header, and its body."""
    return (b"\0" if response.is_flexible(version) else b"") + response.encode(version)
