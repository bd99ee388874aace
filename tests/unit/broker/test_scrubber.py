"""The scrub reads all closed segments in time, finds damaged batches, and stops serving them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.upkeep.scrubber import Scrubber
from tailrace.records.record import NewRecord
from tailrace.runtime.tasks import Tasks
from tailrace.storage.segment import CorruptSegmentError
from tailrace.testing.loop import SimLoop
from tests.support.batches.compacted_log import Batch, World

HOUR_SECONDS = 3600


def run(test: Callable[[World, Scrubber], Coroutine[Any, Any, None]], hours: int = 1) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        failures: list[BaseException] = []
        world = World(loop)
        tasks = Tasks(failures.append)
        config = BrokerConfig({"tailrace.scrub.interval.hours": str(hours)})
        scrubber = Scrubber(config, world.runtime, [world.partition], tasks)  # type: ignore[arg-type]
        scrubber.start()
        await test(world, scrubber)
        assert failures == []
        await tasks.cancel()
        await world.stop()

    loop.run(main())


async def fill(world: World) -> int:
    """Several closed segments and one that grows; the bytes in the closed ones."""
    for number in range(30):
        world.append(Batch([NewRecord(b"%d" % number, b"key %d" % number, 1)]))
    world.roll()
    world.append(Batch([NewRecord(b"last", b"last", 1)]))
    await world.sync()
    return sum(segment.size for segment in world.log.segments.sealed)


def test_every_byte_of_closed_segments_is_read_once_in_the_interval() -> None:
    async def test(world: World, scrubber: Scrubber) -> None:
        total = await fill(world)
        await asyncio.sleep(0.9 * HOUR_SECONDS)
        assert scrubber.passes == 0
        assert 0 < scrubber.bytes_read < total
        await asyncio.sleep(0.2 * HOUR_SECONDS)
        assert (scrubber.passes, scrubber.problems) == (1, 0)
        assert total <= scrubber.bytes_read < 1.5 * total
        await asyncio.sleep(HOUR_SECONDS)
        assert scrubber.passes == 2

    run(test)


def test_damage_is_reported_and_not_served(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World, scrubber: Scrubber) -> None:
        await fill(world)
        victim = world.log.segments.sealed[2]
        (position, header), *_ = list(victim.headers())[1:]
        world.disk._find(victim.log.path).content[position + 70] ^= 1  # type: ignore[union-attr]
        await asyncio.sleep(2.2 * HOUR_SECONDS)
        assert scrubber.problems == 1
        assert victim.corrupt_position == position
        with pytest.raises(CorruptSegmentError):
            world.log.read(header.base_offset, 1000, world.log.end_offset)
        assert [segment.corrupt_position for segment in world.log.segments.sealed].count(None) >= 3
        assert f"scrub found {victim.log.path} damaged at position {position}: the CRC" in caplog.text
        await asyncio.sleep(3 * HOUR_SECONDS)
        assert scrubber.problems == 1  # said once

    run(test)


def test_a_helper_that_dies_holds_it_up_and_no_more() -> None:
    async def test(world: World, scrubber: Scrubber) -> None:
        await fill(world)
        world.helper.kill_after(0)
        await asyncio.sleep(4.5 * HOUR_SECONDS)
        assert scrubber.passes >= 1
        assert scrubber.problems == 0

    run(test)


def test_it_can_be_turned_off() -> None:
    async def test(world: World, scrubber: Scrubber) -> None:
        await fill(world)
        await asyncio.sleep(10 * HOUR_SECONDS)
        assert (scrubber.passes, world.helper.calls) == (0, 0)

    run(test, hours=-1)
