"""Compaction of the logs on this broker: chooses the next log, one at a time, and records the results.

Owns the choice, the order of steps and the counters; the helper does the work, and the log directory swaps in the
result. A log is due when its new share since the last time is large enough, or when a part of it has waited too long. A
log with a damaged batch is left unchanged, is logged, and never gets shorter; other logs continue.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.config.types import DOUBLE_MAX
from tailrace.broker.partitions import Partitions
from tailrace.errors import KafkaError, StorageError
from tailrace.model import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import PassingStorageError
from tailrace.runtime.helper import HelperError
from tailrace.runtime.tasks import Tasks
from tailrace.storage.cleaned_transactions import CleanedTransactions
from tailrace.storage.compaction import (
    Damage,
    MapBuilt,
    Rules,
    SegmentRange,
    build_offset_map,
    clean_segments,
    group_segments,
)
from tailrace.storage.log_config import NEVER
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.segment import Segment

logger = logging.getLogger("tailrace.broker")

_LOOKED_AT_PER_TURN = 50
#: After this many consecutive deaths of the helper in a log, the log is no longer compacted: the helper would die
#: again.
_HELPER_DEATHS_ALLOWED = 3
_SALT_BYTES = 16
_SHORTEST_REST_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class DirtyLog:
    """A log with records that could be compacted."""

    partition: Partition
    first_dirty_offset: int
    #: From the start of the log to the end of what may be compacted.
    segments: tuple[Segment, ...]
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """True if compaction is worthwhile, or cannot wait."""
        ratio = self.partition.log.config.min_cleanable_ratio
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > ratio)


class Cleaner:
    """The broker's compaction, which runs in the background."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, partitions: Partitions, tasks: Tasks) -> None:
        self._config = config
        self._runtime = runtime
        self._partitions = partitions
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._uncleanable: dict[PartitionLog, str] = {}
        self._helper_deaths: dict[PartitionLog, int] = {}
        self._last_run: float | None = None
        #: The number of compactions, and their cost.
        self.runs = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0
        self.last_run_seconds = 0.0
        #: Of the dirtiest log at the last check.
        self.max_dirty_percent = 0

    # --- monitoring

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Partitions that are not compacted until the next start, and why."""
        return {log.partition: reason for log, reason in self._uncleanable.items()}

    @property
    def seconds_since_last_run(self) -> float | None:
        """How long ago a log was last compacted; None if none was since the start."""
        return None if self._last_run is None else self._runtime.clock.monotonic() - self._last_run

    def start(self) -> None:
        """Start to compact logs."""
        if self._config.get_bool("log.cleaner.enable"):
            self._task = self._tasks.spawn(self._run(), "cleaner")

    async def close(self) -> None:
        """Stop the running compaction; unfinished work has no effect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            if not await self.clean_dirtiest():
                await asyncio.sleep(max(_SHORTEST_REST_SECONDS, self._config.get_int("log.cleaner.backoff.ms") / 1000))

    # --- choosing a log

    async def clean_dirtiest(self) -> bool:
        """Compact the dirtiest log that is due; return whether there was one and it made progress."""
        dirty = await self._dirty_logs()
        self.max_dirty_percent = int(100 * max((log.dirty_ratio for log in dirty), default=0.0))
        due = [log for log in dirty if log.is_due]
        if not due:
            return False
        return await self._clean(max(due, key=lambda log: log.dirty_ratio))

    async def _dirty_logs(self) -> list[DirtyLog]:
        found = []
        partitions = list(self._partitions)
        current = [partition.log for partition in partitions]
        for known in (self._uncleanable, self._helper_deaths):
            for log in [log for log in known if log not in current]:
                del known[log]
        for number, partition in enumerate(partitions, 1):
            if partition.log.config.compact and partition.directory.failure is None:
                try:
                    dirty = self._look_at(partition)
                except KafkaError as error:
                    self._give_up(partition.log, str(error))
                except StorageError as error:
                    partition.directory.fail(error)
                else:
                    if dirty is not None:
                        found.append(dirty)
            if number % _LOOKED_AT_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def _look_at(self, partition: Partition) -> DirtyLog | None:
        log = partition.log
        log.roll_when_old()
        if log in self._uncleanable or log.is_being_cut:
            return None
        config = log.config
        now_ms = self._runtime.clock.wall_ms()
        first_dirty = partition.directory.checkpoints.first_dirty_offset(log)
        # Records that are not synced or not committed yet may still be lost, and those of an open transaction aborted.
        limit = min(partition.last_stable_offset, log.flushed_offset)
        segments: list[Segment] = []
        clean_bytes = dirty_bytes = 0
        is_overdue = False
        for segment in log.segments.sealed:
            if segment.end_offset <= log.start_offset:
                continue
            if segment.end_offset > limit:
                break
            if segment.end_offset <= first_dirty:
                clean_bytes += segment.size
            else:
                if config.min_compaction_lag_ms and segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
                    break
                dirty_bytes += segment.size
                if config.max_compaction_lag_ms < NEVER and not is_overdue:
                    is_overdue = 0 < segment.first_batch_timestamp() < now_ms - config.max_compaction_lag_ms
            segments.append(segment)
        if not dirty_bytes:
            return None
        return DirtyLog(partition, first_dirty, tuple(segments), clean_bytes, dirty_bytes, is_overdue)

    def _give_up(self, log: PartitionLog, reason: str) -> None:
        if log not in self._uncleanable:
            self._uncleanable[log] = reason
            logger.error(
                "%s: stopped compacting: %s; nothing is deleted from the log, and a restart of the broker retries",
                log.partition,
                reason,
            )

    # --- compacting one log

    async def _clean(self, dirty: DirtyLog) -> bool:
        log, directory = dirty.partition.log, dirty.partition.directory
        began = self._runtime.clock.monotonic()
        if log.is_being_cut or not log.segments.has_sealed(dirty.segments):
            return False
        if not log.transactions.write_rest():
            return False  # the helper would take aborted records for committed ones
        log.is_being_cleaned = True
        try:
            done = await self._clean_log(dirty)
        except HelperError as error:
            deaths = self._helper_deaths[log] = self._helper_deaths.get(log, 0) + 1
            logger.warning("compaction of %s failed: %s; retrying", log.partition, error)
            if deaths >= _HELPER_DEATHS_ALLOWED:
                self._give_up(log, f"the helper process died {deaths} times in a row: {error}")
            done = False
        except PassingStorageError as error:
            logger.error("cannot compact %s for now: %s; retrying", log.partition, error)
            done = False
        except StorageError as error:
            if directory.holds(log):
                directory.fail(error)
            done = False
        except Exception as error:  # a failure in one log must not stop the compaction of others, nor the broker
            logger.error("compaction of %s failed", log.partition, exc_info=error)
            self._give_up(log, f"{type(error).__name__}: {error}")
            done = False
        finally:
            log.is_being_cleaned = False
        try:
            await directory.swaps.discard_cleaned(log)
        except StorageError as error:
            if directory.holds(log):
                directory.fail(error)
        if done:
            self._helper_deaths.pop(log, None)
            self._last_run = self._runtime.clock.monotonic()
            self.last_run_seconds = self._last_run - began
            self.runs += 1
        return done

    async def _clean_log(self, dirty: DirtyLog) -> bool:
        log, directory = dirty.partition.log, dirty.partition.directory
        ranges = {
            SegmentRange(segment.base_offset, segment.end_offset, segment.size, segment.sealed_index_bytes): segment
            for segment in dirty.segments
        }
        built = await self._build_map(dirty, list(ranges))
        if isinstance(built, Damage):
            self._found_damage(log, list(ranges.values()), built)
            return False
        self.bytes_read += built.bytes_read
        end_offset = built.latest_offset + 1
        touched = [one for one in ranges if one.base_offset < end_offset]
        await directory.swaps.allow_gaps(log, touched[-1].end_offset)
        transactions = CleanedTransactions.of(built.aborted)
        read, written = built.bytes_read, 0
        for group in group_segments(touched, log.config.segment_bytes, log.config.segment_index_bytes):
            if not directory.holds(log):
                return False
            old = [ranges[one] for one in group]
            cleaned = await self._runtime.helper.run_on_disk(
                clean_segments,
                log.directory,
                group,
                self._rules(log, end_offset),
                transactions,
                bytes_per_second=self._rate(),
            )
            if isinstance(cleaned, Damage):
                self._found_damage(log, old, cleaned)
                return False
            transactions = cleaned.transactions
            if not await directory.swaps.replace(log, old):
                return False
            read, written = read + cleaned.bytes_read, written + cleaned.size
            self.bytes_read += cleaned.bytes_read
            self.bytes_written += cleaned.size
            self.records_read += cleaned.records_read
            self.records_kept += cleaned.records_kept
        await directory.checkpoints.cleaned_up_to(log, end_offset)
        logger.info("compacted %s up to %d: %d bytes read, %d written", log.partition, end_offset, read, written)
        return True

    async def _build_map(self, dirty: DirtyLog, ranges: list[SegmentRange]) -> MapBuilt | Damage:
        log = dirty.partition.log
        return await self._runtime.helper.run_on_disk(
            build_offset_map,
            log.directory,
            ranges,
            list(log.segments.bases),
            dirty.first_dirty_offset,
            self._config.get_int("log.cleaner.dedupe.buffer.size"),
            self._config.get_float("log.cleaner.io.buffer.load.factor"),
            self._runtime.random.randbytes(_SALT_BYTES),
            bytes_per_second=self._rate(),
        )

    def _rate(self) -> float | None:
        rate = self._config.get_float("log.cleaner.io.max.bytes.per.second")
        return rate if rate < DOUBLE_MAX else None

    def _rules(self, log: PartitionLog, end_offset: int) -> Rules:
        producers = {
            producer_id: (entry.last_data_offset, entry.epoch) for producer_id, entry in log.producers.entries()
        }
        return Rules(
            self._runtime.clock.wall_ms(),
            log.config.delete_retention_ms,
            log.config.index_interval_bytes,
            end_offset,
            producers,
        )

    def _found_damage(self, log: PartitionLog, segments: list[Segment], damage: Damage) -> None:
        segment = next(segment for segment in segments if segment.base_offset == damage.base_offset)
        if not damage.is_as_written:
            segment.found_corrupt(damage.position)
        self._give_up(log, f"{segment.log.path}, position {damage.position}: {damage.reason}")
