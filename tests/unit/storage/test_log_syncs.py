"""Syncs of a log directory: when they are due, who shares them, and what they let a log promise."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.testing.loop import SimLoop
from tests.unit.storage.directories import (
    IDS,
    LAZY,
    ORDERS,
    SYNC_EACH,
    World,
    simulated,
)
from tests.unit.storage.logs import BATCH_BYTES

# --- syncing


@simulated
async def test_a_promise_is_given_after_the_sync_and_not_before(world: World) -> None:
    _, log = world.started(SYNC_EACH)
    world.append(log, 3)
    assert log.promised_offset == 0
    await asyncio.sleep(1)
    assert (log.promised_offset, world.promised) == (3, [log])
    world.disk.crash()
    assert world.directory().open_partition(ORDERS, IDS[ORDERS], SYNC_EACH).end_offset == 3


@simulated
async def test_appends_during_a_sync_share_the_next_one(world: World) -> None:
    _, log = world.started(SYNC_EACH)
    world.append(log)
    await asyncio.sleep(0)
    world.append(log, 50)
    await asyncio.sleep(1)
    assert (log.promised_offset, len(world.promised)) == (51, 2)


@simulated
async def test_the_background_sync_bounds_how_long_and_how_much_is_unsynced(world: World) -> None:
    directory, log = world.started(background_ms=1000)
    world.append(log)
    await asyncio.sleep(1.1)
    assert log.flushed_offset == 1
    await directory.close()
    directory, log = world.started(background_bytes=3 * BATCH_BYTES)
    world.append(log, 2)
    await asyncio.sleep(1)
    assert log.flushed_offset == 1
    world.append(log)
    await asyncio.sleep(1)
    assert log.flushed_offset == 4


@pytest.mark.parametrize("background_ms", [-1, 60_000])
def test_flush_ms_is_kept_whatever_the_background_sync_does(background_ms: int) -> None:
    async def test(world: World) -> None:
        _, log = world.started(replace(LAZY, flush_ms=100), background_ms=background_ms)
        for number in range(1, 4):
            world.append(log)
            await asyncio.sleep(0.15)
            assert log.flushed_offset == number

    loop = SimLoop(12)
    loop.run(test(World(loop)))


@simulated
async def test_a_sync_that_a_full_disk_refused_is_done_when_there_is_room(world: World) -> None:
    directory, log = world.started(SYNC_EACH)
    world.append(log)
    world.disk.capacity_bytes = world.disk.used_bytes
    await asyncio.sleep(5)
    assert (log.promised_offset, directory.failure) == (0, None)
    world.disk.capacity_bytes = None
    await asyncio.sleep(2)
    assert log.promised_offset == 1
    world.disk.crash()
    assert world.directory().open_partition(ORDERS, IDS[ORDERS], SYNC_EACH).end_offset == 1
