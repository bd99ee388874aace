"""One group of the newer protocol (KIP-848): what its records say, and the rules that follow from them alone.

Replayed, never changed by hand: the group's epoch, its members, the assignment it moves to and what each member owns
on the way there. Invariant: a partition is owned by at most one member, counting what a member has still to give up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from tailrace.coordinator.deadlines import Deadline
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
from tailrace.groups.classic_group import MemberProtocol
from tailrace.groups.records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from tailrace.model import Lineage

#: The epoch with which a member joins, and those with which it leaves for good or for a while.
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2


class ConsumerGroupState(StrEnum):
    """The states by the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Where a member is on its way to its target, as records number it."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicMetadata(NamedTuple):
    """What only a member has that still speaks the classic protocol."""

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
        """The member with what a record says it is."""
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
        """The member with what a record says it owns."""
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
        """The member in an epoch; the one before is remembered, for an answer may get lost."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    @property
    def is_settled(self) -> bool:
        return self.state is MemberState.STABLE


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The members of a group and where they are going."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    #: What each regular expression matched.
    resolved: dict[str, ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    #: The member that owns a partition, or still has to give it up.
    _owners: dict[tuple[Lineage, int], str] = field(default_factory=dict)
    #: Not kept: when members count as gone, when they must have given up partitions, and what was looked at last.
    sessions: dict[str, Deadline] = field(default_factory=dict)
    revocations: dict[str, Deadline] = field(default_factory=dict)
    seen_image: object = None
    empty_since_ms: int = -1

    # --- replay

    def replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        """A member describes itself, or is gone."""
        before = self.members.get(member_id)
        if value is None:
            if before is not None:
                del self.members[member_id]
                self._disown(before)
                if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                    del self.static_members[before.instance_id]
            return
        member = (before or ConsumerMember(member_id)).described_by(value)
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def replay_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        """A member's share changes."""
        before = self.members.get(member_id)
        if before is None:
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

    # --- what follows

    def is_free(self, pair: tuple[Lineage, int], own_ids: tuple[str, ...]) -> bool:
        """Whether nobody but these has a partition, or still has to let go of it."""
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
        """The names that a member subscribes to, with those that its expression matched."""
        if member.regex is None:
            return member.topics
        resolved = self.resolved.get(member.regex)
        return member.topics | frozenset(resolved.topics if resolved is not None else ())

    def assignor_name(self, members: Iterable[ConsumerMember], default: str) -> str:
        """The assignor that most members ask for."""
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
        """One step of a member towards its target; `owned` is what it says it has, None where it says nothing new.

        It gives up first what it shall not keep, and moves to the target's epoch when it has; then it gets what is
        free, and more as others let go. What `former_id` had, the member it takes the place of, is free for it.
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

    def accepts_epoch(self, member: ConsumerMember, epoch: int, owned: Assignment | None) -> bool:
        """Whether a member's epoch is the current one, or the last one because our answer to it got lost."""
        if epoch == member.epoch:
            return True
        return epoch == member.previous_epoch and owned is not None and contains(member.assigned, owned)
