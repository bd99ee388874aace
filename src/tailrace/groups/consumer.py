"""The newer group protocol (KIP-848): members send subscriptions in heartbeats, the coordinator sends assignments.

Each heartbeat is one operation: it computes its changes on values, writes them as one batch of records, and replays
them into the group. If the journal refuses the batch, nothing changes. Timers are not stored: they restart when a shard
loads.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.coordinator.deadlines import Deadline
from tailrace.coordinator.journal import JournalRecord
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.assignment import NOTHING, Assignment, owned_to_records, to_records
from tailrace.groups.assignors import ASSIGNORS, AssignedTopic, Candidate
from tailrace.groups.consumer_group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from tailrace.groups.counters import GroupCounters
from tailrace.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    encode_key,
    encode_value,
)
from tailrace.groups.settings import GroupSettings
from tailrace.groups.topic_patterns import matching_topics
from tailrace.model import TopicId
from tailrace.runtime.clock import Clock

logger = logging.getLogger("tailrace.groups")

R = TypeVar("R")


class Keep(Protocol):
    """Writes records, replays them, and returns the result once they are committed."""

    def __call__(self, records: Sequence[JournalRecord], result: R) -> R | asyncio.Future[R]: ...


class HeartbeatCall(NamedTuple):
    """The content of a heartbeat; None means unchanged since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def says_all(self) -> bool:
        """True if the member repeats its whole state, as it does when it does not know what the coordinator has."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None

    def adds_nothing_to(self, member: ConsumerMember) -> bool:
        """True if the heartbeat contains nothing new; most only show that the member is alive."""
        return (
            self.epoch != JOINING
            and self.member_id == member.member_id
            and self.instance_id in (None, member.instance_id)
            and self.rack_id is None
            and self.topics is None
            and self.regex is None
            and self.assignor is None
            and member.classic is None
            and self.rebalance_timeout_ms == -1
            and self.client_id == member.client_id
            and self.client_host == member.client_host
        )


class HeartbeatResult(NamedTuple):
    """The response to a member; the assignment is None if it has not changed."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None


class Change(NamedTuple):
    """A member after one operation, and the records that describe the change."""

    member: ConsumerMember
    records: list[JournalRecord]


