"""Removes expired offsets, abandoned groups and commits of deleted topics from a shard.

Invariants: a commit counts only for the topic that it was made for, not for another one with the same name. Nothing is
removed because this broker does not know its topic yet, as the records of a shard may be newer than the image. Nothing
is written that would win over the offset of an open transaction, except to remove offsets of deleted topics. All work
goes in slices, so that it never delays others. This module must not know the rebalance protocols.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.coordinator.deadlines import Deadline
from tailrace.coordinator.journal import JournalRecord
from tailrace.coordinator.turns import Turns
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.committed_offset import CommittedOffset, commit_record, is_expired, removal_record
from tailrace.groups.counters import GroupCounters
from tailrace.groups.offsets import Offsets
from tailrace.groups.settings import GroupSettings
from tailrace.model import NO_TIMESTAMP, Lineage, TopicPartition
from tailrace.runtime.clock import Clock

logger = logging.getLogger("tailrace.groups")

#: The number of offsets in one slice. As many records fit into one batch, however long they are.
TOGETHER = 500

#: Calls back when the image has reached the state of the store at the time of the call.
CatchUp: TypeAlias = Callable[[Callable[[], None]], None]


class Groups(Protocol):
    """The group operations that housekeeping needs."""

    def group_ids(self) -> list[str]:
        """Return every group id, including groups that only have offsets."""
        ...

    def empty_since_ms(self, group_id: str) -> int | None:
        """Return when a group lost its last member; -1 if unknown, None if it is not empty."""
        ...

    def remove_group(self, group_id: str) -> bool:
        """Remove an empty group without its offsets; return whether there was anything to remove."""
        ...

    def keep(self, records: Sequence[JournalRecord]) -> None:
        """Write records and replay them without waiting until they are committed."""
        ...


class Housekeeping:
    """Keeps the tables of one shard clean."""

    def __init__(
        self,
        offsets: Offsets,
        groups: Groups,
        flush: Callable[[], None],
        settings: Callable[[], GroupSettings],
        image: Callable[[], ClusterImage],
        catch_up: CatchUp,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        counters: GroupCounters,
    ) -> None:
        self._offsets = offsets
        self._groups = groups
        self._flush = flush
        self._settings = settings
        self._image = image
        self._catch_up = catch_up
        self._clock = clock
        self._counters = counters
        self._expiry = Deadline(loop, self._expire)
        self._expiring = Turns(loop)
        self._checking = Turns(loop)
        self._is_over = False
        # Whether the image has shown every topic that has commits. After that, a topic that it does not show is
        # deleted.
        self._knows_topics = False
        # Whether offsets of deleted topics are left, because open transactions have others in the same partitions.
        self._has_leftovers = False

    def begin(self) -> None:
        """Start after all records were replayed."""
        self._offsets.loaded()
        self._checking.begin(self._check_topics)
        self._expiry.set(self._settings().offsets_retention_check_ms)

    def end(self) -> None:
        """Stop: another broker owns the shard now."""
        self._is_over = True
        self._expiry.clear()
        self._expiring.end()
        self._checking.end()

    # --- topics

    def counts(self, topic_name: str, committed: CommittedOffset) -> bool:
        """True if a commit was made for the topic that has its name now; refuse if that is not known yet."""
        topic = self._image().topics.get(topic_name)
        if committed.lineage is None or (topic is not None and topic.lineage == committed.lineage):
            return True
        if not self._knows_topics:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"The topic {topic_name} of a committed offset is not known here yet; retry.",
            )
        return False

    def topics_deleted(self) -> None:
        """Remove the offsets of topics that the image no longer shows."""
        self._checking.begin(self._check_topics)

    def _check_topics(self) -> Iterator[None]:
        """Remove offsets of deleted topics, and add the topic id to commits without one."""
        has_unknown = False
        removed = 0
        self._has_leftovers = False
        for places in self._places():
            self._flush()
            removals: list[JournalRecord] = []
            identified: list[JournalRecord] = []
            for group_id, partition in places:
                topic = self._image().topics.get(partition.topic)
                committed = self._offsets.of_group(group_id).get(partition)
                pending = self._offsets.pending.of_group(group_id).get(partition, ())
                offsets = [*pending] if committed is None else [committed, *pending]
                deleted = [offset for offset in offsets if not _may_be_of(topic, offset)]
                if topic is not None and not deleted:
                    if committed is not None and committed.lineage is None:
                        self._identify(group_id, partition, committed, topic.lineage, identified)
                elif not self._knows_topics:
                    has_unknown = True
                elif len(deleted) == len(offsets):
                    removals.append(removal_record(group_id, partition))
                else:
                    # Removing these would also remove offsets of the topic that has the name now.
                    self._has_leftovers = True
            self._keep_quietly(identified, "offsets without a topic id")
            if self._keep_quietly(removals, "offsets of deleted topics"):
                removed += len(removals)
                self._counters.offset_deletions += len(removals)
            yield
        if removed:
            logger.info("removed %d offsets: their topics were deleted", removed)
        if has_unknown and not self._knows_topics:
            self._catch_up(self._image_is_current)
        else:
            self._knows_topics = True

    def _identify(
        self,
        group_id: str,
        partition: TopicPartition,
        committed: CommittedOffset,
        lineage: Lineage,
        records: list[JournalRecord],
    ) -> None:
        """Add the topic id to a commit: in its record if that is possible, else in memory until the next load."""
        is_pending = partition in self._offsets.pending.of_group(group_id)
        # The one record version that has an expiry has no field for the topic id. And a record that is written after
        # those of open transactions would win over them.
        if committed.expire_timestamp == NO_TIMESTAMP and not is_pending:
            records.append(commit_record(group_id, partition, committed._replace(lineage=lineage)))
        else:
            self._offsets.identify(group_id, partition, lineage)

    def _image_is_current(self) -> None:
        if not self._is_over:
            self._knows_topics = True
            self._checking.begin(self._check_topics)

    def _places(self) -> Iterator[list[tuple[str, TopicPartition]]]:
        """Yield every place that has offsets, by group and partition, in slices; the table may change between two."""
        every = (
            (group_id, partition)
            for group_id in self._offsets.groups()
            for partition in self._offsets.partitions(group_id)
        )
        while places := list(islice(every, TOGETHER)):
            yield [place for place in places if self._offsets.has(*place)]

    # --- expiry

    def _expire(self) -> None:
        if self._has_leftovers:
            self._checking.begin(self._check_topics)
        self._expiring.begin(self._expire_in_turns)

    def _expire_in_turns(self) -> Iterator[None]:
        """Remove expired offsets of empty groups, then groups without offsets, be they of open transactions."""
        looked_at = 0
        for group_id in self._groups.group_ids():
            partitions = iter(list(self._offsets.of_group(group_id)))
            while True:
                piece = list(islice(partitions, TOGETHER))
                if not piece or not self._expire_some(group_id, piece):
                    break
                looked_at += len(piece)
                if looked_at >= TOGETHER:
                    looked_at = 0
                    yield
            self._remove_if_bare(group_id)
            looked_at += 1
            if looked_at >= TOGETHER:
                looked_at = 0
                yield
        self._expiry.set(self._settings().offsets_retention_check_ms)

    def _expire_some(self, group_id: str, partitions: Sequence[TopicPartition]) -> bool:
        """Remove the expired ones of these offsets; return False if the group's offsets cannot be removed now."""
        self._flush()
        empty_since_ms = self._groups.empty_since_ms(group_id)
        if empty_since_ms is None:
            return False
        now_ms, retention_ms = self._clock.wall_ms(), self._settings().offsets_retention_ms
        offsets, pending = self._offsets.of_group(group_id), self._offsets.pending.of_group(group_id)
        records: list[JournalRecord] = [
            removal_record(group_id, partition)
            for partition in partitions
            if (committed := offsets.get(partition)) is not None
            and partition not in pending
            and is_expired(committed, now_ms, retention_ms, empty_since_ms)
        ]
        if not records:
            return True
        if not self._keep_quietly(records, f"expired offsets of group {group_id}"):
            return False
        self._counters.offset_expirations += len(records)
        logger.info("group %s: removed %d expired offsets", group_id, len(records))
        return True

    def _remove_if_bare(self, group_id: str) -> None:
        """Remove an empty group that has no offsets left."""
        self._flush()
        if self._offsets.has_any(group_id) or self._groups.empty_since_ms(group_id) is None:
            return
        try:
            if self._groups.remove_group(group_id):
                logger.info("group %s: removed: it has neither members nor offsets", group_id)
        except KafkaError as error:
            logger.warning("group %s: cannot remove it: %s; retrying at the next check", group_id, error)

    def _keep_quietly(self, records: Sequence[JournalRecord], what: str) -> bool:
        """Write records without waiting; a later check repeats what fails. Return whether anything was written."""
        if not records:
            return False
        try:
            self._groups.keep(records)
        except KafkaError as error:
            logger.warning("cannot write records for %s: %s; retrying at a later check", what, error)
            return False
        return True


def _may_be_of(topic: TopicImage | None, offset: CommittedOffset) -> bool:
    """True if an offset was committed for this topic, or if its record does not say for which one."""
    return topic is not None and offset.lineage in (None, topic.lineage)
