"""Members of the classic protocol in a group of the newer one, and the conversion between the two kinds of groups.

Users upgrade or roll back an application one member at a time. While both kinds of members are there, the coordinator
assigns, and speaks to each member in its own protocol. For a classic member the generation is its member epoch; it gets
REBALANCE_IN_PROGRESS whenever it must rejoin to take its next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tailrace.cluster.image import ClusterImage
from tailrace.coordinator.journal import JournalRecord
from tailrace.errors import ErrorCode, KafkaError, WireError
from tailrace.groups.assignment import NOTHING, Assignment, of_pairs, pairs_of, without
from tailrace.groups.classic import Identity, JoinCall, Left, SyncCall
from tailrace.groups.classic_group import UNKNOWN_MEMBER, ClassicGroup, GroupState, JoinResult, Member, SyncResult
from tailrace.groups.consumer import ConsumerProtocol, group_records, partitions_by_name
from tailrace.groups.consumer_group import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from tailrace.groups.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)

#: Assignors whose data with an assignment only repeats it. librdkafka sends such data.
_STICKY = ("sticky", "cooperative-sticky")


class ClassicMembers:
    """Speaks the classic protocol for groups of the newer one."""

    def __init__(
        self, consumer: ConsumerProtocol, image: Callable[[], ClusterImage], new_id: Callable[[], str]
    ) -> None:
        self._consumer = consumer
        self._image = image
        self._new_id = new_id

    # --- the classic requests

    def join(self, group: ConsumerGroup, call: JoinCall) -> JoinResult | asyncio.Future[JoinResult]:
        """Add a classic member or let it rejoin; the response is immediate: the coordinator waits for no one."""
        subscription = self._check(group, call)
        former: ConsumerMember | None = None
        before: ConsumerMember | None = None
        member_id = call.member_id
        if member_id == UNKNOWN_MEMBER:
            place = call.instance_id if call.instance_id is not None else call.client_id
            member_id = f"{place}-{self._new_id()}"
            if call.instance_id is None and call.needs_known_id:
                return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            if call.instance_id is not None and (known := group.static_members.get(call.instance_id)) is not None:
                former = group.members[known]
                if former.classic is None and former.epoch != LEAVING_FOR_A_WHILE:
                    raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID)
        elif member_id in group.members:
            before = self._member(group, member_id, call.instance_id)
        elif call.instance_id is not None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if before is None and former is None:
            self._consumer.require_room(len(group.members))
        member = self._described(before or former, member_id, call, subscription)
        epoch = JOINING if before is None else before.epoch
        owned = self._owned(subscription, before)
        name = call.protocols[0].name
        return self._consumer.change(
            group,
            member,
            before,
            former,
            owned,
            epoch,
            lambda changed: JoinResult(
                generation=changed.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol=name,
                member_id=changed.member_id,
            ),
        )

    def _check(self, group: ConsumerGroup, call: JoinCall) -> ConsumerProtocolSubscription:
        names = [
            {item.name for item in member.classic.protocols} for member in group.members.values() if member.classic
        ]
        offered = {item.name for item in call.protocols}
        if call.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered or not set.intersection(offered, *names):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            return decode_subscription(call.protocols[0].metadata)
        except WireError:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None

    def _described(
        self,
        base: ConsumerMember | None,
        member_id: str,
        call: JoinCall,
        subscription: ConsumerProtocolSubscription,
    ) -> ConsumerMember:
        start = base or ConsumerMember(member_id)
        is_same = base is not None and base.member_id == member_id
        return ConsumerMember(
            member_id=member_id,
            instance_id=call.instance_id,
            rack_id=subscription.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            topics=frozenset(subscription.topics),
            regex=None,
            rebalance_timeout_ms=call.rebalance_timeout_ms,
            assignor=start.assignor,
            classic=ClassicMetadata(call.session_timeout_ms, call.protocols),
            epoch=start.epoch if is_same else 0,
            previous_epoch=start.previous_epoch if is_same else 0,
            state=start.state if is_same else MemberState.STABLE,
            assigned=start.assigned if is_same else NOTHING,
            revoking=start.revoking if is_same else NOTHING,
        )

    def _owned(self, subscription: ConsumerProtocolSubscription, before: ConsumerMember | None) -> Assignment:
        """Return the partitions that the member says it owns; none if they are from another generation."""
        if before is None or subscription.generation_id not in (-1, before.epoch):
            return NOTHING
        topics = self._image().topics
        return of_pairs(
            (topics[item.topic].lineage, number)
            for item in subscription.owned_partitions
            if item.topic in topics
            for number in item.partitions
        )

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _current(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerMember:
        member = self._member(group, member_id, instance_id)
        if generation != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def sync(self, group: ConsumerGroup, call: SyncCall) -> SyncResult:
        """Return a member's current assignment in the format of its own protocol."""
        member = self._current(group, call.member_id, call.instance_id, call.generation)
        assert member.classic is not None
        name = member.classic.protocols[0].name
        if call.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or call.protocol not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._consumer.watch(group, member)
        return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, name, self._encoded(member.assigned))

    def _encoded(self, assignment: Assignment) -> bytes:
        named = partitions_by_name(assignment, self._image())
        return encode_assignment(
            ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartitions(topic=name, partitions=numbers) for _, name, numbers in named]
            ),
            0,
        )

    def heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Record that a member is alive; return REBALANCE_IN_PROGRESS if it must rejoin for its next step."""
        member = self._current(group, member_id, instance_id, generation)
        self._consumer.watch(group, member)
        if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            missing = without(group.target.get(member_id, NOTHING), member.assigned)
            if any(group.is_free(pair, (member_id,)) for pair in pairs_of(missing)):
                return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: ConsumerGroup, identities: Sequence[Identity]) -> list[Left] | asyncio.Future[list[Left]]:
        """Remove members of either protocol."""
        left: list[Left] = []
        gone: list[str] = []
        for identity in identities:
            error = ErrorCode.NONE
            known = identity.member_id
            if identity.instance_id is not None:
                known = group.static_members.get(identity.instance_id, "")
                if known and identity.member_id not in (UNKNOWN_MEMBER, known):
                    error = ErrorCode.FENCED_INSTANCE_ID
            if error is ErrorCode.NONE:
                if known in group.members:
                    gone.append(known)
                else:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
            left.append(Left(identity.member_id, identity.instance_id, error))
        if not gone:
            return left
        return self._consumer.remove(group, list(dict.fromkeys(gone)), left)

    # --- conversion between the two kinds of groups

    def upgraded(self, group: ClassicGroup) -> list[JournalRecord]:
        """Return the records that convert a classic group to the newer protocol; refuse unreadable member metadata."""
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise not_upgraded(group, "the group does not use the consumer embedded protocol.")
        topics = self._image().topics
        members: list[ConsumerMember] = []
        try:
            for member in group.members.values():
                subscription = decode_subscription(member.metadata_for(group.protocol) or member.protocols[0].metadata)
                assignment = decode_assignment(member.assignment) if member.assignment else ConsumerProtocolAssignment()
                if assignment.user_data and group.protocol not in _STICKY:
                    # Its assignor reads this data again with the next assignment, which the coordinator would compute.
                    raise not_upgraded(
                        group,
                        "an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
                        "default assignor before re-attempting the upgrade.",
                    )
                members.append(
                    ConsumerMember(
                        member_id=member.member_id,
                        instance_id=member.instance_id,
                        rack_id=subscription.rack_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        topics=frozenset(subscription.topics),
                        rebalance_timeout_ms=member.rebalance_timeout_ms,
                        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
                        epoch=group.generation,
                        previous_epoch=group.generation,
                        assigned=of_pairs(
                            (topics[item.topic].lineage, number)
                            for item in assignment.assigned_partitions
                            if item.topic in topics
                            for number in item.partitions
                        ),
                    )
                )
        except WireError:
            raise not_upgraded(group, "the embedded consumer protocol is malformed.") from None
        return group_records(group.group_id, group.generation, members)

    def downgraded(self, group: ConsumerGroup) -> ClassicGroup:
        """Convert a group with only classic members to a classic group that keeps their assignment."""
        classic = ClassicGroup(
            group.group_id,
            state=GroupState.STABLE,
            came_from_empty=False,
            generation=group.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
        )
        for member in group.members.values():
            assert member.classic is not None
            classic.add(
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    protocols=member.classic.protocols,
                    assignment=self._encoded(member.assigned),
                )
            )
        classic.protocol = classic.choose_protocol()
        return classic


def not_upgraded(group: ClassicGroup, why: str) -> KafkaError:
    """Return the error that says in Kafka's words why a classic group cannot be upgraded."""
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group.group_id} to consumer group because {why}"
    )
