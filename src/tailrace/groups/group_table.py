"""The groups of one shard as its records describe them, and what is common to both protocols.

Nothing here writes, waits or has timers.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeAlias

from tailrace.errors import ErrorCode, KafkaError, WireError
from tailrace.groups.assignment import from_records
from tailrace.groups.classic_group import ClassicGroup, GroupState
from tailrace.groups.consumer_group import ConsumerGroup
from tailrace.groups.offsets import Offsets
from tailrace.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)
from tailrace.groups.subscription import CONSUMER_PROTOCOL_TYPE, decode_subscription

logger = logging.getLogger("tailrace.groups")

Group: TypeAlias = ClassicGroup | ConsumerGroup
ConsumerKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)

CLASSIC = "classic"
CONSUMER = "consumer"


class GroupListing(NamedTuple):
    """One group in a listing."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


class GroupTable:
    """All groups of a shard by name, and all offsets."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()

    def replay(self, key: bytes, value: bytes | None, log_offset: int, producer_id: int | None) -> None:
        """Apply one record; a producer id means that it is part of that producer's transaction."""
        try:
            decoded = decode_key(key)
            if decoded is None:
                return  # a newer version wrote it, for a kind of group that is unknown here
            content = None if value is None else decode_value(decoded, value)
        except WireError as error:
            logger.error("cannot read a record of the offsets topic: %s; skipping it", error)
            return
        match decoded:
            case OffsetCommitKey():
                assert content is None or isinstance(content, OffsetCommitValue)
                self.offsets.replay(decoded, content, log_offset, producer_id)
            case GroupMetadataKey():
                assert content is None or isinstance(content, GroupMetadataValue)
                self._replay_classic(decoded.group, content)
            case ConsumerGroupPartitionMetadataKey():
                pass  # what a group saw of its topics, as older versions of Kafka wrote it
            case _:
                self._replay_consumer(decoded, content)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is not None:
            if not isinstance(group, ClassicGroup):
                group = self.groups[group_id] = ClassicGroup(group_id)
            group.replay(value)
        elif isinstance(group, ClassicGroup):
            del self.groups[group_id]

    def _replay_consumer(self, key: ConsumerKey, value: object) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        match key, value:
            case ConsumerGroupMetadataKey(), None:
                del self.groups[key.group_id]
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue() | None:
                group.replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey(), ConsumerGroupTargetAssignmentMetadataValue():
                group.target_epoch = value.assignment_epoch
            case ConsumerGroupTargetAssignmentMemberKey(), None:
                group.target.pop(key.member_id, None)
            case ConsumerGroupTargetAssignmentMemberKey(), ConsumerGroupTargetAssignmentMemberValue():
                group.target[key.member_id] = from_records(value.topic_partitions)
            case ConsumerGroupCurrentMemberAssignmentKey(), ConsumerGroupCurrentMemberAssignmentValue() | None:
                group.replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey(), None:
                group.resolved.pop(key.regular_expression, None)
            case ConsumerGroupRegularExpressionKey(), ConsumerGroupRegularExpressionValue():
                group.resolved[key.regular_expression] = value

    def list_groups(self) -> list[GroupListing]:
        """List every group, including those that only have offsets."""
        listed = [
            GroupListing(group.group_id, group.protocol_type or "", group.shown_state.value, CLASSIC)
            if isinstance(group, ClassicGroup)
            else GroupListing(group.group_id, CONSUMER_PROTOCOL_TYPE, group.state.value, CONSUMER)
            for group in self.groups.values()
        ]
        listed += [
            GroupListing(group_id, "", GroupState.EMPTY.value, CLASSIC)
            for group_id in self.offsets.groups()
            if group_id not in self.groups
        ]
        return listed

    def member_counts(self) -> list[tuple[str, int]]:
        """Return the number of members of each group."""
        return [(group_id, len(group.members)) for group_id, group in self.groups.items()]

    def describe(self, group_id: str) -> Group:
        """Return a group; one that only has offsets is an empty classic group."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if self.offsets.has_any(group_id):
            return ClassicGroup(group_id)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")

    def group_ids(self) -> list[str]:
        """Return every group id, including groups that only have offsets."""
        return list(dict.fromkeys([*self.groups, *self.offsets.groups()]))

    def empty_since_ms(self, group_id: str) -> int | None:
        """Return when a group lost its last member; -1 if unknown, None if it is not empty."""
        group = self.groups.get(group_id)
        if group is None:
            return -1
        return _empty_since(group) if _is_empty(group) else None


def subscribed_topics(group: Group | None) -> set[str]:
    """Return the topics that members read; refuse a group whose members may read anything."""
    if group is None or not group.members:
        return set()
    if isinstance(group, ConsumerGroup):
        return set().union(*(group.topics_of(member) for member in group.members.values()))
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    topics: set[str] = set()
    for member in group.members.values():
        for protocol in member.protocols:
            try:
                topics.update(decode_subscription(protocol.metadata).topics)
            except WireError:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP) from None
    return topics


def _is_empty(group: Group) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is GroupState.EMPTY and not group.members and not group.pending


def _empty_since(group: Group) -> int:
    return group.empty_since_ms if isinstance(group, ConsumerGroup) else group.state_since_ms
