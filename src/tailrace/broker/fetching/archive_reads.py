"""Reading old records for clients from the archive, in a helper process of its own, beside everything else.

That process works only when processors are idle. On a machine where they never are, reads go on in the helper process
that the broker has for other work, which is given its share.

A fetch never waits here: it asks, and takes what is ready. What is not goes on, and is taken by the next fetch of that
offset; for whoever reads on, one read is ahead of the fetches. So neither live partitions of the same fetch nor the
client's patience depend on the archive. Bounded are the reads at once, those that wait for their turn, the bytes that
wait to be taken, and the time of each. An archive that cannot be read is a retriable error of that partition; it is
tried again when somebody asks again, but not at once.
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

#: The helper process has a few reads at a time, as more of them would only share its processor.
_READS_AT_ONCE = 4
#: One archive that hangs must leave room for others.
_READS_OF_TOPIC = 2
_MOST_WAITING = 256
_MOST_READY_BYTES = 64 << 20
#: However much a client wants of a partition.
_MOST_BYTES = 8 << 20
#: After so many reads in a row without an answer the process is taken to hang.
_HANGING_ALLOWED = 3
#: Where a read takes longer, the process that waits for idle processors may not get any.
_IDLE_PATIENCE_SECONDS = 2.0
#: For so long after another process was faster, that one is asked at once.
_BUSY_SECONDS = 30.0
#: Several clients give up on a request after 30 seconds.
_DEADLINE_SECONDS = 25.0
#: What nobody takes by then, nobody wants any more.
_READY_SECONDS = 30.0
#: An archive that failed is not tried again before that.
_FAILED_SECONDS = 1.0


class _Key(NamedTuple):
    """What a fetch asks for: one offset of one partition."""

    lineage: Lineage
    partition: int
    offset: int


class ArchiveRead:
    """One read, from when it was first asked for until it is taken."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: Ends when there is something to take, be it an error.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.batches: Buffer | FileRange = b""
        self.failure: KafkaError | None = None


class ArchiveReads:
    """Reads of the archives of all topics for the clients of one broker."""

    def __init__(self, helper: Helper, idle_helper: Helper | None, metadata: ClusterMetadata, tasks: Tasks) -> None:
        """Where there is no helper of its own, the one for other work reads everything."""
        self._helper = helper
        self._idle_helper = idle_helper
        self._busy_until = 0.0
        self._metadata = metadata
        self._tasks = tasks
        self._reads: dict[_Key, ArchiveRead] = {}
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)
        self._turns_of_topics: dict[Lineage, asyncio.Semaphore] = {}
        self._ready_bytes = 0
        #: What comes after each of the last reads that were taken.
        self._follows: dict[_Key, None] = {}
        #: Reads that were given up since the last that was answered.
        self._hanging = 0
        #: For metrics.
        self.reads = 0
        self.bytes_read = 0
        self.failures = 0
        self.searches = 0

    @property
    def waiting(self) -> int:
        """How many reads are under way or wait for their turn."""
        return sum(1 for read in self._reads.values() if not read.done.done())

    # --- by offset

    def take(
        self, partition: Partition, offset: int, max_bytes: int, *, may_exceed: bool
    ) -> Buffer | FileRange | asyncio.Future[None] | None:
        """Batches from an offset on if they were read; else what to wait for, None where it has to be asked again.

        Raises why the archive cannot be read. What is larger than the limit stays for another time, unless it may be.
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
        """Begin the next read for whoever reads on, so that it goes on while the client takes what it has.

        That is somebody who has just asked for what follows the read before; single offsets are looked up otherwise.
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
        """Give up the read that has waited longest to be taken."""
        oldest = next((item for item in self._reads.items() if item[1].done.done()), None)
        if oldest is not None:
            self._forget(*oldest)
        return oldest is not None

    async def _read(self, key: _Key, read: ArchiveRead, archive: TopicArchive, partition: Partition) -> None:
        try:
            arguments = (archive, key.partition, key.offset, read.max_bytes)
            batches = await self._ask(key.lineage, lambda helper: helper.run_for_bytes(read_batches, *arguments))
            if not batches:
                raise ArchiveError(f"manifest {archive.manifest} has nothing at offset {key.offset}")
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
            # A timer may know it for long.
            read.batches = b""

    # --- by time

    async def offset_for_timestamp(self, partition: Partition, timestamp: int) -> TimestampedOffset:
        """The first record in the archive at or after a time."""
        return await self._search(partition, find_timestamp, timestamp)

    async def offset_of_max_timestamp(self, partition: Partition) -> TimestampedOffset:
        """The first record in the archive that has the largest timestamp there."""
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
        """See whether an archive can be read from here; why not, or how many quarantined batches it has."""
        try:
            return await self._ask(archive.lineage, lambda helper: helper.run(check_archive, archive))
        except Exception as error:  # noqa: BLE001  one archive must not end the broker, whatever is wrong with it
            return _reason(error)

    # --- the helper

    def archive_of(self, partition: Partition) -> TopicArchive:
        """The archive of a partition's topic as the image shows it now."""
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
                    # Whatever it waits for, it may wait for ever: threads and memory are only free with the process.
                    # Not at the first: one that is just starting on a busy machine would never get to its end.
                    self._hanging = 0
                    self._helper.restart()
                    if self._idle_helper is not None:
                        self._idle_helper.restart()
                raise
            self._hanging = 0
            return answer

    async def _first_answer(self, call: Callable[[Helper], Coroutine[Any, Any, T]]) -> T:
        """Ask the process that holds up nobody, and the other one too where that does not get to it."""
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
        """End the process that only reads."""
        if self._idle_helper is not None:
            await self._idle_helper.close()


def _next_offset(batches: Buffer | FileRange) -> int:
    """The offset after the last of some batches."""
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
        "the archive of %s at %s cannot be read, clients are told to try again: %s",
        partition.partition,
        archive.uri,
        reason,
        extra={"topic": partition.partition.topic, "repeats": "archive read failed"},
    )
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The archive of {partition.partition} cannot be read: {reason}")
