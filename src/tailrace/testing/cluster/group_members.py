"""Members of a consumer group for a simulated broker, and the record of everything they were told.

Each member behaves like a client library: it finds the coordinator, joins, reads from the committed offsets, commits
ever higher offsets of its partitions, and rejoins when told to. A history checks at once what it is told: a commit that
was acknowledged is never lost and never goes back, and within a generation or epoch a partition has one owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tailrace.errors import ErrorCode
from tailrace.groups.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tailrace.groups.subscription import TopicPartitions as NamedPartitions
from tailrace.model import ZERO_UUID, TopicId
from tailrace.runtime.transport import Network
from tailrace.testing.client import KafkaClient
from tailrace.testing.cluster.group_reader import GroupReader
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tailrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tailrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

_FIND_VERSION = 4
_JOIN_VERSION = 7
_SYNC_VERSION = 5
_HEARTBEAT_VERSION = 4
_LEAVE_VERSION = 4
_COMMIT_VERSION = 9
_FETCH_VERSION = 9
_CONSUMER_VERSION = 1
_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 5.0
_JOINING, _LEAVING = 0, -1
_NO_TOPIC = TopicId(ZERO_UUID)
#: The errors that make a member look for its coordinator again.
_ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
#: With several brokers, one may not know the topic yet.
_NOT_YET = (*_ELSEWHERE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(slots=True)
class GroupHistory:
    """What the members of one group were told, checked at once."""

    loop: SimLoop
    #: Whether a generation or epoch is never reused. A group that becomes empty and is then created by members of the
    #: other protocol counts from 1 again; then only commits show whether a partition had two owners.
    counts_once: bool = True
    #: Offset and time of each acknowledgement in order, by partition.
    acknowledged: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    #: The highest offset ever sent in a commit, by partition.
    sent: dict[int, int] = field(default_factory=dict)
    #: By generation or epoch, and partition.
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    generations: int = 0

    def owns(self, member_id: str, epoch: int, partitions: Iterable[int]) -> None:
        """Note that a member was told that it owns partitions."""
        for partition in partitions if self.counts_once else ():
            owner = self.owners.setdefault((epoch, partition), member_id)
            if owner != member_id:
                raise AssertionError(f"in {epoch} partition {partition} belongs to {owner} and now also to {member_id}")

    def committing(self, offsets: Mapping[int, int]) -> None:
        """Note that a commit is sent; it may be applied, whatever happens to its response."""
        for partition, offset in offsets.items():
            self.sent[partition] = max(offset, self.sent.get(partition, 0))

    def committed(self, member_id: str, offsets: Mapping[int, int], sent_at: float) -> None:
        """Note that a commit was acknowledged; it must not go below offsets acknowledged before it was sent."""
        for partition, offset in offsets.items():
            if offset < (promised := self.promised(partition, sent_at)):
                raise AssertionError(
                    f"partition {partition}: {member_id} commits {offset}, but {promised} was acknowledged before"
                )
            self.acknowledged.setdefault(partition, []).append((offset, self.loop.time()))

    def promised(self, partition: int, at: float) -> int:
        """Return the highest offset acknowledged by some time; 0 if there is none."""
        return max((offset for offset, when in self.acknowledged.get(partition, ()) if when <= at), default=0)

    def fetched(self, partition: int, offset: int, asked_at: float) -> None:
        """Check a fetched offset of the group; -1 if nothing was ever committed."""
        found = max(offset, 0)
        promised, sent = self.promised(partition, asked_at), self.sent.get(partition, 0)
        if not promised <= found <= sent:
            raise AssertionError(
                f"partition {partition}: {promised} was acknowledged by {asked_at:.3f} s, at most {sent} was ever "
                f"sent, but now the group continues from {found}"
            )


class _AgainError(Exception):
    """The member must start its last step over."""


@dataclass(slots=True)
class _Member:
    """What members of both protocols share: connections, the coordinator, offsets."""

    name: str
    group: str
    topic: str
    network: Network
    host: str
    port: int
    loop: SimLoop
    random: Random
    history: GroupHistory
    session_timeout_ms: int = 3_000
    rebalance_timeout_ms: int = 4_000
    #: Other brokers to ask for the coordinator if the last one does not answer; without any there is only one.
    bootstrap: Sequence[tuple[str, int]] = ()
    #: Reads what is committed then; without one the member only claims to.
    reader: GroupReader | None = None
    member_id: str = ""
    #: The generation, or the member epoch.
    epoch: int = -1
    #: The position in each owned partition.
    owned: dict[int, int] = field(default_factory=dict)
    is_leaving: bool = False
    _client: KafkaClient | None = None
    _has_open_commit: bool = False
    _frozen_seconds: float = 0.0

    async def run(self) -> None:
        """Be a member until told to leave."""
        while not self.is_leaving:
            try:
                client = self._client = await KafkaClient.connect(self.network, self.host, self.port, self.name)
            except OSError:
                self._ask_elsewhere()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._find_coordinator(client)
                await self._take_part(client)
            except _AgainError:
                await asyncio.sleep(_RETRY_SECONDS)
            except ConnectionError:
                if self._has_open_commit:
                    # It may still be in flight. Under a new name it cannot come after a later commit.
                    self._has_open_commit = False
                    self._forget()
                self._ask_elsewhere()
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                client.close()

    @property
    def _again_errors(self) -> Sequence[ErrorCode]:
        return _NOT_YET if self.bootstrap else _ELSEWHERE

    def _ask_elsewhere(self) -> None:
        if self.bootstrap:
            self.host, self.port = self.random.choice(self.bootstrap)

    def crash(self) -> None:
        """End the process."""
        if self._client is not None:
            self._client.close()

    def _forget(self) -> None:
        self.member_id, self.epoch = "", -1
        self.owned.clear()

    async def _take_part(self, client: KafkaClient) -> None:
        raise NotImplementedError

    async def _find_coordinator(self, client: KafkaClient) -> None:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        response = await client.call(request, _FIND_VERSION, FindCoordinatorResponse, _ANSWER_SECONDS)
        found = response.coordinators[0]
        if found.error_code:
            raise _AgainError
        if (found.host, found.port) != (self.host, self.port):
            self.host, self.port = found.host, found.port
            raise _AgainError

    async def _begin_reading(self, client: KafkaClient, partitions: Sequence[int], *, with_epoch: bool) -> None:
        """Start reading partitions at the group's offsets."""
        if not partitions:
            return
        asked_at = self.loop.time()
        group = OffsetFetchRequestGroup(
            group_id=self.group,
            member_id=self.member_id if with_epoch else None,
            member_epoch=self.epoch if with_epoch else -1,
            topics=[OffsetFetchRequestTopics(name=self.topic, partition_indexes=list(partitions))],
        )
        response = await client.call(
            OffsetFetchRequest(groups=[group]), _FETCH_VERSION, OffsetFetchResponse, _ANSWER_SECONDS
        )
        (answer,) = response.groups
        if answer.error_code:
            raise _AgainError
        for item in answer.topics[0].partitions:
            assert item.error_code == 0
            self.history.fetched(item.partition_index, item.committed_offset, asked_at)
            self.owned[item.partition_index] = max(item.committed_offset, 0)

    async def _commit(self, client: KafkaClient) -> ErrorCode:
        """Commit the positions in some partitions."""
        chosen = [partition for partition in self.owned if self.random.random() < 0.7]
        if not chosen:
            return ErrorCode.NONE
        offsets = await self._read_on(chosen)
        if not offsets:
            return ErrorCode.NONE
        request = OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.epoch,
            topics=[
                OffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=self.name
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        sent_at = self.loop.time()
        self.history.committing(offsets)
        self._has_open_commit = True
        response = await client.call(request, _COMMIT_VERSION, OffsetCommitResponse, _ANSWER_SECONDS)
        self._has_open_commit = False
        errors = {item.error_code for item in response.topics[0].partitions}
        assert len(errors) == 1, "a commit is applied as a whole or not at all"
        error = ErrorCode(errors.pop())
        if error is ErrorCode.NONE:
            self.history.committed(self.member_id, offsets, sent_at)
            self.owned.update(offsets)
        return error

    async def _read_on(self, partitions: Sequence[int]) -> dict[int, int]:
        """Read on in some partitions; return the new positions where there were records."""
        if self.reader is None:
            return {partition: self.owned[partition] + self.random.randint(1, 5) for partition in partitions}
        read: dict[int, int] = {}
        for partition in partitions:
            offset = await self.reader.read(partition, self.owned[partition])
            if offset > self.owned[partition]:
                read[partition] = offset
        self.reader.reading.committing(read)
        return read

    def freeze(self, seconds: float) -> None:
        """Stop for a while, like a process that is suspended or swapped out, and then continue."""
        self._frozen_seconds = seconds

    async def _pause(self, seconds: float) -> None:
        frozen, self._frozen_seconds = self._frozen_seconds, 0.0
        await asyncio.sleep(frozen + self.random.uniform(0.2, 1.0) * seconds)


@dataclass(slots=True)
class ClassicMember(_Member):
    """A member of the classic protocol, which revokes everything before it rejoins."""

    partitions: int = 0

    async def _take_part(self, client: KafkaClient) -> None:
        while not self.is_leaving:
            await self._join(client)
            await self._work(client)
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
        await client.call(request, _LEAVE_VERSION, LeaveGroupResponse, _ANSWER_SECONDS)

    async def _join(self, client: KafkaClient) -> None:
        self.owned.clear()
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=[self.topic]), 1)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        joined = await client.call(request, _JOIN_VERSION, JoinGroupResponse, 30.0)
        self._check(joined.error_code, joined.member_id)
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        plan: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id:
            plan = self._plan([member.member_id for member in joined.members])
        await self._pause(0.05)
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.epoch,
            member_id=self.member_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=plan,
        )
        synced = await client.call(sync, _SYNC_VERSION, SyncGroupResponse, 30.0)
        self._check(synced.error_code, self.member_id)
        named = decode_assignment(synced.assignment).assigned_partitions if len(synced.assignment) else []
        mine = [number for item in named for number in item.partitions]
        self.history.owns(self.member_id, self.epoch, mine)
        self.history.generations += 1
        await self._begin_reading(client, mine, with_epoch=False)

    def _check(self, code: int, member_id: str) -> None:
        error = ErrorCode(code)
        if error is ErrorCode.NONE:
            return
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = member_id
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._forget()
        else:
            expected = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, *self._again_errors)
            assert error in expected, f"{self.name} was refused: {error.name}"
        raise _AgainError

    def _plan(self, members: Sequence[str]) -> list[SyncGroupRequestAssignment]:
        """Make a different assignment each time, so that partitions move."""
        order = self.random.sample(list(members), len(members))
        shares: dict[str, list[int]] = {member_id: [] for member_id in order}
        for partition in range(self.partitions):
            shares[order[partition % len(order)]].append(partition)
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=encode_assignment(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[NamedPartitions(topic=self.topic, partitions=share)] if share else []
                    ),
                    1,
                ),
            )
            for member_id, share in shares.items()
        ]

    async def _work(self, client: KafkaClient) -> None:
        """Commit and send heartbeats until the group rebalances."""
        while not self.is_leaving:
            error = await self._commit(client)
            if error is ErrorCode.NONE:
                request = HeartbeatRequest(
                    group_id=self.group, generation_id=self.epoch, member_id=self.member_id, group_instance_id=None
                )
                answer = await client.call(request, _HEARTBEAT_VERSION, HeartbeatResponse, _ANSWER_SECONDS)
                error = ErrorCode(answer.error_code)
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                await self._commit(client)
                return
            if error is not ErrorCode.NONE:
                self._check(error, self.member_id)
            await self._pause(1.0)


