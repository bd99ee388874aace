"""Partition logs in a temporary directory, with a stopped clock and batches of known size."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tailrace.model import TopicPartition
from tailrace.records.batch import iterate_batches, read_header
from tailrace.records.record import NewRecord, Record, build_batch, iterate_records
from tailrace.runtime.disk import Disk
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import Appended, PartitionLog
from tailrace.storage.recovery import open_log

PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
#: An index entry for every batch but the first.
EVERY_BATCH = 0


@dataclass
class StandingClock:
    """Time that moves only when a test says so."""

    now_ms: int = NOW_MS
    seconds: float = 0.0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    value: bytes = b"a value",
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """A batch of equal records; the producer is id, epoch and first sequence number."""
    records = [NewRecord(value, timestamp=timestamp)] * count
    if producer is None:
        return build_batch(records)
    producer_id, epoch, sequence = producer
    return build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


BATCH_BYTES = len(batch())


def append(log: PartitionLog, data: bytearray | None = None, leader_epoch: int = 0) -> Appended:
    data = batch() if data is None else data
    return log.append(memoryview(data), read_header(data), leader_epoch)


def fill(log: PartitionLog, batches: int, records_each: int = 1) -> None:
    for _ in range(batches):
        append(log, batch(records_each))


def read_all(log: PartitionLog, limit_offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from the log start on, as a consumer reads them."""
    limit = log.end_offset if limit_offset is None else limit_offset
    records: list[Record] = []
    offset = log.start_offset
    while (part := log.read(offset, max_bytes, limit)) is not None:
        data = part.file.read(part.position, part.size)
        for position, header in iterate_batches(data):
            records += [record for record in iterate_records(data, header, position) if record.offset >= offset]
            next_offset = header.next_offset
        offset = next_offset
    return records


@dataclass
class Logs:
    """A directory in which a log is opened, stopped, crashed and opened again."""

    directory: str
    config: LogConfig = field(default_factory=lambda: LogConfig(index_interval_bytes=EVERY_BATCH))
    disk: Disk = field(default_factory=SystemDisk)
    clock: StandingClock = field(default_factory=StandingClock)

    def configure(self, **settings: int | bool) -> Logs:
        return replace(self, config=replace(self.config, **settings))

    def open(self, *, stopped_cleanly: bool = False, recovery_point: int = 0, log_start: int = 0) -> PartitionLog:
        self.disk.make_directory(self.directory)
        return open_log(
            PARTITION,
            self.directory,
            self.config,
            self.disk,
            self.clock,
            stopped_cleanly=stopped_cleanly,
            recovery_point=recovery_point,
            log_start_offset=log_start,
        )

    def path(self, base_offset: int, suffix: str = ".log") -> Path:
        return Path(self.directory) / f"{base_offset:020d}{suffix}"

    def names(self) -> list[str]:
        return list(self.disk.list(self.directory))

    def bases(self) -> list[int]:
        return [int(name[:-4]) for name in self.names() if name.endswith(".log")]


def timed(logs: Logs, *timestamps: int) -> PartitionLog:
    log = logs.open()
    for timestamp in timestamps:
        append(log, batch(timestamp=NOW_MS + timestamp))
    return log
