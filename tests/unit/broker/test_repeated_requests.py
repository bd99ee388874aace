"""Heartbeats and commits known by their bytes: answered as their handlers would, whatever happened meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.broker.network import repeated_requests
from tailrace.broker.network.router import Router
from tailrace.errors import ErrorCode, WireError
from tailrace.groups.classic_group import ClassicGroup
from tailrace.groups.shard import GroupShard
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.runtime.transport import Part
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, encode_request
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
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
from tailrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.broker.brokers import TestedBroker, with_broker

FEW = {"offsets_topic_num_partitions": "2", "group_initial_rebalance_delay_ms": "0"}
GROUP = "readers"
ORDERS = TopicPartition("orders", 1)
HEARTBEAT_VERSIONS = range(5)
COMMIT_VERSIONS = range(6, 10)


class Member:
    """A member of the group, and the requests that it sends."""

    def __init__(self, broker: TestedBroker, instance_id: str | None = None) -> None:
        self.broker = broker
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1

    async def join(self, group: str = GROUP) -> None:
        await self.broker.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4, FindCoordinatorResponse)
        joined = await self.broker.ask(self.join_request(group), 5, JoinGroupResponse)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = await self.broker.ask(self.join_request(group), 5, JoinGroupResponse)
        assert joined.error_code == ErrorCode.NONE
        self.member_id, self.generation = joined.member_id, joined.generation_id
        plan = [SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"plan")]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=plan,
        )
        assert (await self.broker.ask(request, 3, SyncGroupResponse)).error_code == ErrorCode.NONE

    def join_request(self, group: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )

    def commit(self, offset: int, leader_epoch: int = -1, metadata: str | None = "") -> OffsetCommitRequest:
        item = OffsetCommitRequestPartition(
            partition_index=ORDERS.partition,
            committed_offset=offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )
        return OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequestTopic(name=ORDERS.topic, partitions=[item])],
        )


def frame_of(request: Message, version: int, correlation_id: int = 7, behind: bytes = b"") -> memoryview:
    header = RequestHeader(request.API_KEY, version, correlation_id, "a test")
    body = bytes(request.encode(version)) + behind
    return memoryview(bytearray(encode_request(header, request.is_flexible(version), body)))[4:]


def is_known(broker: TestedBroker, frame: memoryview) -> bool:
    """Whether a request is answered without its handler."""
    repeated = broker._router._repeated.find(int.from_bytes(frame[:4], "big"))
    return repeated is not None and repeated.answer(broker._connection, 7, frame) is not None


async def bytes_of(answer: Any) -> bytes:
    parts: list[Part] = answer if isinstance(answer, list) else await answer
    return b"".join(bytes(part) for part in parts if isinstance(part, bytes | bytearray))


async def ask(broker: TestedBroker, frame: memoryview, router: Router | None = None) -> bytes:
    return await bytes_of((router or broker._router).answer(broker._connection, frame))


def unknowing(broker: TestedBroker) -> Router:
    """A router of the same broker that has seen nothing yet."""
    return Router(broker.broker.services, broker.broker.requests)


def shard_of(broker: TestedBroker) -> GroupShard:
    return broker.broker.services.groups.shard(GROUP)


async def heartbeat_error(broker: TestedBroker, member: Member) -> int:
    """What a member's heartbeat is answered, which is what a router says that has seen none before."""
    frame = frame_of(member.heartbeat(), 4)
    answer = await ask(broker, frame)
    assert answer == await ask(broker, frame, unknowing(broker))
    return (await broker.ask(member.heartbeat(), 4, HeartbeatResponse)).error_code


@pytest.mark.parametrize("version", HEARTBEAT_VERSIONS)
def test_a_heartbeat_that_comes_again_is_answered_with_the_same_bytes_and_counted(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        member = Member(broker)
        await member.join()
        first = await ask(broker, frame_of(member.heartbeat(), version, 1))
        again = frame_of(member.heartbeat(), version, 2)
        assert is_known(broker, again)
        broker._connection.count_answered()
        counter = broker.broker.services.counters.requests[ApiKey.HEARTBEAT].versions[version]
        before = counter.requests
        answer = await ask(broker, again)
        broker._connection.count_answered()
        assert counter.requests == before + 1
        assert int.from_bytes(answer[4:8], "big") == 2
        assert answer[:4] + answer[8:] == first[:4] + first[8:]

    with_broker(tmp_path, test, **FEW)


def test_a_heartbeat_that_comes_again_puts_the_end_of_the_session_off(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        member = Member(broker)
        await member.join()
        await heartbeat_error(broker, member)
        group = shard_of(broker).describe(GROUP)
        assert isinstance(group, ClassicGroup)
        session = group.members[member.member_id].session
        assert session is not None
        session.set(1000)
        soon = session._due
        assert soon is not None
        assert is_known(broker, frame_of(member.heartbeat(), 4))
        assert session._due is not None
        assert session._due > soon + 8

    with_broker(tmp_path, test, **FEW)


def test_a_known_heartbeat_tells_of_a_rebalance_a_generation_and_a_departure_at_once(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        one, two = Member(broker), Member(broker)
        await one.join()
        assert await heartbeat_error(broker, one) == ErrorCode.NONE
        asked = await broker.ask(two.join_request(GROUP), 5, JoinGroupResponse)
        two.member_id = asked.member_id
        joining = broker.answer(two.join_request(GROUP), 5)
        assert await heartbeat_error(broker, one) == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await broker.ask(one.join_request(GROUP), 5, JoinGroupResponse)
        await bytes_of(joining)
        assert await heartbeat_error(broker, one) == ErrorCode.ILLEGAL_GENERATION
        one.generation = joined.generation_id
        assert await heartbeat_error(broker, one) == ErrorCode.NONE
        leave = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=one.member_id)])
        await broker.ask(leave, 4, LeaveGroupResponse)
        assert await heartbeat_error(broker, one) == ErrorCode.UNKNOWN_MEMBER_ID

    with_broker(tmp_path, test, **FEW)


