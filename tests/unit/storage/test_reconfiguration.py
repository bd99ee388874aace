"""A log that gets another configuration while it is open: what it does from then on, and what stays promised."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from uuid import UUID

from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.storage.logs import Logs, append, batch, fill

LAZY = LogConfig(index_interval_bytes=0)
SYNC_EACH = replace(LAZY, flush_messages=1)


def test_the_next_append_goes_by_the_new_configuration(logs: Logs) -> None:
    log = logs.open()
    fill(log, 3)
    assert log.segments.count == 1
    log.reconfigure(replace(logs.config, segment_bytes=1))
    fill(log, 2)
    assert log.segments.count == 3


def test_what_was_promised_stays_promised_and_what_comes_after_is_synced_first(logs: Logs) -> None:
    log = logs.open()
    fill(log, 3)
    assert log.promised_offset == 3
    log.reconfigure(replace(logs.config, flush_messages=1))
    assert log.promised_offset == 3
    append(log)
    assert (log.promised_offset, log.needs_flush) == (3, True)
    log.reconfigure(logs.config)
    assert (log.promised_offset, log.needs_flush) == (4, False)


def _directory(loop: SimLoop, promised: list[PartitionLog]) -> tuple[LogDirectory, SimClock]:
    clock = SimClock(loop)
    disk = SimDisk(Random(5), cached_probability=1.0)
    network = SimNetwork(loop, Random(6)).host("broker")
    runtime = Runtime(clock, disk, network, Random(7), SimHelper(disk, Random(8)))
    directory = LogDirectory("/data", runtime, background_bytes=1 << 30, background_ms=-1)
    directory.on_promise = promised.append
    directory.open()
    return directory, clock


def test_those_who_wait_for_a_sync_are_told_when_none_is_asked_for_any_more() -> None:
    loop = SimLoop(1)
    promised: list[PartitionLog] = []

    async def test() -> None:
        directory, clock = _directory(loop, promised)
        log = directory.open_partition(TopicPartition("orders", 0), UUID(int=1), SYNC_EACH)
        directory.start()
        append(log, batch(timestamp=clock.wall_ms()))
        assert (log.needs_flush, promised) == (True, [])
        directory.reconfigure(log, LAZY)
        assert (log.needs_flush, promised) == (False, [log])
        await directory.close()

    loop.run(test())


def test_a_shorter_time_until_a_sync_counts_for_what_is_in_the_log_already() -> None:
    loop = SimLoop(1)

    async def test() -> None:
        directory, clock = _directory(loop, [])
        log = directory.open_partition(TopicPartition("orders", 0), UUID(int=1), LAZY)
        directory.start()
        append(log, batch(timestamp=clock.wall_ms()))
        await asyncio.sleep(100)
        assert log.flushed_offset == 0
        directory.reconfigure(log, replace(LAZY, flush_ms=500))
        await asyncio.sleep(1)
        assert log.flushed_offset == 1
        await directory.close()

    loop.run(test())
