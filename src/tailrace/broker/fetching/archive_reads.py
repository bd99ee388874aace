"""Reads old records from the archive for clients, in its own helper process, so that nothing else waits for it.

That process runs only on idle processors. On a machine that is never idle, the reads move to the helper process that
the broker has for other work, which gets its share of the processors.

A fetch never waits here: it asks, and takes what is ready. An unfinished read continues, and the next fetch of that
offset takes its result. For a client that reads sequentially, the next read starts in advance. So neither the other
partitions of a fetch nor the client's timeout depend on the archive. There are limits on concurrent reads, on queued
reads, on the bytes that are ready, and on the time of each read. An unreadable archive is a retriable error of its
partition; the next request tries it again after a short pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from tailrace.archive.errors import ArchiveError
from tailrace.archive.layout import TopicArchive
from tailrace.broker.fetching.archive_calls import check_archive, find_largest_timestamp, find_timestamp, read_batches
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage
from tailrace.records.batch import HEADER_BYTES, read_header
from tailrace.replication.partition import Partition
from tailrace.runtime.disk import Buffer, FileRange
from tailrace.runtime.helper import Helper
from tailrace.runtime.tasks import Tasks
from tailrace.storage.timestamp_search import NOT_FOUND, TimestampedOffset

logger = logging.getLogger("tailrace.archive")

T = TypeVar("T")

#: The helper process runs a few reads at a time, as more would only share its processor.
_READS_AT_ONCE = 4
#: An archive that hangs must leave room for others.
_READS_OF_TOPIC = 2
_MOST_WAITING = 256
_MOST_READY_BYTES = 64 << 20
#: The limit for one partition, whatever the client asks for.
_MOST_BYTES = 8 << 20
#: After this many consecutive reads without a result, the process counts as hung.
_HANGING_ALLOWED = 3
#: If a read takes longer, all processors may be busy, so that the low-priority process gets none.
_IDLE_PATIENCE_SECONDS = 2.0
#: After another process was faster, that one is asked directly for this time.
_BUSY_SECONDS = 30.0
#: Several clients time out a request after 30 seconds.
_DEADLINE_SECONDS = 25.0
#: Results that no fetch has taken by then are dropped.
_READY_SECONDS = 30.0
#: A failed archive is not tried again before this time has passed.
_FAILED_SECONDS = 1.0


class _Key(NamedTuple):
    """What a fetch asks for: an offset of a partition."""

    lineage: Lineage
    partition: int
    offset: int


class ArchiveRead:
    """One read, from the first request for it until a fetch takes it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: Ends when there is a result or an error to take.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.batches: Buffer | FileRange = b""
        self.failure: KafkaError | None = None


