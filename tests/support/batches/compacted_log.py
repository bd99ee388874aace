"""One compacted log on a simulated disk with the broker's own cleaner, and the model to compare it with.

The model knows only what was appended and how far each cleaning came: below that, the newest record of each key and
nothing else; above, everything. Owns no expectations about files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.upkeep.cleaner import Cleaner
from tailrace.cluster.image import PartitionState
from tailrace.model import Lineage, TopicPartition
from tailrace.records.batch import has_valid_crc, iterate_batches, read_header
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, Record, build_batch, iterate_records
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.segment import Segment
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork

NAME = TopicPartition("state", 0)
LINEAGE = Lineage(UUID(int=7))
FOREVER_MS = 10**12
CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    compact=True,
    delete_expired=False,
    min_cleanable_ratio=0.0,
    delete_retention_ms=FOREVER_MS,
    file_delete_delay_ms=1000,
)


class SmallMemory(BrokerConfig):
    """A configuration whose cleaner has room for few keys, fewer than configuration allows."""

    dedupe_bytes = 128 << 20

    def get_int(self, name: str) -> int:
        return self.dedupe_bytes if name == "log.cleaner.dedupe.buffer.size" else super().get_int(name)


@dataclass(frozen=True)
class Batch:
    """Records that are appended together."""

    records: Sequence[NewRecord]
    compression: Compression = Compression.NONE
    #: Which of a few idempotent producers sends it; None is a producer that is not.
    producer: int | None = None


@dataclass
class Model:
    """The expected content of the log."""

    appended: dict[int, Record] = field(default_factory=dict)
    clean_offset: int = 0
    tombstones_go: bool = False
    #: Tombstones that a cleaning has left in the log for the time being.
    _met: dict[int, None] = field(default_factory=dict)
    _gone: dict[int, None] = field(default_factory=dict)

    def append(self, record: Record) -> None:
        self.appended[record.offset] = record

    def cleaned(self, up_to: int) -> None:
        """Note that a cleaning has processed the log up to an offset."""
        newest = self._newest(up_to)
        for offset in newest.values():
            if self.appended[offset].value is None:
                if self.tombstones_go and offset in self._met:
                    self._gone[offset] = None
                self._met[offset] = None
        self.clean_offset = up_to

    def _newest(self, below: int) -> dict[bytes | None, int]:
        return {record.key: offset for offset, record in self.appended.items() if offset < below}

    def expected(self) -> list[Record]:
        """Check that exactly the expected records are there."""
        newest = self._newest(self.clean_offset)
        return [
            record
            for offset, record in self.appended.items()
            if offset >= self.clean_offset or (newest[record.key] == offset and offset not in self._gone)
        ]

    def check_nothing_lost(self, found: Sequence[Record], up_to: int) -> None:
        """Whatever a cleaning was interrupted in: the newest of each key below an offset is there, nothing invented."""
        for record in found:
            assert self.appended.get(record.offset) == record
        offsets = {record.offset for record in found}
        for key, offset in self._newest(up_to).items():
            record = self.appended[offset]
            if record.value is not None or not self.tombstones_go:
                assert offset in offsets, f"the newest record of {key!r}, at {offset}, is gone"
            else:
                # A tombstone may be gone, but then so is every older record of its key.
                older = [one.offset for one in found if one.key == key and one.offset < offset]
                assert offset in offsets or not older, f"{key!r} came back with {older}"
        assert [record.offset for record in found] == sorted(offsets)


class World:
    """The log, opened and crashed at will."""

    def __init__(self, loop: SimLoop, config: LogConfig = CONFIG, *, dedupe_bytes: int = 128 << 20) -> None:
        self.loop = loop
        self.config = config
        self.disk = SimDisk(loop.random_for("disk"), cached_probability=1.0)
        self.helper = SimHelper(self.disk, loop.random_for("helper"))
        self.clock = SimClock(loop)
        self.model = Model(tombstones_go=config.delete_retention_ms == 0)
        self._sequences: dict[int, int] = {}
        self._settings = SmallMemory()
        SmallMemory.dedupe_bytes = dedupe_bytes
        self.runtime = Runtime(
            self.clock, self.disk, SimNetwork(loop, Random(1)).host("broker"), loop.random_for("broker"), self.helper
        )
        self._tasks = Tasks(_raise)
        self.open()

    def open(self) -> None:
        """Start on whatever the disk has."""
        self.directory = LogDirectory("/data", self.runtime, background_bytes=1 << 30, background_ms=-1)
        self.directory.open()
        self.log = self.directory.open_partition(NAME, LINEAGE, self.config)
        self.directory.start()
        self.partition = Partition(NAME, LINEAGE, self.log, self.directory, 1)
        self.partition.apply_state(PartitionState((1,), (1,), 1, 0), {}, 0.0)
        self.directory.on_promise = lambda _: self.partition.advance()
        self.cleaner = Cleaner(self._settings, self.runtime, [self.partition], self._tasks)  # type: ignore[arg-type]

    def reconfigure(self, config: LogConfig) -> None:
        self.config = self.log.config = config

    def append(self, batch: Batch) -> None:
        """Append without checking keys, which the broker does elsewhere."""
        identity = {}
        if batch.producer is not None:
            sequence = self._sequences.get(batch.producer, 0)
            identity = {"producer_id": batch.producer, "producer_epoch": 0, "base_sequence": sequence}
            self._sequences[batch.producer] = sequence + len(batch.records)
        data = build_batch(batch.records, compression=batch.compression, **identity)
        appended = self.log.append(memoryview(data), read_header(data), 0)
        assert not appended.is_duplicate
        for index, record in enumerate(batch.records):
            self.model.append(
                Record(appended.base_offset + index, record.timestamp, record.key, record.value, record.headers)
            )

    async def sync(self) -> None:
        """Make everything durable, and so cleanable."""
        await self.directory.syncs.sync_once(self.log)
        self.partition.advance()

    def roll(self) -> None:
        """Close the newest segment."""
        if self.log.end_offset > self.log.segments.bases[-1]:
            self.log._roll()

    async def remove_expired(self) -> list[Segment]:
        """Remove from the log what retention has ended."""
        return await self.directory.starts.take_out_expired(
            self.log, lambda: self.log.remove_expired(self.partition.high_watermark)
        )

    async def clean(self) -> bool:
        """Run one cleaning, like the broker; the model learns of it."""
        done = await self.cleaner.clean_dirtiest()
        assert self.cleaner.uncleanable == {}
        assert self.directory.failure is None
        if done:
            self.model.cleaned(self.directory.checkpoints.first_dirty_offset(self.log))
        return done

    def crash(self, *, power_cut: bool) -> None:
        """End the process, and perhaps the machine with it."""
        self._tasks.abandon()
        self.directory.tasks.abandon()
        if power_cut:
            self.disk.crash()
        else:
            self.disk.kill()

    def crash_after(self, disk_operations: int, *, power_cut: bool) -> None:
        """Crash before a later disk operation, wherever it happens."""
        left = disk_operations

        def is_the_one(path: str) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        def end(_: str) -> BaseException:
            self.crash(power_cut=power_cut)
            return asyncio.CancelledError()

        self._ending = self.disk.fail(is_the_one, error=end, times=None)

    def is_over(self) -> bool:
        """Whether the requested crash has happened; cancel it otherwise."""
        self._ending.lift()
        return self.disk.generation > 0

    async def reopen(self) -> None:
        """Let cancelled work end, and restart."""
        await asyncio.sleep(1)
        self.open()
        self.partition.advance()

    async def stop(self) -> None:
        await self.cleaner.close()
        await self.directory.close()

    def read_all(self, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
        """Every record from an offset on, as a consumer reads them."""
        records: list[Record] = []
        at = self.log.start_offset if offset is None else offset
        first = at
        while (part := self.log.read(at, max_bytes, self.log.end_offset)) is not None:
            data = part.file.read(part.position, part.size)
            before = at
            for position, header in iterate_batches(data):
                assert has_valid_crc(data, header, position)
                records += [record for record in iterate_records(data, header, position) if record.offset >= first]
                at = header.next_offset
            assert at > before, "a reader would never get on"
        assert at == self.log.end_offset, f"a reader ends at {at}, the log at {self.log.end_offset}"
        return records


def _raise(error: BaseException) -> None:
    raise error
