"""Reading a partition: how far a reader may read, which batches follow an offset, and what to wait for.

This is the only way to read. The local log answers first, the archive has what is below it. Clients see what is
committed, or what is stable if they ask for that, with the transactions whose records they have to skip. Replicas and
coordinators see everything up to the log end. An inspector sees the local copy, whether this broker leads or not. This
module knows neither requests nor sessions nor responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_LEADER_EPOCH
from tailrace.runtime.disk import Buffer, FileRange
from tailrace.storage.aborted_transactions import AbortedTransaction

if TYPE_CHECKING:
    from tailrace.replication.partition import Partition


class Isolation(IntEnum):
    """A client's isolation level, with the protocol's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Audience(Enum):
    """The kind of reader."""

    CLIENT = "client"
    #: A follower; it reads archived records from the archive itself.
    REPLICA = "replica"
    #: A coordinator that replays the partition it leads.
    COORDINATOR = "coordinator"
    #: A tool that compares replicas (`kafka-replica-verification`).
    INSPECTOR = "inspector"


# Used on every fetch: looking up and comparing enum members is slow.
_CLIENT, _INSPECTOR = Audience.CLIENT, Audience.INSPECTOR
_TO_THE_LOG_END = (Audience.REPLICA, Audience.COORDINATOR)
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


class Reading:
    """What a reader gets: batches, or a future to wait for, or neither if there is nothing new."""

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
        #: Whole batches; a range of a local file may have to be warmed first.
        self.batches: FileRange | Buffer | None = None
        #: Whether they come from the archive.
        self.is_archived = False
        #: Completes when it is worth reading again.
        self.pending: asyncio.Future[None] | None = None
        #: Where the reader's log diverges from this one: an epoch and its end here.
        self.diverging_epoch: tuple[int, int] | None = None
        #: The transactions that a read_committed reader skips in these batches; None for other readers.
        self.aborted: Sequence[AbortedTransaction] | None = None
        self.high_watermark = partition.high_watermark
        self.last_stable_offset = partition.last_stable_offset
        self.log_start_offset = partition.log_start_offset


class ArchiveReader(Protocol):
    """Reads what only the archive of a partition has."""

    def take(
        self, partition: Partition, offset: int, max_bytes: int, *, may_exceed: bool
    ) -> Buffer | FileRange | asyncio.Future[None] | None:
        """Batches that are already in memory, a future to wait for, or None to ask again later."""
        ...


class PartitionReader:
    """Reads one partition, from the local log or the archive."""

    __slots__ = ("_partition", "archive")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        #: Shared by all partitions of a broker once it is set.
        self.archive: ArchiveReader | None = None

    def limit(self, audience: Audience, isolation: int = _READ_UNCOMMITTED) -> int:
        """The offset up to which a reader may read (exclusive)."""
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
        """The batches from an offset on; at least one batch if `may_exceed`.

        Refuses a reader that asks the wrong broker, names another leader epoch, or asks for an offset out of range.
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
            part = self._read_log(reading, offset, max_bytes if max_bytes > 0 else 0, self.limit(audience, isolation))
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
                f"{partition.partition}: offset {offset} is in the archive; the log on this broker starts at "
                f"{partition.log.start_offset}",
            )
        found = self.archive.take(partition, offset, max_bytes, may_exceed=may_exceed)
        if isinstance(found, asyncio.Future):
            reading.pending = found
        elif found is not None:
            reading.batches = found
            reading.is_archived = True

    def _read_log(self, reading: Reading, offset: int, max_bytes: int, limit: int) -> FileRange | None:
        partition = self._partition
        log, directory = partition.log, partition.directory
        if directory.failure is not None:
            directory.require_online()
        archived = partition.archived
        if offset < log.start_offset and archived is not None and offset >= archived.end:
            # Records in between are lost: retention dropped them before they were archived, as the topic allows.
            offset = log.start_offset
        try:
            part = log.read(offset, max_bytes, limit)
            if part is not None and reading.aborted is not None:
                part, reading.aborted = log.transactions.aborted_in(offset, part)
            return part
        except StorageError as error:
            directory.fail(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