def test_a_known_heartbeat_of_a_static_member_is_fenced_when_its_successor_is_there(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        old, new = Member(broker, "instance"), Member(broker, "instance")
        await old.join()
        assert await heartbeat_error(broker, old) == ErrorCode.NONE
        assert is_known(broker, frame_of(old.heartbeat(), 4))
        await new.join()
        assert await heartbeat_error(broker, old) == ErrorCode.FENCED_INSTANCE_ID
        assert await heartbeat_error(broker, new) == ErrorCode.NONE
        commit = frame_of(old.commit(3), 9)
        assert await ask(broker, commit) == await ask(broker, commit, unknowing(broker))

    with_broker(tmp_path, test, **FEW)


def test_known_requests_are_refused_when_the_session_is_over_or_the_group_is_coordinated_elsewhere(
    tmp_path: Path,
) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        one = Member(broker)
        await one.join()
        assert await heartbeat_error(broker, one) == ErrorCode.NONE
        commits = [frame_of(one.commit(offset), 9) for offset in range(3)]
        await ask(broker, commits[0])
        assert is_known(broker, commits[1])
        shard = shard_of(broker)
        group = shard.describe(GROUP)
        assert isinstance(group, ClassicGroup)
        shard.classic._session_ended(group, group.members[one.member_id])
        assert await heartbeat_error(broker, one) == ErrorCode.UNKNOWN_MEMBER_ID
        assert not is_known(broker, commits[2])
        two = Member(broker)
        await two.join()
        assert await heartbeat_error(broker, two) == ErrorCode.NONE
        shards = broker.broker.services.groups._shards
        for number in range(2):
            shards.resign(number)
        assert await heartbeat_error(broker, two) == ErrorCode.NOT_COORDINATOR
        refused = await broker.ask(two.commit(9), 9, OffsetCommitResponse)
        assert refused.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    with_broker(tmp_path, test, **FEW)


@pytest.mark.parametrize("metadata", ["", None])
@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_a_commit_that_comes_again_keeps_its_own_offset(tmp_path: Path, version: int, metadata: str | None) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        member = Member(broker)
        await member.join()
        first = await ask(broker, frame_of(member.commit(1, metadata=metadata), version, 1))
        services = broker.broker.services
        counter = services.counters.requests[ApiKey.OFFSET_COMMIT].versions[version]
        before, commits = counter.requests, services.groups.counters.offset_commits
        for offset, leader_epoch in ((5, 2), (2**62, 2**31 - 1), (0, 0)):
            frame = frame_of(member.commit(offset, leader_epoch, metadata), version, 9)
            repeated = broker._router._repeated.find(int.from_bytes(frame[:4], "big"))
            assert repeated is not None
            answer = await bytes_of(repeated.answer(broker._connection, 9, frame))
            assert answer[:4] + answer[8:] == first[:4] + first[8:]
            assert int.from_bytes(answer[4:8], "big") == 9
            committed = shard_of(broker).offsets.of_group(GROUP)[ORDERS]
            assert committed[:3] == (offset, leader_epoch, "")
        assert counter.requests == before + 3
        assert services.groups.counters.offset_commits == commits + 3

    with_broker(tmp_path, test, **FEW)


def test_only_commits_of_one_plain_offset_are_remembered(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        member = Member(broker)
        await member.join()
        several = member.commit(1)
        several.topics[0].partitions.append(OffsetCommitRequestPartition(partition_index=0, committed_metadata=""))
        topics = member.commit(1)
        topics.topics.append(OffsetCommitRequestTopic(name="other", partitions=[]))
        odd = [
            frame_of(several, 9),
            frame_of(topics, 9),
            frame_of(member.commit(1, metadata="here"), 9),
            frame_of(member.commit(1), 9, behind=b"\0" * 16),
            frame_of(member.commit(1), 5),
        ]
        for frame in odd:
            await ask(broker, frame)
            assert not is_known(broker, frame)
        await ask(broker, frame_of(member.commit(1), 9))
        assert is_known(broker, frame_of(member.commit(2), 9))

    with_broker(tmp_path, test, **FEW)


def test_a_known_commit_is_refused_when_its_topic_or_its_generation_is_gone(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        member = Member(broker)
        await member.join()
        await ask(broker, frame_of(member.commit(1), 9))
        other = Member(broker)
        asked = await broker.ask(other.join_request(GROUP), 5, JoinGroupResponse)
        other.member_id = asked.member_id
        joining = broker.answer(other.join_request(GROUP), 5)
        await broker.ask(member.join_request(GROUP), 5, JoinGroupResponse)
        await bytes_of(joining)
        late = await broker.ask(member.commit(2), 9, OffsetCommitResponse)
        assert late.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
        alone = OffsetCommitRequest(group_id="alone", topics=member.commit(3).topics)
        for _ in range(2):
            assert (await broker.ask(alone, 9, OffsetCommitResponse)).topics[0].partitions[0].error_code == 0
        assert is_known(broker, frame_of(alone, 9))
        await broker.ask(DeleteTopicsRequest(topic_names=["orders"]), 5, DeleteTopicsResponse)
        gone = await broker.ask(alone, 9, OffsetCommitResponse)
        assert gone.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test, **FEW)


def test_a_known_commit_that_cannot_be_written_is_told_so_and_counted(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        member = Member(broker)
        await member.join()
        await ask(broker, frame_of(member.commit(1), 9))
        answer = broker.answer(member.commit(2), 9)
        known = frame_of(member.commit(3), 9)
        repeated = broker._router._repeated.find(int.from_bytes(known[:4], "big"))
        assert repeated is not None
        again = repeated.answer(broker._connection, 77, known)
        # Before the turn ends, in which both would have been written.
        for number in range(2):
            broker.broker.partitions.find(OFFSETS_TOPIC, number).leader_epoch += 1
        told = await bytes_of(again)
        response = OffsetCommitResponse.decode(9, memoryview(told)[9:])
        assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert told == await bytes_of(answer)
        errors = broker.broker.services.counters.requests[ApiKey.OFFSET_COMMIT].errors
        assert errors[ErrorCode.NOT_COORDINATOR] == 2
        assert shard_of(broker).offsets.of_group(GROUP)[ORDERS].offset == 1

    with_broker(tmp_path, test, **FEW)


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_differ_anywhere_are_answered_as_if_nothing_was_known(tmp_path: Path, seed: int) -> None:
    async def outcome(broker: TestedBroker, frame: memoryview, router: Router) -> tuple[object, object]:
        try:
            answer: object = await ask(broker, frame, router)
        except WireError as error:
            answer = str(error)
        offsets = shard_of(broker).offsets
        return answer, {
            group: {place: committed[:3] for place, committed in offsets.of_group(group).items()}
            for group in offsets.groups()
        }

    async def test(broker: TestedBroker) -> None:
        random = Random(seed)
        await broker.create("orders", 2)
        member = Member(broker)
        await member.join()
        wellknown = [frame_of(member.heartbeat(), 4), frame_of(member.commit(1), 9), frame_of(member.commit(1), 7)]
        for frame in wellknown:
            await ask(broker, frame)
            assert is_known(broker, frame)
        for _ in range(150):
            frame = memoryview(bytearray(random.choice(wellknown)))
            for _ in range(random.randint(1, 2)):
                # Not of API and version: those are other requests, and not of the correlation id.
                frame[random.randrange(8, len(frame))] = random.randrange(256)
            if random.random() < 0.3:
                frame = frame[: random.randrange(8, len(frame))]
            known = await outcome(broker, frame, broker._router)
            assert known == await outcome(broker, frame, unknowing(broker)), bytes(frame)

    with_broker(tmp_path, test, **FEW)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_requests, "_MOST_REQUESTS", 3)

    async def test(broker: TestedBroker) -> None:
        member = Member(broker)
        await member.join()
        everything = broker._router._repeated._all.values()
        for number in range(10):
            strange = HeartbeatRequest(group_id=f"group-{number}", member_id="nobody")
            await ask(broker, frame_of(strange, number % 5))
            assert sum(len(repeated.calls) for repeated in everything) <= 3
        await ask(broker, frame_of(member.heartbeat(), 4))
        assert is_known(broker, frame_of(member.heartbeat(), 4))
        long = HeartbeatRequest(group_id="g" * 500, member_id="nobody")
        before = [dict(repeated.calls) for repeated in everything]
        await ask(broker, frame_of(long, 4))
        assert [repeated.calls for repeated in everything] == before

    with_broker(tmp_path, test, **FEW)
