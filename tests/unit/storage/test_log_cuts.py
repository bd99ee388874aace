"""Truncation of logs through their directory: nothing truncated comes back, whatever crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.storage.test_truncation import SMALL, numbered, values

NAME = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=1)


class World:
    """A log directory on a disk that loses power, and what the log must have."""

    def __init__(self, loop: SimLoop, config: LogConfig = SMALL) -> None:
        self.loop = loop
        self.config = config
        self.disk = SimDisk(loop.random_for("disk"), cached_probability=1.0)
        self.clock = SimClock(loop)
        network = SimNetwork(loop, Random(1)).host("broker")
        self.runtime = Runtime(self.clock, self.disk, network, Random(2), SimHelper(self.disk, Random(3)))
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory("/data", self.runtime, background_bytes=1 << 30, background_ms=-1)
        self.directory.open()
        self.log = self.directory.open_partition(NAME, TOPIC_ID, self.config)
        self.directory.start()

    def append(self, count: int, mark: str = " ", leader_epoch: int = 0) -> None:
        numbered(self.log, self.log.end_offset, count, leader_epoch, mark)

    async def sync(self) -> None:
        await self.directory.syncs.sync_once(self.log)

    async def cut(self, offset: int) -> None:
        assert await self.directory.cuts.truncate(self.log, offset, lambda: True) is None

    def crash_after(self, operations: int) -> None:
        """Cut the power before some disk operation to come."""
        left = operations

        def is_the_one(_: str) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        def end(_: str) -> BaseException:
            self.directory.tasks.abandon()
            self.disk.crash()
            return asyncio.CancelledError()

        self.fault = self.disk.fail(is_the_one, error=end, times=None)

    async def reopen(self) -> None:
        await asyncio.sleep(1)  # until what was cancelled has ended
        self.open()


def simulated(
    test: Callable[[World], Coroutine[Any, Any, None]], seed: int | str = 1, config: LogConfig = SMALL
) -> None:
    loop = SimLoop(seed)

    async def run() -> None:
        await test(World(loop, config))

    loop.run(run())


@pytest.mark.parametrize("seed", range(150))
def test_a_power_cut_during_a_cut_leaves_a_prefix_and_after_it_the_cut_holds(seed: int) -> None:
    async def test(world: World) -> None:
        random = world.loop.random_for("test")
        world.append(14)
        if random.random() < 0.7:
            await world.sync()
        if random.random() < 0.5:
            await world.directory.checkpoints.save()
        world.append(random.randint(0, 4))
        before = values(world.log)
        flushed = world.log.flushed_offset
        offset = random.randint(0, world.log.end_offset - 1)
        world.crash_after(random.randint(1, 60))
        is_cut = False
        try:
            await world.cut(offset)
            is_cut = True
            world.append(random.randint(1, 12), "x", leader_epoch=5)
            await world.sync()
        except asyncio.CancelledError:
            pass
        world.fault.lift()
        after = values(world.log) if world.disk.generation == 0 else None
        if world.disk.generation == 0:
            world.directory.tasks.abandon()
            world.disk.crash()
        await world.reopen()
        found = values(world.log)
        assert list(found) == list(range(len(found)))
        if after is not None:
            # It was synced to its end.
            assert found == after
            return
        assert len(found) >= min(flushed, offset)
        for at, value in found.items():
            if at < offset:
                assert value == before[at]
            elif value[-1:] != b"x":
                assert not is_cut, "a record that was cut came back"
                assert value == before[at]
        marks = [value[-1:] for at, value in found.items() if at >= offset]
        assert len(set(marks)) <= 1, "old records and new ones in one log"

    simulated(test, f"cut {seed}")


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_while_a_log_begins_anew_leaves_the_old_log_or_the_new(seed: int) -> None:
    async def test(world: World) -> None:
        random = world.loop.random_for("test")
        world.append(14)
        await world.sync()
        await world.directory.checkpoints.save()
        before = values(world.log)
        offset = random.choice((3, 8, 14, 100))
        world.crash_after(random.randint(1, 50))
        try:
            assert await world.directory.cuts.restart(world.log, offset, lambda: True) is None
            world.append(6, "x", leader_epoch=5)
            await world.sync()
        except asyncio.CancelledError:
            pass
        world.fault.lift()
        if world.disk.generation == 0:
            world.directory.tasks.abandon()
            world.disk.crash()
        await world.reopen()
        found = values(world.log)
        assert list(found) == list(range(world.log.start_offset, world.log.end_offset))
        new = {at: f"{at:06d}x".encode() for at in range(offset, offset + 6)}
        assert found.items() <= new.items() or found.items() <= before.items()

    simulated(test, f"anew {seed}")


def test_the_recovery_point_on_disk_is_lowered_before_the_log_is_cut() -> None:
    async def test(world: World) -> None:
        world.append(10)
        await world.sync()
        await world.directory.checkpoints.save()
        path = f"/data/{RECOVERY_POINTS}"
        assert read_offsets(world.disk, path)[NAME] == 10
        seen: list[int] = []

        def look() -> bool:
            seen.append(read_offsets(world.disk, path)[NAME])
            return True

        assert await world.directory.cuts.truncate(world.log, 6, look) is None
        assert seen == [6]
        world.append(2)
        await world.directory.checkpoints.save()
        assert read_offsets(world.disk, path)[NAME] == 6

    simulated(test)


@pytest.mark.parametrize("is_of_removed", [False, True])
def test_a_recovery_point_is_lowered_even_if_the_disk_refused_the_file_after_it(is_of_removed: bool) -> None:
    async def test(world: World) -> None:
        world.append(3)
        await world.sync()
        await world.directory.checkpoints.save()
        world.append(11)
        await world.sync()
        world.log.advance_start(1)
        world.disk.fail(lambda path: path.endswith(LOG_START_OFFSETS), "replace_file", DiskFullError)
        if is_of_removed:
            await world.directory.checkpoints.forget_removed()
        else:
            with pytest.raises(DiskFullError):
                await world.directory.checkpoints.save()
        assert read_offsets(world.disk, f"/data/{RECOVERY_POINTS}")[NAME] == 14
        await world.cut(5)
        # Else the next recovery would not look at what is appended now, and keep whatever the crash leaves of it.
        assert read_offsets(world.disk, f"/data/{RECOVERY_POINTS}")[NAME] == 5

    simulated(test)


def test_a_cut_that_is_no_longer_wanted_leaves_the_log_as_it_is() -> None:
    async def test(world: World) -> None:
        world.append(10)
        before = values(world.log)
        assert await world.directory.cuts.truncate(world.log, 6, lambda: False) is None
        assert (values(world.log), world.log.is_being_cut) == (before, False)
        await world.sync()
        await world.directory.checkpoints.save()
        assert read_offsets(world.disk, f"/data/{RECOVERY_POINTS}")[NAME] == 10

    simulated(test)


def test_a_sync_that_runs_when_the_log_is_to_be_cut_says_nothing_of_what_comes_after() -> None:
    async def test(world: World) -> None:
        world.append(6)
        assert world.log.promised_offset == 0
        await asyncio.sleep(0)
        await world.cut(2)
        assert world.log.flushed_offset == 2
        world.append(3, "x")
        assert world.log.promised_offset == 2
        await asyncio.sleep(1)
        assert world.log.promised_offset == 5
        world.disk.crash()
        world.open()
        assert [value[-1:] for value in values(world.log).values()] == [b" ", b" ", b"x", b"x", b"x"]

    simulated(test, config=replace(SMALL, flush_messages=1))


def test_a_cut_of_closed_segments_waits_for_compaction_and_one_of_the_newest_does_not() -> None:
    async def test(world: World) -> None:
        world.append(10)
        world.log.is_being_cleaned = True
        await world.cut(9)
        waiting = world.directory.cuts.truncate(world.log, 3, lambda: True)
        await asyncio.sleep(1)
        assert not waiting.done()
        assert not world.directory.holds(world.log)
        world.log.is_being_cleaned = False
        assert await waiting is None
        assert world.log.end_offset == 3

    simulated(test)


def test_what_compaction_had_been_through_is_forgotten_where_it_was_cut() -> None:
    async def test(world: World) -> None:
        world.append(10)
        await world.sync()
        await world.directory.checkpoints.cleaned_up_to(world.log, 8)
        await world.cut(5)
        world.append(10)
        assert world.directory.checkpoints.first_dirty_offset(world.log) == 5
        world.disk.kill()
        world.open()
        assert world.directory.checkpoints.first_dirty_offset(world.log) == 5

    simulated(test)


def test_on_a_full_disk_a_cut_is_put_off_or_waits_for_room() -> None:
    async def test(world: World) -> None:
        world.append(5)
        world.append(5, leader_epoch=1)
        await world.sync()
        await world.directory.checkpoints.save()
        fault = world.disk.fail(lambda path: path.endswith(RECOVERY_POINTS), "replace_file", DiskFullError, times=None)
        refusal = await world.directory.cuts.truncate(world.log, 3, lambda: True)
        assert refusal is not None
        assert (world.log.end_offset, world.directory.failure) == (10, None)
        fault.lift()
        fault = world.disk.fail(lambda path: "leader-epoch" in path, "replace_file", DiskFullError, times=None)
        waiting = world.directory.cuts.truncate(world.log, 3, lambda: True)
        await asyncio.sleep(3)
        assert (waiting.done(), world.log.is_being_cut) == (False, True)
        fault.lift()
        assert await waiting is None
        assert (world.log.end_offset, world.log.is_durable) == (3, True)

    simulated(test)


def test_on_a_full_disk_a_cut_that_is_made_waits_until_all_that_follows_is_written() -> None:
    """Else recovery would take what is appended now, below the start on disk, for deleted."""

    async def test(world: World) -> None:
        world.append(10)
        await world.sync()
        await world.directory.checkpoints.cleaned_up_to(world.log, 8)
        world.log.advance_start(9)
        await world.directory.checkpoints.save()
        fault = world.disk.fail(lambda path: path.endswith(CLEANER_OFFSETS), "replace_file", DiskFullError, times=None)
        waiting = world.directory.cuts.restart(world.log, 2, lambda: True)
        await asyncio.sleep(3)
        assert (waiting.done(), world.log.is_being_cut) == (False, True)
        fault.lift()
        assert await waiting is None
        world.append(3, "x")
        await world.sync()
        world.directory.tasks.abandon()
        world.disk.crash()
        await world.reopen()
        assert list(values(world.log)) == [2, 3, 4]
        assert world.directory.checkpoints.first_dirty_offset(world.log) == 2

    simulated(test)


def test_a_stop_waits_for_a_cut_that_has_begun() -> None:
    async def test(world: World) -> None:
        world.append(10, leader_epoch=2)
        begun = asyncio.Event()

        def note() -> bool:
            begun.set()
            return True

        waiting = world.directory.cuts.truncate(world.log, 6, note)
        await begun.wait()
        await world.directory.close()
        assert await waiting is None
        world.open()
        assert (world.directory.stopped_cleanly, world.log.end_offset) == (True, 6)

    simulated(test)