class ConsumerProtocol:
    """Drives the groups of the newer protocol of one shard."""

    def __init__(
        self,
        settings: Callable[[], GroupSettings],
        keep: Keep,
        image: Callable[[], ClusterImage],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        after_removal: Callable[[ConsumerGroup], None],
        counters: GroupCounters,
    ) -> None:
        self._settings = settings
        self._keep = keep
        self._image = image
        self._clock = clock
        self._loop = loop
        #: Called after members were removed: the remaining ones may all speak the classic protocol.
        self._after_removal = after_removal
        self._counters = counters

    # --- life of a group

    def begin(self, group: ConsumerGroup) -> None:
        """Start the timers of a group that was loaded."""
        group.empty_since_ms = self._clock.wall_ms()
        for member in group.members.values():
            self.watch(group, member)

    def end(self, group: ConsumerGroup) -> None:
        """Stop the timers."""
        for deadline in [*group.sessions.values(), *group.revocations.values()]:
            deadline.clear()
        group.sessions.clear()
        group.revocations.clear()

    def watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Restart a member's session timer, and the timer in which it must revoke partitions."""
        member_id = member.member_id
        session = group.sessions.get(member_id)
        if session is None:
            session = group.sessions[member_id] = Deadline(
                self._loop, lambda: self._overdue(group, member_id, "sent no heartbeat; removing it")
            )
        timeout = self._settings().consumer_session_timeout_ms
        session.set(timeout if member.classic is None else member.classic.session_timeout_ms)
        revocation = group.revocations.get(member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            if revocation is not None:
                group.revocations.pop(member_id).clear()
        elif revocation is None:
            revocation = group.revocations[member_id] = Deadline(
                self._loop,
                lambda: self._overdue(group, member_id, "did not revoke its partitions in time; removing it"),
            )
            revocation.set(member.rebalance_timeout_ms)

    def _overdue(self, group: ConsumerGroup, member_id: str, why: str) -> None:
        if member_id not in group.members:
            return
        logger.info("group %s: member %s %s", group.group_id, member_id, why)
        try:
            result = self.remove(group, [member_id], None)
        except KafkaError as error:
            logger.warning("group %s: cannot remove member %s: %s; it stays for now", group.group_id, member_id, error)
            self.watch(group, group.members[member_id])
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(lambda future: None if future.cancelled() else future.exception())

    # --- heartbeats

    def check_assignor(self, call: HeartbeatCall) -> None:
        """Refuse an unsupported assignor; a member that leaves needs none."""
        if call.assignor is None or call.epoch < JOINING:
            return
        supported = self._settings().consumer_assignors
        if call.assignor not in supported:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {call.assignor} is not supported. Supported assignors: {', '.join(supported)}.",
            )

    def heartbeat(self, group: ConsumerGroup, call: HeartbeatCall) -> HeartbeatResult | asyncio.Future[HeartbeatResult]:
        """Handle a heartbeat: a member joins, stays or leaves."""
        if call.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return self._leave(group, call)
        settings = self._settings()
        before, former = self._find(group, call)
        shown = before.assigned if before is not None else NOTHING
        always_told = call.epoch == JOINING or call.says_all
        return self.change(
            group,
            self._described(before or former, call),
            before,
            former,
            call.owned,
            call.epoch,
            lambda member: HeartbeatResult(
                member.member_id,
                member.epoch,
                settings.consumer_heartbeat_interval_ms,
                member.assigned if always_told or member.assigned != shown else None,
            ),
        )

    def change(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        before: ConsumerMember | None,
        former: ConsumerMember | None,
        owned: Assignment | None,
        epoch: int,
        answer: Callable[[ConsumerMember], R],
    ) -> R | asyncio.Future[R]:
        """Replace `before`, or the `former` static member, by the member's new description, and take its next step."""
        change = self._advance(group, member, before, former, owned, epoch)
        kept = self._keep(change.records, answer(change.member))
        if former is not None:
            self._unwatch(group, former.member_id)
        group.seen_image = self._image()
        self.watch(group, group.members[member.member_id])
        return kept

    def _find(self, group: ConsumerGroup, call: HeartbeatCall) -> tuple[ConsumerMember | None, ConsumerMember | None]:
        """Return the current member or the static member that it replaces; neither for a new member."""
        member = group.members.get(call.member_id)
        if call.instance_id is not None:
            known_id = group.static_members.get(call.instance_id)
            static = None if known_id is None else group.members[known_id]
            if call.epoch == JOINING:
                if static is not None and static.member_id != call.member_id:
                    if static.epoch != LEAVING_FOR_A_WHILE:
                        raise KafkaError(
                            ErrorCode.UNRELEASED_INSTANCE_ID,
                            f"Static member {call.member_id} with instance id {call.instance_id} cannot join the group "
                            f"because the instance id is owned by {static.member_id} member.",
                        )
                    return None, static
            elif static is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {call.instance_id} is unknown.")
            elif static.member_id != call.member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {call.member_id} with instance id {call.instance_id} was fenced by member "
                    f"{static.member_id}.",
                )
        if member is None:
            if call.epoch != JOINING:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"Member {call.member_id} is not a member of group {group.group_id}.",
                )
            self.require_room(len(group.members))
            return None, None
        if call.epoch != JOINING and not group.accepts_epoch(member, call.epoch, call.owned):
            word = "greater" if call.epoch > member.epoch else "smaller"
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {word} member epoch ({call.epoch}) than the one known by the group "
                f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
            )
        return member, None

    def require_room(self, members: int) -> None:
        """Refuse a new member if the group is full."""
        limit = self._settings().consumer_max_size
        if members >= limit:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _described(self, base: ConsumerMember | None, call: HeartbeatCall) -> ConsumerMember:
        """Return the member with what it now says of itself; a joining member owns nothing."""
        if base is not None and call.adds_nothing_to(base):
            return base
        member = replace(base or ConsumerMember(call.member_id), member_id=call.member_id)
        if call.epoch == JOINING:
            member = member.owning(None)
        return replace(
            member,
            instance_id=call.instance_id if call.instance_id is not None else member.instance_id,
            rack_id=call.rack_id if call.rack_id is not None else member.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            topics=call.topics if call.topics is not None else member.topics,
            regex=member.regex if call.regex is None else (call.regex or None),
            rebalance_timeout_ms=(
                call.rebalance_timeout_ms if call.rebalance_timeout_ms != -1 else member.rebalance_timeout_ms
            ),
            assignor=call.assignor if call.assignor is not None else member.assignor,
            classic=None,
        )

    def _advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        before: ConsumerMember | None,
        former: ConsumerMember | None,
        owned: Assignment | None,
        epoch: int,
    ) -> Change:
        """Compute what follows from a member's description: new epochs, a new target assignment, its next step."""
        image = self._image()
        group_id = group.group_id
        records: list[JournalRecord] = []
        base = before or former
        if former is not None:
            records += _removal(group_id, former.member_id)
        if before is None or (member is not before and _description(before) != _description(member)):
            records.append(_member_record(group_id, member))
        is_changed = base is None or (base.topics, base.regex) != (member.topics, member.regex)
        is_behind = group.epoch > group.target_epoch
        if is_changed or is_behind or group.seen_image is not image:
            members = {key: other for key, other in group.members.items() if former is None or key != former.member_id}
            members[member.member_id] = member
            resolved = self._resolve(group, members.values(), image, records)
            topics = _topics_of(members.values(), resolved, image)
            metadata_hash = _hash_of(topics, image)
            is_changed = is_changed or metadata_hash != group.metadata_hash
            if is_changed or is_behind:
                next_epoch = group.epoch + 1 if is_changed else group.epoch
                if is_changed:
                    records.append(_group_record(group_id, next_epoch, metadata_hash))
                former_ids = {} if former is None else {member.member_id: former.member_id}
                target = self._assign(group, members, resolved, topics, image, next_epoch, former_ids, records)
                return self._step(
                    group, member, before, former, target[member.member_id], next_epoch, owned, epoch, records
                )
        target_of = member.member_id if former is None else former.member_id
        share = group.target.get(target_of, NOTHING)
        if former is not None:
            records.append(_target_record(group_id, member.member_id, share))
        return self._step(group, member, before, former, share, group.target_epoch, owned, epoch, records)

    def _step(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        before: ConsumerMember | None,
        former: ConsumerMember | None,
        share: Assignment,
        target_epoch: int,
        owned: Assignment | None,
        epoch: int,
        records: list[JournalRecord],
    ) -> Change:
        owned = NOTHING if epoch == JOINING else owned
        former_id = None if former is None else former.member_id
        stepped = group.reconciled(member, share, target_epoch, owned, former_id)
        if before is None or _ownership(before) != _ownership(stepped):
            records.append(_current_record(group.group_id, stepped))
        return Change(stepped, records)

    # --- subscriptions

    def _resolve(
        self,
        group: ConsumerGroup,
        members: Iterable[ConsumerMember],
        image: ClusterImage,
        records: list[JournalRecord],
    ) -> Mapping[str, Sequence[str]]:
        """Match the members' regular expressions against the topics, and add records for what changed."""
        resolved: dict[str, Sequence[str]] = {}
        for regex in dict.fromkeys(member.regex for member in members if member.regex is not None):
            topics = matching_topics(regex, image.topics)
            resolved[regex] = topics
            known = group.resolved.get(regex)
            if known is None or known.topics != topics:
                key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
                value = ConsumerGroupRegularExpressionValue(topics=topics, timestamp=self._clock.wall_ms())
                records.append((encode_key(key), encode_value(value)))
        for regex in group.resolved:
            if regex not in resolved:
                key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
                records.append((encode_key(key), None))
        return resolved

    # --- the target assignment

    def _assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        resolved: Mapping[str, Sequence[str]],
        topics: Mapping[str, TopicImage],
        image: ClusterImage,
        epoch: int,
        former_ids: Mapping[str, str],
        records: list[JournalRecord],
    ) -> dict[str, Assignment]:
        """Compute the target assignment, and add records for what changed."""
        settings = self._settings()
        name = group.assignor_name(members.values(), settings.consumer_assignors[0])
        candidates = [
            Candidate(
                member.member_id,
                frozenset(
                    topics[topic].lineage
                    for topic in (*member.topics, *resolved.get(member.regex or "", ()))
                    if topic in topics
                ),
                group.target.get(former_ids.get(member.member_id, member.member_id), NOTHING),
                member.instance_id,
                member.rack_id,
            )
            for member in members.values()
        ]
        shared = {topic.lineage: _assigned_topic(topic, image) for topic in topics.values()}
        target = ASSIGNORS.get(name, ASSIGNORS[settings.consumer_assignors[0]])(candidates, shared)
        for member_id, share in target.items():
            if member_id not in group.target or group.target[member_id] != share:
                records.append(_target_record(group.group_id, member_id, share))
        key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id)
        records.append(
            (encode_key(key), encode_value(ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)))
        )
        self._counters.consumer_rebalances += 1
        logger.info("group %s: epoch %d has %d members, assignor %s", group.group_id, epoch, len(members), name)
        return target

    # --- leaving

    def _leave(self, group: ConsumerGroup, call: HeartbeatCall) -> HeartbeatResult | asyncio.Future[HeartbeatResult]:
        member = group.members.get(call.member_id)
        if call.instance_id is not None:
            known_id = group.static_members.get(call.instance_id)
            if known_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {call.instance_id} is unknown.")
            if known_id != call.member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {call.member_id} with instance id {call.instance_id} was fenced by member "
                    f"{known_id}.",
                )
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {call.member_id} is not a member of group {group.group_id}."
            )
        result = HeartbeatResult(call.member_id, call.epoch, self._settings().consumer_heartbeat_interval_ms, None)
        if call.epoch == LEAVING_FOR_A_WHILE and member.instance_id is not None:
            away = replace(member, epoch=LEAVING_FOR_A_WHILE, previous_epoch=member.epoch, revoking=NOTHING)
            kept = self._keep([_current_record(group.group_id, away)], result)
            self.watch(group, group.members[member.member_id])
            return kept
        logger.info("group %s: member %s left", group.group_id, call.member_id)
        return self.remove(group, [call.member_id], result)

    def remove(self, group: ConsumerGroup, member_ids: Sequence[str], result: R) -> R | asyncio.Future[R]:
        """Remove members; others get their partitions in the next epoch."""
        records: list[JournalRecord] = []
        for member_id in member_ids:
            records += _removal(group.group_id, member_id)
        image = self._image()
        members = {key: member for key, member in group.members.items() if key not in member_ids}
        resolved = self._resolve(group, members.values(), image, records)
        topics = _topics_of(members.values(), resolved, image)
        epoch = group.epoch + 1
        records.append(_group_record(group.group_id, epoch, _hash_of(topics, image)))
        # The next heartbeat computes the new assignment: a restarted member is back before most others send one, and
        # finds its partitions free.
        kept = self._keep(records, result)
        for member_id in member_ids:
            self._unwatch(group, member_id)
        if not group.members:
            group.empty_since_ms = self._clock.wall_ms()
        self._after_removal(group)
        return kept

    def _unwatch(self, group: ConsumerGroup, member_id: str) -> None:
        for deadlines in (group.sessions, group.revocations):
            deadline = deadlines.pop(member_id, None)
            if deadline is not None:
                deadline.clear()

    # --- offsets

    def check_commit(self, group: ConsumerGroup, member_id: str, epoch: int) -> None:
        """Refuse a commit from a client that is not in the group, or is in another epoch."""
        if epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION if member.classic is not None else ErrorCode.STALE_MEMBER_EPOCH
            )

    def check_fetch(self, group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
        """Refuse a member of another epoch; a client that names no member may read offsets."""
        if member_id is None and epoch < 0:
            return
        member = group.members.get(member_id or "")
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    def tombstones(self, group: ConsumerGroup) -> list[JournalRecord]:
        """Return the tombstones of all records of a group."""
        records: list[JournalRecord] = []
        for member_id in group.members:
            records += _removal(group.group_id, member_id)
        for regex in group.resolved:
            key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
            records.append((encode_key(key), None))
        records.append((encode_key(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id)), None))
        records.append((encode_key(ConsumerGroupMetadataKey(group_id=group.group_id)), None))
        return records


