"""One group of the classic protocol: its members, what they have in common, and rules that depend on nothing else.

It is pure: `classic` owns timers, the journal and waiting requests. Only `replay` changes what a record describes, once
the record is in the log. Invariants: the leader is a member; a static member's instance id belongs to exactly one
member id; the generation only grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.records import GroupMetadataMember, GroupMetadataValue

_NOTHING: Mapping[str, Any] = MappingProxyType({})

NO_GENERATION = -1
UNKNOWN_MEMBER = ""


class GroupState(StrEnum):
    """The states of a classic group, with the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """An assignment strategy that a member supports, and the metadata that it sends the group leader for it."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member as the group leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The result of a join."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    member_id: str = UNKNOWN_MEMBER
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """The result of a sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class Member:
    """One member; `joining` and `syncing` are its waiting requests."""

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
    #: When the member expires; `classic` sets it.
    session: Deadline | None = None

    @classmethod
    def from_record(cls, stored: GroupMetadataMember, protocol: str, known: Member | None) -> Member:
        """Build the member that a record describes; `known` is its previous state, perhaps under its former id."""
        subscription = bytes(stored.subscription)
        member = known
        if member is None:
            member = cls(stored.member_id, stored.group_instance_id, "", "", -1, -1, ())
        member.member_id = stored.member_id
        member.client_id, member.client_host = stored.client_id, stored.client_host
        member.rebalance_timeout_ms = stored.rebalance_timeout
        member.session_timeout_ms = stored.session_timeout
        member.assignment = bytes(stored.assignment)
        # A record holds only one of the protocols that the member supports.
        if (protocol, subscription) not in member.protocols:
            member.protocols = (MemberProtocol(protocol, subscription),)
        return member

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def answer_join(self, result: JoinResult) -> None:
        """Answer the member's waiting join, if there is one."""
        future, self.joining = self.joining, None
        if future is not None and not future.done():
            future.set_result(result)

    def answer_sync(self, result: SyncResult) -> None:
        """Answer the member's waiting sync, if there is one."""
        future, self.syncing = self.syncing, None
        if future is not None and not future.done():
            future.set_result(result)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """The members of a group and their generation."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    #: Whether the state before was Empty; the first rebalance waits for more members.
    came_from_empty: bool = True
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    #: New members that were given an id and have not rejoined with it.
    pending: dict[str, Deadline] = field(default_factory=dict)
    #: Members that have not yet sent a sync in this generation.
    owing_sync: dict[str, None] = field(default_factory=dict)
    #: Whether a member joined since the timer of the first rebalance last checked.
    has_grown: bool = False
    #: Whether the leader's assignment is in the log but not committed, so that no member has it yet.
    awaits_plan: bool = False
    rebalance: Deadline | None = None
    sync_deadline: Deadline | None = None

    @property
    def shown_state(self) -> GroupState:
        """The state that clients see; an assignment shows once it is committed."""
        return GroupState.COMPLETING_REBALANCE if self.awaits_plan else self.state

    # --- members

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, another member becomes the leader."""
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
        """Return the member; refuse an unknown id, or one that a newer incarnation has replaced."""
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

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Refuse a commit in a transaction from a client outside this generation.

        A client of an old version says nothing of itself and is accepted in any state.
        """
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and (self.state is GroupState.EMPTY or (member_id == UNKNOWN_MEMBER and instance_id is None)):
            return
        self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    @property
    def waiting_to_join(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """True if every member has joined and none is pending."""
        return not self.pending and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def has_room_for(self, member_id: str, max_size: int) -> bool:
        """True if the limit on members allows this join."""
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self.members.get(member_id)
            return (member is not None and member.joining is not None) or self.waiting_to_join < max_size
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return max_size > 0
        return member_id in self.members or len(self.members) < max_size

    # --- protocols

    def supports(self, protocol_type: str, protocols: Sequence[MemberProtocol]) -> bool:
        """True if a member with these protocols shares one with all members."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(protocol.name in common for protocol in protocols)

    def _common_protocols(self) -> set[str]:
        names = [{protocol.name for protocol in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def choose_protocol(self, instead: Mapping[str, tuple[MemberProtocol, ...]] = _NOTHING) -> str:
        """Return the most preferred protocol that all members support; `instead` overrides a member's protocols."""
        known = [instead.get(member.member_id, member.protocols) for member in self.members.values()]
        common = set.intersection(*({protocol.name for protocol in protocols} for protocols in known))
        votes: dict[str, int] = {}
        for protocols in known:
            favourite = next((protocol.name for protocol in protocols if protocol.name in common), None)
            if favourite is not None:
                votes[favourite] = votes.get(favourite, 0) + 1
        if not votes:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return max(votes, key=lambda name: votes[name])

    # --- generations

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has rejoined, else elect the first member that has; return whether there is one."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.joining is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self) -> None:
        """Start the next generation with the current members."""
        self.protocol = self.choose_protocol()
        self.generation += 1
        self.state = GroupState.COMPLETING_REBALANCE

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return all members as the leader sees them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    # --- as a record

    def to_record(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """Return the group's record, with the given assignments or those that the members have."""
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

    def to_record_with(self, old_id: str, incarnation: Member) -> GroupMetadataValue:
        """Return the group's record after a static member's new incarnation has replaced it."""
        value = self.to_record({})
        for stored in value.members:
            if stored.member_id == old_id:
                stored.member_id = incarnation.member_id
                stored.client_id, stored.client_host = incarnation.client_id, incarnation.client_host
                stored.rebalance_timeout = incarnation.rebalance_timeout_ms
                stored.session_timeout = incarnation.session_timeout_ms
                stored.subscription = incarnation.metadata_for(self.protocol)
        if value.leader == old_id:
            value.leader = incarnation.member_id
        return value

    def to_empty_record(self, now_ms: int) -> GroupMetadataValue:
        """Return the group's record for the next generation, without members."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation + 1,
            protocol=None,
            leader=None,
            current_state_timestamp=now_ms,
            members=[],
        )

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply a record; members that stay keep their timers and waiting requests, which no record holds."""
        former, former_static = self.members, self.static_members
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_since_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol if value.members else None
        self.members, self.static_members, self.leader = {}, {}, None
        for stored in value.members:
            member = former.get(stored.member_id)
            if member is None and stored.group_instance_id is not None:
                member = former.get(former_static.get(stored.group_instance_id, UNKNOWN_MEMBER))
            self.add(Member.from_record(stored, value.protocol or "", member))
        if value.leader in self.members:
            self.leader = value.leader
        for member_id in former:
            if member_id not in self.members:
                self.owing_sync.pop(member_id, None)
