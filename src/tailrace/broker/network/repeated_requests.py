"""Requests that members of groups send again and again: heartbeats and commits of which the bytes are known already.

Owns what such bytes mean, so that they are not decoded each time, and the bytes of the answer when all is well. The
same bytes always mean the same, so nothing here can be out of date: who coordinates the group, who is in it and in
which generation is asked of the group every time, as the handlers do. Whatever is not well is left to the handlers,
which begin anew: nothing was changed. Requests that the authorizer does not allow are left to them too. What is
remembered is bounded, and when it is too much all of it is forgotten.
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

#: API key, version and correlation id; what comes after them is what is remembered.
_START_BYTES = 8
_CORRELATION_BYTES = 4
#: Longer ones are decoded each time, and so many are remembered of all together: some ten megabytes at most.
_MOST_BYTES = 400
_MOST_REQUESTS = 10_000
_NONE = ErrorCode.NONE
_pack_start = struct.Struct(">ii").pack

# The one part of a commit that is new each time: its offset and leader epoch.
_PROGRESS = struct.Struct(">qi")
_PROGRESS_BYTES = _PROGRESS.size
_unpack_progress = _PROGRESS.unpack_from
#: From here on a commit has a leader epoch, from there on a topic's id in place of its name.
_COMMITS_FROM = 6
_COMMITS_UNTIL = 9


class Repeated(Protocol):
    """The requests of one version of an API."""

    #: What was remembered, by the bytes that are always the same.
    calls: dict[bytes, Any]

    def answer(self, connection: Connection, correlation_id: int, frame: memoryview) -> list[Part] | Pending | None:
        """The answer to a request that is known and that nothing stands against, else None."""
        ...

    def call_of(self, frame: memoryview, position: int, request: Any) -> tuple[bytes, Any] | None:
        """What to remember of a request whose body begins at a position, if it is of a kind that comes again."""
        ...


class RepeatedRequests:
    """Every version of an API whose requests are remembered, by the four bytes that a request for it begins with."""

    def __init__(self, services: Services) -> None:
        self._all: dict[int, Repeated] = {}
        for version in range(HeartbeatRequest.MIN_VERSION, HeartbeatRequest.MAX_VERSION + 1):
            self._all[ApiKey.HEARTBEAT << 16 | version] = RepeatedHeartbeats(services, version)
        for version in range(_COMMITS_FROM, _COMMITS_UNTIL + 1):
            self._all[ApiKey.OFFSET_COMMIT << 16 | version] = RepeatedCommits(services, version)
        #: Who knows a request, by its first four bytes as a number; None for most.
        self.find = self._all.get

    def remember(self, repeated: Repeated, frame: memoryview, position: int, request: Any) -> None:
        """Know a request that was decoded when it comes again."""
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
    """A commit for one partition without metadata, but for its offset and leader epoch, and its answer."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    partition: TopicPartition
    #: The bytes after the leader epoch.
    end: bytes
    rest_of_answer: bytes


class RepeatedCommits:
    """Commits of one version for one partition, which differ in their offset and leader epoch.

    A request is read from its beginning to its end, so bytes that are the same up to the offset, and the same again
    after the leader epoch, mean the same but for those two.
    """

    def __init__(self, services: Services, version: int) -> None:
        self._services = services
        self._version = version
        self._counters = services.counters.requests[ApiKey.OFFSET_COMMIT]
        self._counter = self._counters.versions[version]
        # No metadata, and where there are tagged fields none for the partition, the topic and the request.
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
        """Count how long it took to answer a request."""
        self._counters.times.observe(self._services.clock.monotonic() - received)

    def refusal(self, partition: TopicPartition, error: KafkaError) -> bytes:
        """The answer to a commit that could not be written, after its correlation id."""
        return _after_correlation(offset_commit.refuse(self._services, _response(partition), error), self._version)

    def call_of(self, frame: memoryview, position: int, request: OffsetCommitRequest) -> tuple[bytes, _Commit] | None:
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return None
        topic = request.topics[0]
        item = topic.partitions[0]
        # Encoded as we would: then the offset is where it is looked for.
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
    """Ends as the commit does, with nothing, and is then the answer to its request."""

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
    """Whether a client may go on in a group, and commit offsets of a topic."""
    context = connection.context
    if context is None:
        return False  # the handlers look closer
    return access.is_allowed(services, context, Operation.READ, ResourceType.GROUP, group_id) and (
        topic is None or access.is_allowed(services, context, Operation.READ, ResourceType.TOPIC, topic)
    )


def _response(partition: TopicPartition) -> OffsetCommitResponse:
    items = [OffsetCommitResponsePartition(partition_index=partition.partition)]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=partition.topic, partitions=items)])


def _after_correlation(response: Message, version: int) -> bytes:
    """The rest of a response's header, and its body."""
    return (b"\0" if response.is_flexible(version) else b"") + response.encode(version)
