"""Commits of offsets, with and without a transaction: who may commit, what is refused, what is written.

Ordinary commits share a batch with others of the same turn of the loop. Commits in a transaction are batches of their
producer, and take effect with its marker; until then the offsets are pending (`pending_offsets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from tailrace.cluster.image import ClusterImage
from tailrace.coordinator.operations import Operations
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic import ClassicProtocol
from tailrace.groups.classic_group import NO_GENERATION, UNKNOWN_MEMBER
from tailrace.groups.committed_offset import CommittedOffset, commit_record
from tailrace.groups.consumer import ConsumerProtocol
from tailrace.groups.consumer_group import ConsumerGroup
from tailrace.groups.counters import GroupCounters
from tailrace.groups.group_table import GroupTable
from tailrace.groups.records import require_storable
from tailrace.groups.settings import GroupSettings
from tailrace.model import NO_TIMESTAMP, Lineage, TopicPartition
from tailrace.runtime.clock import Clock
from tailrace.runtime.outcome import Outcome

#: The largest time that a record has room for.
_LATEST_MS = 2**63 - 1
#: A partition, its offset, leader epoch and metadata.
Offset: TypeAlias = tuple[TopicPartition, int, int, str | None]


class Committer(NamedTuple):
    """The member that commits; a client that is no member, or has an old version, says nothing of itself."""

    member_id: str = UNKNOWN_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION


class Commits:
    """The commits to one shard."""

    def __init__(
        self,
        table: GroupTable,
        operations: Operations,
        classic: ClassicProtocol,
        consumer: ConsumerProtocol,
        settings: Callable[[], GroupSettings],
        image: Callable[[], ClusterImage],
        clock: Clock,
        counters: GroupCounters,
    ) -> None:
        self._groups = table.groups
        self._offsets = table.offsets
        self._operations = operations
        self._classic = classic
        self._consumer = consumer
        self._settings = settings
        self._image = image
        self._clock = clock
        self._counters = counters

    # --- without a transaction

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        retention_ms: int,
        offsets: Iterable[Offset],
    ) -> tuple[dict[TopicPartition, ErrorCode], Outcome[None] | None]:
        """Commit offsets.

        Returns the refused ones with their errors, and what to wait for until the others are committed.
        """
        require_storable(group_id)
        self._check(group_id, member_id, instance_id, generation)
        now_ms = self._clock.wall_ms()
        expires_ms = min(now_ms + retention_ms, _LATEST_MS) if retention_ms >= 0 else NO_TIMESTAMP
        made, refused = self._make(offsets, now_ms, expires_ms)
        if not made:
            return refused, None
        records = [commit_record(group_id, partition, committed) for partition, committed in made.items()]
        written: Outcome[None] = Outcome()
        self._operations.write_shared(records, partial(self._offsets.take, group_id, made), written)
        self._counters.offset_commits += len(records)
        return refused, written

    def commit_one(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partition: TopicPartition,
        lineage: Lineage,
        offset: int,
        leader_epoch: int,
        written: Outcome[None],
    ) -> None:
        """Do what `commit` does, for one offset without metadata or a retention of its own.

        `written` ends when the offset is committed or has failed; it stays pending if this raises.
        """
        self._check(group_id, member_id, instance_id, generation)
        committed = CommittedOffset(offset, leader_epoch, "", self._clock.wall_ms(), NO_TIMESTAMP, lineage)
        record = commit_record(group_id, partition, committed)
        take = partial(self._offsets.take_one, group_id, partition, committed)
        self._operations.write_shared((record,), take, written)
        self._counters.offset_commits += 1

    def _check(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer.check_commit(group, member_id, generation)
        elif group is not None:
            self._classic.check_commit(group, member_id, instance_id, generation)
        elif generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")

    def _make(
        self, offsets: Iterable[Offset], now_ms: int, expires_ms: int
    ) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]:
        """Return the offsets to write, and the errors of those that are refused."""
        topics = self._image().topics
        made: dict[TopicPartition, CommittedOffset] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        for partition, offset, leader_epoch, metadata in offsets:
            if metadata and len(metadata) > self._settings().offset_metadata_max_bytes:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            topic = topics.get(partition.topic)
            lineage = None if topic is None else topic.lineage
            made[partition] = CommittedOffset(offset, leader_epoch, metadata or "", now_ms, expires_ms, lineage)
        return made, refused

    # --- in a transaction

    def commit_in_transaction(
        self, group_id: str, committer: Committer, producer_id: int, producer_epoch: int, offsets: Iterable[Offset]
    ) -> dict[TopicPartition, ErrorCode] | asyncio.Future[dict[TopicPartition, ErrorCode]]:
        """Commit offsets as part of a producer's transaction; returns the refused ones with their errors."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        require_storable(group_id)
        if producer_id < 0 or producer_epoch < 0:
            # Without them the records would be ordinary commits.
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactions need a producer id and an epoch.")
        self._check_in_transaction(group_id, committer)
        made, refused = self._make(offsets, self._clock.wall_ms(), NO_TIMESTAMP)
        for partition in [place for place, offset in made.items() if offset.lineage is None]:
            # The topic was deleted while the producer was admitted; the next one of its name must not get the offset.
            del made[partition]
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        records = [commit_record(group_id, partition, committed) for partition, committed in made.items()]
        written = self._operations.write_in_transaction(producer_id, producer_epoch, records, refused)
        self._counters.offset_commits += len(records)
        return written

    def _check_in_transaction(self, group_id: str, committer: Committer) -> None:
        """Refuse a member that the group has replaced or moved on from (KIP-447), with errors that producers know."""
        group = self._groups.get(group_id)
        if group is not None:
            group.check_transactional_commit(*committer)
        elif committer.generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Group {group_id} not found.")

    def end_transaction(
        self, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int
    ) -> asyncio.Future[None] | None:
        """End a producer's transaction in this shard, as its coordinator decided.

        This may be repeated, and is harmless for a producer without pending offsets. The marker is written in any case,
        as the log may have an open transaction whose offsets were deleted.
        """
        return self._operations.end_transaction(
            producer_id, producer_epoch, None, is_commit=is_commit, coordinator_epoch=coordinator_epoch
        )

    # --- reading

    def committed(
        self, group_id: str, member_id: str | None = None, member_epoch: int = NO_GENERATION
    ) -> Mapping[TopicPartition, CommittedOffset] | asyncio.Future[Mapping[TopicPartition, CommittedOffset]]:
        """Return the committed offsets of a group as they are now, including those that still wait to be written.

        Ask `counts` which of them belong to the topics that exist now.
        """
        self._operations.flush()
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._consumer.check_fetch(group, member_id, member_epoch)
        # A copy: what changes while the caller waits may not be committed yet.
        offsets: Mapping[TopicPartition, CommittedOffset] = dict(self._offsets.of_group(group_id))
        return self._operations.read(offsets)

    def pending(self, group_id: str) -> Mapping[TopicPartition, list[CommittedOffset]]:
        """Return the offsets of open transactions as they are now; call it in the same turn as `committed`."""
        return {partition: list(offsets) for partition, offsets in self._offsets.pending.of_group(group_id).items()}
