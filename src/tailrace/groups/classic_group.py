"""One group of the classic protocol: its members, what they have in common, and the rules that need nobody else.

Pure: no timers, no journal, no waiting requests are decided here; `classic` drives it. Invariants: the leader is a
member; a static member's instance id belongs to exactly one member id; a generation only grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.records import GroupMetadataMember, GroupMetadataValue

NO_GENERATION = -1
UNKNOWN_MEMBER = ""


class GroupState(StrEnum):
    """The states of a classic group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """An assignment strategy that a member knows, and what it tells the group's leader for it."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a join."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    member_id: str = UNKNOWN_MEMBER
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """The answer to a sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class Member:
    """One member; `joining` and `syncing` are its requests that wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    joining: asyncio.Future[JoinResult] | None = None
    syncing: asyncio.Future[SyncResult] | None = None
    #: When it counts as gone; made by whoever coordinates.
    session: Deadline | None = None

    def metadata_for(self, protocol: str | None) -> bytes:
        """What it said for a protocol; nothing for one that it does not know."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def answer_join(self, result: JoinResult) -> None:
        """Answer its join, if it waits for one."""
        future, self.joining = self.joining, None
        if future is not None and not future.done():
            future.set_result(result)

    def answer_sync(self, result: SyncResult) -> None:
        """Answer its sync, if it waits for one."""
        future, self.syncing = self.syncing, None
        if future is not None and not future.done():
            future.set_result(result)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """The members of a group and the generation they are in."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    #: The state before; a first rebalance waits for more members.
    came_from_empty: bool = True
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    #: Members that were given an id and have not come back with it.
    pending: dict[str, Deadline] = field(default_factory=dict)
    #: Members that owe a sync of this generation.
    owing_sync: dict[str, None] = field(default_factory=dict)
    #: Whether somebody joined since the first rebalance last looked.
    has_grown: bool = False
    rebalance: Deadline | None = None
    sync_deadline: Deadline | None = None

    # --- members

    def add(self, member: Member) -> None:
        """Let a member in; the first one becomes the leader."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Forget a member; another one leads if it did."""
        if self.members.pop(member.member_id, None) is None:
            return
        self.owing_sync.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, old: Member, new_id: str) -> None:
        """Give a static member the id of its new incarnation, in the same place."""
        self.members = {new_id if key == old.member_id else key: member for key, member in self.members.items()}
        if self.leader == old.member_id:
            self.leader = new_id
        self.owing_sync.pop(old.member_id, None)
        old.member_id = new_id
        assert old.instance_id is not None
        self.static_members[old.instance_id] = new_id

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member of that id, unless it is unknown or a newer incarnation has taken its place."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def waiting_to_join(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether nobody is left to wait for."""
        return not self.pending and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to rejoin."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def has_room_for(self, member_id: str, max_size: int) -> bool:
        """Whether a join may be let in under the limit on members."""
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self.members.get(member_id)
            return (member is not None and member.joining is not None) or self.waiting_to_join < max_size
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return max_size > 0
        return member_id in self.members or len(self.members) < max_size

    # --- protocols

    def supports(self, protocol_type: str, protocols: Sequence[MemberProtocol]) -> bool:
        """Whether somebody with these protocols shares one with all members."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(protocol.name in common for protocol in protocols)

    def _common_protocols(self) -> set[str]:
        names = [{protocol.name for protocol in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def choose_protocol(self) -> str:
        """The protocol that most members prefer among those that all of them know."""
        common = self._common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            favourite = next((protocol.name for protocol in member.protocols if protocol.name in common), None)
            if favourite is not None:
                votes[favourite] = votes.get(favourite, 0) + 1
        if not votes:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return max(votes, key=lambda name: votes[name])

    # --- generations

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has rejoined, else take the first who has; whether there is one."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.joining is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self) -> None:
        """The members that are there make the next generation; without any the group is empty."""
        self.generation += 1
        if self.members:
            self.protocol = self.choose_protocol()
            self.state = GroupState.COMPLETING_REBALANCE
        else:
            self.protocol = None
            self.leader = None
            self.state = GroupState.EMPTY

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """All members as the leader sees them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    # --- as a record

    def to_record(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """The group as its journal keeps it, with the assignments given or those that the members have."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=[
                GroupMetadataMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol),
                    assignment=assignments.get(member.member_id, member.assignment),
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """The group as its last record describes it."""
        group = cls(
            group_id,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            state_since_ms=value.current_state_timestamp,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol=value.protocol if value.members else None,
        )
        for stored in value.members:
            group.add(
                Member(
                    member_id=stored.member_id,
                    instance_id=stored.group_instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    rebalance_timeout_ms=stored.rebalance_timeout,
                    session_timeout_ms=stored.session_timeout,
                    protocols=(MemberProtocol(value.protocol or "", bytes(stored.subscription)),),
                    assignment=bytes(stored.assignment),
                )
            )
        if value.leader in group.members:
            group.leader = value.leader
        return group