# --- records


def _description(member: ConsumerMember) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        member.rebalance_timeout_ms,
        member.assignor,
        member.classic,
    )


def _ownership(member: ConsumerMember) -> tuple[object, ...]:
    return member.epoch, member.previous_epoch, member.state, member.assigned, member.revoking


def _member_record(group_id: str, member: ConsumerMember) -> JournalRecord:
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
        ),
    )
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return encode_key(key), encode_value(value)


def _current_record(group_id: str, member: ConsumerMember) -> JournalRecord:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=owned_to_records(member.assigned),
        partitions_pending_revocation=owned_to_records(member.revoking),
    )
    return encode_key(key), encode_value(value)


def _target_record(group_id: str, member_id: str, share: Assignment) -> JournalRecord:
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return encode_key(key), encode_value(ConsumerGroupTargetAssignmentMemberValue(topic_partitions=to_records(share)))


def _group_record(group_id: str, epoch: int, metadata_hash: int) -> JournalRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return encode_key(ConsumerGroupMetadataKey(group_id=group_id)), encode_value(value)


def group_records(group_id: str, epoch: int, members: Sequence[ConsumerMember]) -> list[JournalRecord]:
    """Return the records of a whole group whose members all have their target assignment."""
    records = [_member_record(group_id, member) for member in members]
    records.append(_group_record(group_id, epoch, 0))
    records += [_target_record(group_id, member.member_id, member.assigned) for member in members]
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    records.append((encode_key(key), encode_value(ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))))
    records += [_current_record(group_id, member) for member in members]
    return records


