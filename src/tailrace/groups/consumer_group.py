"""One group of the newer protocol (KIP-848): what its records say, and the rules that follow from them alone.

Only replay changes the group's epoch, its members, its target assignment and what each member owns on the way there.
Invariant: a partition has at most one owner, and a member that has not revoked it yet is still its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.assignment import (
    NOTHING,
    Assignment,
    both,
    contains,
    either,
    from_records,
    nothing,
    of_pairs,
    pairs_of,
    without,
)
from tailrace.groups.classic_group import UNKNOWN_MEMBER, MemberProtocol
from tailrace.groups.records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from tailrace.model import Lineage

#: The epochs with which a member joins, leaves for good, and leaves for a while.
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2


class ConsumerGroupState(StrEnum):
    """The states, with the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Where a member is on its way to its target assignment, numbered as in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicMetadata(NamedTuple):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member: what it says of itself, and what it owns."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=nothing)
    revoking: Assignment = field(default_factory=nothing)

    def described_by(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        """Return the member with the description in a record."""
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or None,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicMetadata(
                classic.session_timeout_ms,
                tuple(MemberProtocol(item.name, bytes(item.metadata)) for item in classic.supported_protocols),
            ),
        )

    def owning(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> ConsumerMember:
        """Return the member with the ownership in a record."""
        if value is None:
            return replace(
                self, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned=NOTHING, revoking=NOTHING
            )
        state = value.state if value.state in MemberState._value2member_map_ else MemberState.UNKNOWN
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(state),
            assigned=from_records(value.assigned_partitions),
            revoking=from_records(value.partitions_pending_revocation),
        )

    def at_epoch(self, epoch: int) -> ConsumerMember:
        """Return the member in another epoch; it remembers the previous one, as a response may get lost."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    @property
    def is_settled(self) -> bool:
        return self.state is MemberState.STABLE


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The members of a group and their target assignment."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    #: The topics that each regular expression matched.
    resolved: dict[str, ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    #: The member that owns a partition, or has not revoked it yet.
    _owners: dict[tuple[Lineage, int], str] = field(default_factory=dict)
    #: What members own whose description comes later in the log: compaction keeps only the last of each.
    _early: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)
    #: Not stored: session timers, revocation timers, the last image that was checked, and when the group became empty.
    sessions: dict[str, Deadline] = field(default_factory=dict)
    revocations: dict[str, Deadline] = field(default_factory=dict)
    seen_image: object = None
    empty_since_ms: int = -1

    # --- replay

    def replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        """Apply a member's description or its removal."""
        before = self.members.get(member_id)
        # A member may come back with another instance id: the former one is free then.
        if before is not None and self.static_members.get(before.instance_id or "") == member_id:
            del self.static_members[before.instance_id or ""]
        if value is None:
            self._early.pop(member_id, None)
            if before is not None:
                del self.members[member_id]
                self._disown(before)
            return
        member = (before or ConsumerMember(member_id)).described_by(value)
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        early = self._early.pop(member_id, None)
        if early is not None:
            self.replay_current(member_id, early)

    def replay_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        """Apply a change of what a member owns."""
        before = self.members.get(member_id)
        if before is None:
            if value is None:
                self._early.pop(member_id, None)
            else:
                self._early[member_id] = value
            return
        self._disown(before)
        member = before.owning(value)
        self.members[member_id] = member
        for pair in pairs_of(either(member.assigned, member.revoking)):
            self._owners[pair] = member_id

    def _disown(self, member: ConsumerMember) -> None:
        for pair in pairs_of(either(member.assigned, member.revoking)):
            if self._owners.get(pair) == member.member_id:
                del self._owners[pair]

    # --- rules

    def is_free(self, pair: tuple[Lineage, int], own_ids: tuple[str, ...]) -> bool:
        """True if no other member than `own_ids` owns a partition or still has to revoke it."""
        owner = self._owners.get(pair)
        return owner is None or owner in own_ids

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_settled and member.epoch == self.target_epoch for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, including those that its expression matched."""
        if member.regex is None:
            return member.topics
        resolved = self.resolved.get(member.regex)
        return member.topics | frozenset(resolved.topics if resolved is not None else ())

    def assignor_name(self, members: Iterable[ConsumerMember], default: str) -> str:
        """Return the assignor that most members ask for."""
        votes: dict[str, int] = {}
        for member in members:
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else default

    def reconciled(
        self,
        member: ConsumerMember,
        target: Assignment,
        target_epoch: int,
        owned: Assignment | None,
        former_id: str | None = None,
    ) -> ConsumerMember:
        """Take one step of a member towards its target; `owned` is what it says it owns, None if it says nothing new.

        It first revokes what the target does not contain, then moves to the target's epoch. After that it gets the
        partitions that are free, and more as others release them. What the member `former_id`, which it replaces, owned
        is free for it.
        """
        if member.state is MemberState.STABLE and member.epoch == target_epoch:
            return member
        if member.state is MemberState.UNREVOKED_PARTITIONS and (owned is None or both(owned, member.revoking)):
            return member
        kept = both(member.assigned, target)
        revoking = without(member.assigned, kept)
        if revoking and (owned is None or both(owned, revoking)):
            return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
        wanted = list(pairs_of(without(target, kept)))
        own_ids = (member.member_id,) if former_id is None else (member.member_id, former_id)
        free = [pair for pair in wanted if self.is_free(pair, own_ids)]
        assigned = either(kept, of_pairs(free))
        state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
        return replace(member.at_epoch(target_epoch), state=state, assigned=assigned, revoking=NOTHING)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, epoch: int) -> None:
        """Refuse a commit in a transaction from a client that is not in the group, or is in another epoch.

        A client of an old version says nothing of itself and is accepted. Producers know no error for a stale epoch.
        """
        if epoch < 0 and (not self.members or (member_id == UNKNOWN_MEMBER and instance_id is None)):
            return
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def accepts_epoch(self, member: ConsumerMember, epoch: int, owned: Assignment | None) -> bool:
        """True if a member's epoch is the current one, or the previous one because it never got the response."""
        if epoch == member.epoch:
            return True
        return epoch == member.previous_epoch and owned is not None and contains(member.assigned, owned)