class ArchiveReads:
    """Reads of all archives for the clients of one broker."""

    def __init__(self, helper: Helper, idle_helper: Helper | None, metadata: ClusterMetadata, tasks: Tasks) -> None:
        """Without an `idle_helper`, the helper for other work does all reads."""
        self._helper = helper
        self._idle_helper = idle_helper
        self._busy_until = 0.0
        self._metadata = metadata
        self._tasks = tasks
        self._reads: dict[_Key, ArchiveRead] = {}
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)
        self._turns_of_topics: dict[Lineage, asyncio.Semaphore] = {}
        self._ready_bytes = 0
        #: The keys that follow the last reads that were taken.
        self._follows: dict[_Key, None] = {}
        #: The number of reads that timed out since the last one with a result.
        self._hanging = 0
        #: Counters for metrics.
        self.reads = 0
        self.bytes_read = 0
        self.failures = 0
        self.searches = 0

    @property
    def waiting(self) -> int:
        """The number of running and queued reads."""
        return sum(1 for read in self._reads.values() if not read.done.done())

    # --- by offset

    def take(
        self, partition: Partition, offset: int, max_bytes: int, *, may_exceed: bool
    ) -> Buffer | FileRange | asyncio.Future[None] | None:
        """Return the batches from an offset on if they are ready; else a future to wait for, or None to ask again
        later.

        Raises if the archive cannot be read. A result above the limit stays for a later fetch, unless `may_exceed`
        allows it.
        """
        key = _Key(partition.lineage, partition.partition.partition, offset)
        read = self._reads.get(key)
        if read is None:
            begun = self._begin(key, partition, min(max_bytes, _MOST_BYTES))
            return None if begun is None else begun.done
        if not read.done.done():
            return read.done
        if read.failure is not None:
            raise read.failure.with_traceback(None)
        if len(read.batches) > max_bytes and not may_exceed:
            return None
        batches = read.batches
        self._forget(key, read)
        self._read_ahead(key, partition, batches, read.max_bytes)
        return batches

    def _read_ahead(self, key: _Key, partition: Partition, batches: Buffer | FileRange, max_bytes: int) -> None:
        """Start the next read for a client that reads sequentially, while it receives what it has.

        A client reads sequentially if it has just asked for the offset after the previous read; other reads are single
        lookups.
        """
        is_reading_on = key in self._follows
        self._follows.pop(key, None)
        after = key._replace(offset=_next_offset(batches))
        self._follows[after] = None
        if len(self._follows) > _MOST_WAITING:
            del self._follows[next(iter(self._follows))]
        has_room = self._ready_bytes + max_bytes <= _MOST_READY_BYTES and len(self._reads) < _MOST_WAITING // 2
        if is_reading_on and has_room and after not in self._reads and partition.is_in_archive(after.offset):
            self._begin(after, partition, max_bytes)

    def _begin(self, key: _Key, partition: Partition, max_bytes: int) -> ArchiveRead | None:
        if len(self._reads) >= _MOST_WAITING and not self._make_room():
            return None
        archive = self.archive_of(partition)
        read = self._reads[key] = ArchiveRead(max_bytes)
        self._tasks.spawn(self._read(key, read, archive, partition), f"archive read of {partition.partition}")
        return read

    def _make_room(self) -> bool:
        """Drop the finished read that has waited longest."""
        oldest = next((item for item in self._reads.items() if item[1].done.done()), None)
        if oldest is not None:
            self._forget(*oldest)
        return oldest is not None

    async def _read(self, key: _Key, read: ArchiveRead, archive: TopicArchive, partition: Partition) -> None:
        try:
            # A new leader may know of less than what was archived before it led.
            limit = partition.last_stable_offset
            arguments = (archive, key.partition, key.offset, read.max_bytes, limit)
            batches = await self._ask(key.lineage, lambda helper: helper.run_for_bytes(read_batches, *arguments))
            if not batches:
                raise ArchiveError(f"manifest {archive.manifest} has no records at offset {key.offset}")
        except Exception as error:  # noqa: BLE001  one archive must not end the broker, whatever is wrong with it
            self.failures += 1
            read.failure = _refusal(partition, archive, error)
        else:
            self.reads += 1
            self.bytes_read += len(batches)
            read.batches = batches
            self._ready_bytes += len(batches)
            while self._ready_bytes > _MOST_READY_BYTES and self._make_room():
                pass
        read.done.set_result(None)
        seconds = _READY_SECONDS if read.failure is None else _FAILED_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._forget, key, read)

    def _forget(self, key: _Key, read: ArchiveRead) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]
            self._ready_bytes -= len(read.batches)
            # A timer may keep a reference to it for long.
            read.batches = b""

    # --- by time

    async def offset_for_timestamp(self, partition: Partition, timestamp: int) -> TimestampedOffset:
        """Find the first archived record at or after a time."""
        return await self._search(partition, find_timestamp, timestamp)

    async def offset_of_max_timestamp(self, partition: Partition) -> TimestampedOffset:
        """Find the first archived record with the archive's largest timestamp."""
        return await self._search(partition, find_largest_timestamp)

    async def _search(
        self, partition: Partition, function: Callable[..., tuple[int, int] | None], *wanted: int
    ) -> TimestampedOffset:
        archive = self.archive_of(partition)
        archived = partition.archived
        if archived is None:
            return NOT_FOUND
        self.searches += 1
        try:
            arguments = (archive, partition.partition.partition, *wanted, archived.start)
            found = await self._ask(partition.lineage, lambda helper: helper.run(function, *arguments))
        except Exception as error:
            self.failures += 1
            raise _refusal(partition, archive, error) from error
        return NOT_FOUND if found is None else TimestampedOffset(*found)

    async def check(self, archive: TopicArchive) -> str | int:
        """Check whether this broker can read an archive; return why not, or its number of quarantined batches."""
        try:
            return await self._ask(archive.lineage, lambda helper: helper.run(check_archive, archive))
        except Exception as error:  # noqa: BLE001  one archive must not end the broker, whatever is wrong with it
            return _reason(error)

    # --- the helper

    def archive_of(self, partition: Partition) -> TopicArchive:
        """Return the archive of a partition's topic as the image shows it now."""
        state = self._metadata.image.archives.get(partition.lineage)
        manifest = None if state is None else state.manifest or None
        return TopicArchive(partition.log.config.archive_uri, partition.partition.topic, partition.lineage, manifest)

    async def _ask(self, lineage: Lineage, call: Callable[[Helper], Coroutine[Any, Any, T]]) -> T:
        of_topic = self._turns_of_topics.setdefault(lineage, asyncio.Semaphore(_READS_OF_TOPIC))
        async with asyncio.timeout(_DEADLINE_SECONDS), of_topic, self._turns:
            try:
                answer = await self._first_answer(call)
            except asyncio.CancelledError:
                self._hanging += 1
                if self._hanging >= _HANGING_ALLOWED:
                    # Whatever the process waits for may take for ever, and only its end frees its threads and memory. A
                    # single timeout is no reason: a process that is still starting on a busy machine would never
                    # finish.
                    self._hanging = 0
                    self._helper.restart()
                    if self._idle_helper is not None:
                        self._idle_helper.restart()
                raise
            self._hanging = 0
            return answer

    async def _first_answer(self, call: Callable[[Helper], Coroutine[Any, Any, T]]) -> T:
        """Ask the process that disturbs nothing, and the other one too if the first gets no processor."""
        loop = asyncio.get_running_loop()
        if self._idle_helper is None or loop.time() < self._busy_until:
            return await call(self._helper)
        patient = asyncio.ensure_future(call(self._idle_helper))
        calls = [patient]
        try:
            if not (await asyncio.wait(calls, timeout=_IDLE_PATIENCE_SECONDS))[0]:
                calls.append(asyncio.ensure_future(call(self._helper)))
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            if patient.done():
                return patient.result()
            self._busy_until = loop.time() + _BUSY_SECONDS
            return calls[-1].result()
        finally:
            for each in calls:
                each.cancel()

    async def close(self) -> None:
        """Stop the process that only reads."""
        if self._idle_helper is not None:
            await self._idle_helper.close()


def _next_offset(batches: Buffer | FileRange) -> int:
    """Return the offset after the last batch."""
    offset = position = 0
    while position < len(batches):
        if isinstance(batches, FileRange):
            header = read_header(batches.file.read(batches.position + position, HEADER_BYTES))
        else:
            header = read_header(batches, position)
        offset, position = header.next_offset, position + header.size
    return offset


def _reason(error: Exception) -> str:
    return str(error) or f"no answer within {_DEADLINE_SECONDS:.0f} s"


def _refusal(partition: Partition, archive: TopicArchive, error: Exception) -> KafkaError:
    reason = _reason(error)
    logger.warning(
        "cannot read the archive of %s at %s: %s; clients get a retriable error",
        partition.partition,
        archive.uri,
        reason,
        extra={"topic": partition.partition.topic, "repeats": "archive read failed"},
    )
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The archive of {partition.partition} cannot be read: {reason}")
