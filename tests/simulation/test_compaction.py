"""Compaction cut short at any point, by a kill or a power cut: nothing is lost, and the next one finishes the work.

Each seed is one log with its own keys and segments, crashed once for every few disk operations of its cleaning, in the
helper's part as in the broker's. TAILRACE_SIM_SEEDS sets how many seeds run (one in 50), TAILRACE_SIM_SEED replays a
single one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord
from tailrace.storage.segment_swaps import SegmentSwaps
from tailrace.testing.loop import SimLoop
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk
from tests.support.batches.compacted_log import CONFIG, FOREVER_MS, Batch, World

CRASHES_PER_SEED = 40
NOW_MS = 1_700_000_000_000


def random_batch(random: Random, number: int) -> Batch:
    records = [
        NewRecord(
            None if random.random() < 0.2 else b"%d:%d" % (number, index),
            b"key %d" % random.randrange(12),
            NOW_MS + number,
        )
        for index in range(random.randint(1, 4))
    ]
    return Batch(records, random.choice(list(Compression)), random.choice([None, 1, 2]))


async def fill(world: World, random: Random, first: int, count: int) -> None:
    for number in range(first, first + count):
        world.append(random_batch(random, number))
        if random.random() < 0.1:
            world.roll()
    world.roll()
    await world.sync()


async def simulate(seed: int, crash_at: int) -> bool:
    """One run with one crash; return whether it came before the end of the cleaning."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    random = Random(seed)
    config = replace(
        CONFIG,
        segment_bytes=random.choice([300, 900, 3000]),
        delete_retention_ms=random.choice([0, FOREVER_MS]),
    )
    world = World(loop, config)
    await fill(world, random, 0, random.randint(5, 30))
    if random.random() < 0.7:
        assert await world.clean()
        await fill(world, random, 100, random.randint(1, 20))
    end_offset = world.log.end_offset
    power_cut = random.random() < 0.7
    world.crash_after(crash_at, power_cut=power_cut)
    task = loop.create_task(world.cleaner.clean_dirtiest())
    await asyncio.wait([task])
    is_crashed = world.is_over()
    if not is_crashed:
        assert task.result()
        world.crash(power_cut=power_cut)
    await world.reopen()
    assert (world.log.start_offset, world.log.end_offset) == (0, end_offset), "offsets were lost"
    world.model.check_nothing_lost(world.read_all(), end_offset)
    assert not [name for name in world.disk.list("/data/state-0") if name.endswith((".swap", ".cleaned", ".deleted"))]
    for producer in (1, 2):
        # Refused unless the producer's last sequence number is unchanged.
        world.append(Batch([NewRecord(b"next", b"last", NOW_MS)], producer=producer))
    world.roll()
    await world.sync()
    assert await world.clean()
    if not world.model.tombstones_go:
        assert world.read_all() == world.model.expected()
    world.model.check_nothing_lost(world.read_all(), world.log.end_offset)
    keys = [record.key for record in world.read_all()]
    assert len(keys) == len(set(keys)), "a key is there twice"
    await world.stop()
    return is_crashed


def run_seed(seed: int) -> int:
    """Crash one log every few operations until a cleaning ends before its crash; return the number of crashes."""
    step = 1
    crash_at = 0
    for crashes in range(10_000):
        try:
            if not SimLoop(f"{seed}/{crash_at}", max_virtual_seconds=3600).run(simulate(seed, crash_at)):
                return crashes
        except BaseException as error:
            error.add_note(f"crashed at disk operation {crash_at}")
            error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_compaction.py")
            raise
        if crashes % CRASHES_PER_SEED == CRASHES_PER_SEED - 1:
            step *= 2
        crash_at += Random(f"{seed}/{crash_at}").randint(1, 2 * step)
    raise AssertionError("the cleaning never ends")


@pytest.mark.parametrize("seeds", chunks_of_seeds(1, one_in=50), ids=name_of_chunk)
def test_a_crash_at_any_point_of_a_cleaning_loses_nothing(seeds: list[int]) -> None:
    (seed,) = seeds
    crashes = run_seed(seed)
    print(f"seed {seed}: {crashes} crashes")
    assert crashes > 10


def crashes_until_caught(limit: int = 12) -> int:
    for seed in range(limit):
        try:
            run_seed(seed)
        except AssertionError:
            return seed + 1
    raise AssertionError(f"nobody noticed in {limit} seeds")


def test_the_checks_notice_a_recovery_that_drops_what_was_on_its_way_into_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drop(partition: object, disk: object, directory: str, gaps_below: int) -> None:
        for name in disk.list(directory):  # type: ignore[attr-defined]
            if name.endswith(".swap"):
                disk.remove(f"{directory}/{name}")  # type: ignore[attr-defined]

    monkeypatch.setattr("tailrace.storage.recovery._finish_swaps", drop)
    print(f"caught after {crashes_until_caught()} seeds")


def test_the_checks_notice_a_recovery_that_does_not_know_of_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say_nothing(swaps: SegmentSwaps, log: object, below: int) -> None:
        """The log does not learn that it may have gaps."""

    monkeypatch.setattr(SegmentSwaps, "allow_gaps", say_nothing)
    print(f"caught after {crashes_until_caught()} seeds")