def _removal(group_id: str, member_id: str) -> list[JournalRecord]:
    return [
        (encode_key(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)), None),
        (encode_key(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)), None),
        (encode_key(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)), None),
    ]


# --- topics


def _topics_of(
    members: Iterable[ConsumerMember], resolved: Mapping[str, Sequence[str]], image: ClusterImage
) -> dict[str, TopicImage]:
    """Return the existing topics that any member subscribes to, by name."""
    names: set[str] = set()
    for member in members:
        names |= member.topics
        if member.regex is not None:
            names.update(resolved.get(member.regex, ()))
    return {name: image.topics[name] for name in sorted(names) if name in image.topics}


def _assigned_topic(topic: TopicImage, image: ClusterImage) -> AssignedTopic:
    racks = tuple(
        frozenset(
            rack
            for replica in state.replicas
            if (broker := image.brokers.get(replica)) is not None and (rack := broker.rack) is not None
        )
        for state in topic.partitions
    )
    return AssignedTopic(topic.lineage, len(topic.partitions), racks)


def _hash_of(topics: Mapping[str, TopicImage], image: ClusterImage) -> int:
    """Return a hash that changes when a subscribed topic is created, deleted, grows or moves to other racks."""
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, topic in topics.items():
        described = _assigned_topic(topic, image)
        racks = [",".join(sorted(racks)) for racks in described.racks]
        digest.update(f"{name}\0{topic.lineage}\0{described.partitions}\0{';'.join(racks)}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def partitions_by_name(assignment: Assignment, image: ClusterImage) -> list[tuple[TopicId, str, list[int]]]:
    """Return an assignment with topic names, without deleted topics."""
    return [
        (topic.topic_id, topic.name, sorted(numbers))
        for lineage, numbers in assignment.items()
        if (topic := image.topics_by_lineage.get(lineage)) is not None
    ]