@dataclass(slots=True)
class ConsumerMember(_Member):
    """A member of the newer protocol."""

    topic_id: TopicId = _NO_TOPIC
    #: Whether the coordinator knows what it owns, as far as the member can tell.
    _has_said_all: bool = False

    async def _take_part(self, client: KafkaClient) -> None:
        self._has_said_all = False
        while not self.is_leaving:
            await self._beat(client)
            await self._pause(0.5)
            error = await self._commit(client)
            if error not in (ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH):
                self._check(error)
            await self._pause(0.5)
        await self._send(client, _LEAVING)

    def _check(self, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
            # Other members own everything now; the last error means that the group became classic without this member.
            self.epoch = -1
            self.owned.clear()
        else:
            assert error in self._again_errors, f"{self.name} was refused: {error.name}"
        raise _AgainError

    async def _send(self, client: KafkaClient, epoch: int) -> ConsumerGroupHeartbeatResponse:
        says_all = epoch == _JOINING or not self._has_said_all
        owned = [TopicPartitions(topic_id=self.topic_id, partitions=sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=self.rebalance_timeout_ms if says_all else -1,
            subscribed_topic_names=[self.topic] if says_all else None,
            topic_partitions=owned,
        )
        return await client.call(request, _CONSUMER_VERSION, ConsumerGroupHeartbeatResponse, _ANSWER_SECONDS)

    async def _beat(self, client: KafkaClient) -> None:
        if not self.member_id:
            self.member_id = str(UUID(int=self.random.getrandbits(128), version=4))
            self.epoch = -1
        if self.epoch < 0:
            self.owned.clear()
        answer = await self._send(client, _JOINING if self.epoch < 0 else self.epoch)
        if answer.error_code:
            self._check(ErrorCode(answer.error_code))
        self._has_said_all = True
        if answer.member_epoch != self.epoch:
            self.history.generations += 1
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            self.history.owns(self.member_id, self.epoch, self.owned)
            return
        mine = [number for item in answer.assignment.topic_partitions for number in item.partitions]
        self.history.owns(self.member_id, self.epoch, mine)
        for partition in [partition for partition in self.owned if partition not in mine]:
            # The next heartbeat reports the release.
            del self.owned[partition]
        new = [partition for partition in mine if partition not in self.owned]
        await self._begin_reading(client, new, with_epoch=True)
