"""One shard of the group coordinator: the groups whose names hash to one partition of the offsets topic.

Owns the requests of both protocols and what they share: describing, deleting. `group_table` has the groups, and only
replay changes them; `commits` writes and reads offsets; `housekeeping` removes what expires. Only commits without a
transaction are batched with others of the same turn of the loop; any other write flushes them first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from tailrace.cluster.image import ClusterImage
from tailrace.coordinator.journal import JournalRecord
from tailrace.coordinator.operations import Operations, let_be
from tailrace.coordinator.shard import Producer
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic import ClassicProtocol, Identity, JoinCall, Left, SyncCall
from tailrace.groups.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    JoinResult,
    SyncResult,
)
from tailrace.groups.classic_members import ClassicMembers, not_upgraded
from tailrace.groups.commits import Commits
from tailrace.groups.committed_offset import CommittedOffset, removal_record
from tailrace.groups.consumer import ConsumerProtocol, HeartbeatCall, HeartbeatResult
from tailrace.groups.consumer_group import JOINING, ConsumerGroup
from tailrace.groups.counters import GroupCounters
from tailrace.groups.deletions import Deletions
from tailrace.groups.group_table import Group, GroupTable, subscribed_topics
from tailrace.groups.housekeeping import CatchUp, Housekeeping
from tailrace.groups.newcomers import Newcomers
from tailrace.groups.records import GroupMetadataKey, encode_key, encode_value, require_storable
from tailrace.groups.settings import GroupSettings
from tailrace.model import TopicPartition
from tailrace.runtime.clock import Clock

logger = logging.getLogger("tailrace.groups")

R = TypeVar("R")


class GroupShard:
    """The groups and offsets of one partition."""

    def __init__(
        self,
        operations: Operations,
        settings: Callable[[], GroupSettings],
        image: Callable[[], ClusterImage],
        catch_up: CatchUp,
        clock: Clock,
        new_id: Callable[[], str],
        counters: GroupCounters,
        newcomers: Newcomers,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.table = table = GroupTable()
        self.offsets = table.offsets
        self.describe = table.describe
        self.list_groups = table.list_groups
        self.member_counts = table.member_counts
        self.group_ids = table.group_ids
        self.empty_since_ms = table.empty_since_ms
        self.classic = ClassicProtocol(settings, operations, clock, loop, new_id, counters, newcomers, self._abandoned)
        self.consumer = ConsumerProtocol(
            settings, operations.write, image, clock, loop, self._downgrade_if_classic, counters
        )
        commits = Commits(table, operations, self.classic, self.consumer, settings, image, clock, counters)
        self.commit = commits.commit
        self.commit_one = commits.commit_one
        self.commit_in_transaction = commits.commit_in_transaction
        self.end_transaction = commits.end_transaction
        self.committed = commits.committed
        self.pending = commits.pending
        self._classic_members = ClassicMembers(self.consumer, image, new_id)
        self._operations = operations
        self._settings = settings
        self._image = image
        self._clock = clock
        self._counters = counters
        self._groups = table.groups
        self._housekeeping = Housekeeping(
            self.offsets, self, operations.flush, settings, image, catch_up, clock, loop, counters
        )
        self._deletions = Deletions(
            table,
            operations,
            lambda group_id, offsets: self._keep_removal(group_id, offsets, ErrorCode.NONE),
            loop,
            counters,
        )

    # --- the shard

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        # What a producer writes in a transaction waits for its marker.
        producer_id = producer.producer_id if producer is not None and producer.in_transaction else None
        self.table.replay(key, value, offset, producer_id)

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        self.offsets.replay_marker(producer.producer_id, is_commit)

    def begin(self) -> None:
        for group in list(self._groups.values()):
            if isinstance(group, ClassicGroup):
                self.classic.begin(group)
            else:
                self.consumer.begin(group)
        self._housekeeping.begin()

    def end(self, reason: KafkaError) -> None:
        self._housekeeping.end()
        self._deletions.end(reason)
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                self.classic.end(group, reason.code)
            else:
                self.consumer.end(group)

    # --- the classic protocol

    def join(self, group_id: str, call: JoinCall) -> JoinResult | asyncio.Future[JoinResult]:
        """Join a group; a new member may create it."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        settings = self._settings()
        if not settings.min_session_timeout_ms <= call.session_timeout_ms <= settings.max_session_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        names = [protocol.name for protocol in call.protocols]
        require_storable(group_id, call.member_id, call.instance_id, call.client_id, call.protocol_type, *names)
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.members:
            return self._classic_members.join(group, call)
        if isinstance(group, ClassicGroup):
            return self.classic.join(group, call)
        if call.member_id != UNKNOWN_MEMBER:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        founded = ClassicGroup(group_id, state_since_ms=self._clock.wall_ms())
        self.classic.check_join(founded, call)
        if group is not None:
            self._operations.keep(self.consumer.tombstones(group))
            self.consumer.end(group)
        self._groups[group_id] = founded
        return self.classic.join(founded, call)

    def _abandoned(self, group: ClassicGroup) -> None:
        """Remove a group that never had a member; it has no record."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def sync(self, group_id: str, call: SyncCall) -> SyncResult | asyncio.Future[SyncResult]:
        """Return a member's assignment."""
        group = self._existing(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.sync(group, call)
        return self.classic.sync(group, call)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Record that a member is alive."""
        group = self._existing(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, member_id, instance_id, generation)
        return self.classic.heartbeat(group, member_id, instance_id, generation)

    def leave(self, group_id: str, identities: Sequence[Identity]) -> list[Left] | asyncio.Future[list[Left]]:
        """Remove members."""
        group = self._existing(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, identities)
        return self.classic.leave(group, identities)

    def _existing(self, group_id: str) -> Group:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # --- the newer protocol

    def consumer_heartbeat(
        self, group_id: str, call: HeartbeatCall
    ) -> HeartbeatResult | asyncio.Future[HeartbeatResult]:
        """Handle a heartbeat of the newer protocol: a member joins, stays or leaves."""
        require_storable(group_id, call.member_id, call.regex)
        self.consumer.check_assignor(call)
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup) and call.epoch == JOINING:
            group = self._upgrade(group)
        if group is None and call.epoch == JOINING:
            # Replay of the group's first record fills it.
            group = ConsumerGroup(group_id)
            self._groups[group_id] = group
            try:
                return self.consumer.heartbeat(group, call)
            except KafkaError:
                del self._groups[group_id]
                raise
        if not isinstance(group, ConsumerGroup):
            # The member was removed, and meanwhile its group became classic again or was deleted.
            raise self._no_consumer_group(group_id, call.epoch)
        return self.consumer.heartbeat(group, call)

    def _no_consumer_group(self, group_id: str, epoch: int) -> KafkaError:
        is_there = group_id in self._groups or self.offsets.has_any(group_id)
        if is_there:
            why = f"Group {group_id} is not a consumer group."
        else:
            why = f"Consumer group {group_id} not found." if epoch > JOINING else f"Group {group_id} not found."
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why)

    def _upgrade(self, group: ClassicGroup) -> ConsumerGroup | None:
        """Convert a classic group to the newer protocol; return None if there is nothing to keep."""
        tombstone: JournalRecord = (encode_key(GroupMetadataKey(group=group.group_id)), None)
        if not group.members:
            self._operations.keep([tombstone])
            self.classic.end(group, ErrorCode.UNKNOWN_MEMBER_ID)
            return None
        settings = self._settings()
        if not settings.may_upgrade:
            raise not_upgraded(group, "online upgrade is disabled.")
        records = self._classic_members.upgraded(group)
        if len(group.members) > settings.consumer_max_size:
            raise not_upgraded(group, "the group size exceeds the consumer group maximum size.")
        # A member that the group has no room for must not convert it for the others.
        self.consumer.require_room(len(group.members))
        self._operations.keep([tombstone, *records])
        # Clients that wait in a join or sync send it again, and find the converted group.
        self.classic.end(group, ErrorCode.REBALANCE_IN_PROGRESS)
        upgraded = self._groups[group.group_id]
        assert isinstance(upgraded, ConsumerGroup)
        self.consumer.begin(upgraded)
        logger.info(
            "group %s: converted to the newer protocol, with %d classic members", group.group_id, len(group.members)
        )
        return upgraded

    def _downgrade_if_classic(self, group: ConsumerGroup) -> None:
        """Convert a group back to the classic protocol when its last member of the newer protocol has left."""
        if not group.members or any(member.classic is None for member in group.members.values()):
            return
        settings = self._settings()
        if not settings.may_downgrade or len(group.members) > settings.max_size:
            return
        classic = self._classic_members.downgraded(group)
        record = (encode_key(GroupMetadataKey(group=group.group_id)), encode_value(classic.to_record({})))
        self._operations.keep([*self.consumer.tombstones(group), record])
        self.consumer.end(group)
        self._groups[group.group_id] = classic
        self.classic.begin(classic)
        self.classic.call_together(classic, "the last member of the newer protocol has left")
        logger.info("group %s: converted back to the classic protocol", group.group_id)

    # --- offsets

    def counts(self, topic_name: str, committed: CommittedOffset) -> bool:
        """True if a commit was made for the topic that has its name now; refuse if that is not known yet."""
        return self._housekeeping.counts(topic_name, committed)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | asyncio.Future[dict[TopicPartition, ErrorCode]]:
        """Delete committed offsets of topics that no member reads, and with them those of open transactions."""
        self._operations.flush()
        group = self._groups.get(group_id)
        if group is None and not self.offsets.has_any(group_id):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        subscribed = subscribed_topics(group)
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[JournalRecord] = []
        for partition in partitions:
            if partition.topic in subscribed:
                results[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            results[partition] = ErrorCode.NONE
            if self.offsets.has(group_id, partition):
                records.append(removal_record(group_id, partition))
        kept = self._operations.write(records, results)
        self._counters.offset_deletions += len(records)
        return kept

    # --- administration

    def delete_group(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Delete a group without members, with its offsets."""
        return self._deletions.delete(group_id)

    def _keep_removal(self, group_id: str, offsets: Sequence[JournalRecord], result: R) -> R | asyncio.Future[R]:
        """Remove a group without members; nothing changes if the journal refuses."""
        group = self._groups.get(group_id)
        if group is None:
            return self._operations.write(offsets, result)
        if isinstance(group, ConsumerGroup):
            kept = self._operations.write([*offsets, *self.consumer.tombstones(group)], result)
            self.consumer.end(group)
        else:
            kept = self._operations.write([*offsets, (encode_key(GroupMetadataKey(group=group_id)), None)], result)
            self.classic.end(group, ErrorCode.UNKNOWN_MEMBER_ID)
        return kept

    # --- operations for housekeeping

    def topics_deleted(self) -> None:
        """Remove the offsets of topics that the image no longer shows."""
        self._housekeeping.topics_deleted()

    def remove_group(self, group_id: str) -> bool:
        """Remove an empty group without its offsets; return whether there was anything to remove."""
        if group_id not in self._groups:
            return False
        let_be(self._keep_removal(group_id, (), None))
        return True

    def keep(self, records: Sequence[JournalRecord]) -> None:
        """Write records and replay them without waiting until they are committed."""
        self._operations.keep(records)
