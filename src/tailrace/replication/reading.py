"""Reading a partition: how far a reader may see, what there is from an offset on, and what to wait for.

This is the one way in. The log here answers first, and an archive for what is below it. Clients see what is committed,
or what is stable if they ask for that; replicas and coordinators see up to the log end; an inspector sees the copy that
is here, led here or not. It must not know requests, sessions or responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_LEADER_EPOCH
from tailrace.runtime.disk import Buffer, FileRange

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition


class Isolation(IntEnum):
    """What a client wants to see, in the numbers of the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Audience(Enum):
    """Who reads."""

    CLIENT = "client"
    #: A follower, which gets what is only in the archive from there.
    REPLICA = "replica"
    #: A coordinator that replays the partition it leads.
    COORDINATOR = "coordinator"
    #: Somebody who compares replicas (`kafka-replica-verification`).
    INSPECTOR = "inspector"


# For the path of every fetch: members of an enumeration are slow to look up and to compare.
_CLIENT, _INSPECTOR = Audience.CLIENT, Audience.INSPECTOR
_TO_THE_LOG_END = (Audience.REPLICA, Audience.COORDINATOR)
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


class AbortedTransaction(NamedTuple):
    """Records of a producer that a reader of committed transactions skips."""

    producer_id: int
    first_offset: int


class Reading:
    """What a reader gets: batches, or what to wait for, or neither while there is nothing new."""

    __slots__ = (
        "aborted",
        "batches",
        "diverging_epoch",
        "high_watermark",
        "is_archived",
        "last_stable_offset",
        "log_start_offset",
        "pending",
    )

    def __init__(self, partition: Partition) -> None:
        #: Whole batches; a range of a file here may have to be warmed first.
        self.batches: FileRange | Buffer | None = None
        #: Whether they come from the archive.
        self.is_archived = False
        #: Ends when it is worth asking again.
        self.pending: asyncio.Future[None] | None = None
        #: Where the reader's log and this one part: an epoch and its end here.
        self.diverging_epoch: tuple[int, int] | None = None
        #: What a reader of committed transactions skips in these batches; None for other readers.
        self.aborted: Sequence[AbortedTransaction] | None = None
        self.high_watermark = partition.high_watermark
        self.last_stable_offset = partition.last_stable_offset
        self.log_start_offset = partition.log_start_offset


class ArchiveReader(Protocol):
    """Reads what only the archive of a partition has."""

    def take(
        self, partition: Partition, offset: int, max_bytes: int, *, may_exceed: bool
    ) -> Buffer | FileRange | asyncio.Future[None] | None:
        """Batches if they were read already; else what to wait for; None if it has to be asked again later."""
        ...


class PartitionReader:
    """Reads one partition, wherever its records are."""

    __slots__ = ("_partition", "archive")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        #: Shared by all partitions of a broker, once they have been told so.
        self.archive: ArchiveReader | None = None

    def limit(self, audience: Audience, isolation: int = _READ_UNCOMMITTED) -> int:
        """The offset that a reader may not reach."""
        partition = self._partition
        if audience is not _CLIENT and audience in _TO_THE_LOG_END:
            return partition.log.end_offset
        return partition.last_stable_offset if isolation == _READ_COMMITTED else partition.high_watermark

    def read(
        self,
        offset: int,
        max_bytes: int,
        audience: Audience = _CLIENT,
        *,
        isolation: int = _READ_UNCOMMITTED,
        leader_epoch: int = NO_LEADER_EPOCH,
        last_fetched_epoch: int = NO_LEADER_EPOCH,
        may_exceed: bool = True,
    ) -> Reading:
        """What there is from an offset on; at least one batch if it may exceed the limit.

        Refuses readers that ask the wrong broker, know another leader epoch, or ask for an offset that is not there.
        """
        partition = self._partition
        if audience is _CLIENT:
            if not partition.serves_clients or leader_epoch != partition.leader_epoch:
                partition.require_leader(leader_epoch)
        elif audience is _INSPECTOR:
            partition.require_whole(leader_epoch)
        else:
            partition.require_leader(leader_epoch, by_replica=True)
        reading = Reading(partition)
        if isolation == _READ_COMMITTED:
            reading.aborted = ()
        if last_fetched_epoch != NO_LEADER_EPOCH:
            reading.diverging_epoch = partition.diverging_epoch(last_fetched_epoch, offset)
            if reading.diverging_epoch is not None:
                return reading
        if max_bytes <= 0 and not may_exceed:
            return reading
        if offset < partition.log.start_offset and partition.is_in_archive(offset):
            self._read_archive(reading, offset, max_bytes, audience, may_exceed=may_exceed)
        else:
            part = self._read_log(offset, max_bytes if max_bytes > 0 else 0, self.limit(audience, isolation))
            if part is not None and (may_exceed or part.size <= max_bytes):
                reading.batches = part
        return reading

    def _read_archive(
        self, reading: Reading, offset: int, max_bytes: int, audience: Audience, *, may_exceed: bool
    ) -> None:
        partition = self._partition
        if audience in _TO_THE_LOG_END or self.archive is None:
            raise KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"{partition.partition} has {offset} in the archive; the log here starts at "
                f"{partition.log.start_offset}",
            )
        found = self.archive.take(partition, offset, max_bytes, may_exceed=may_exceed)
        if isinstance(found, asyncio.Future):
            reading.pending = found
        elif found is not None:
            reading.batches = found
            reading.is_archived = True

    def _read_log(self, offset: int, max_bytes: int, limit: int) -> FileRange | None:
        partition = self._partition
        log, directory = partition.log, partition.directory
        if directory.failure is not None:
            directory.require_online()
        archived = partition.archived
        if offset < log.start_offset and archived is not None and offset >= archived.end:
            # Nobody has what is between: it was given up before it was archived, as the topic's configuration says.
            offset = log.start_offset
        try:
            return log.read(offset, max_bytes, limit)
        except StorageError as error:
            directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
