"""Checkpoints of a log directory: what they say, what a start reads, and what crashes and removals leave of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS
from tailrace.storage.log_directory import LogDirectory
from tailrace.testing.loop import SimLoop
from tests.unit.storage.directories import IDS, LAZY, ORDERS, PAYMENTS, World, on_the_real_disk, simulated
from tests.unit.storage.logs import append, batch

PATH = f"/data/{HIGH_WATERMARKS}"
BOTH = (ORDERS, PAYMENTS)
RECREATED = UUID(int=99)


def opened(world: World, *partitions: TopicPartition) -> LogDirectory:
    """A directory that has started with the given logs."""
    directory = world.directory()
    for partition in partitions:
        directory.open_partition(partition, IDS[partition], LAZY)
    directory.start()
    return directory


def known(directory: LogDirectory) -> list[int]:
    return [directory.checkpoints.high_watermark_of(partition) for partition in BOTH]


async def restarted(world: World, directory: LogDirectory, *partitions: TopicPartition) -> LogDirectory:
    """A directory of the next process; the one before was killed."""
    directory.tasks.abandon()
    world.disk.kill()
    await asyncio.sleep(0.1)  # until what was cancelled has ended
    return opened(world, *partitions)


def test_checkpoints_asked_for_at_the_same_time_are_written_one_after_another(tmp_path: Path) -> None:
    async def test() -> None:
        directory = on_the_real_disk(tmp_path)
        log = directory.open_partition(ORDERS, IDS[ORDERS], LAZY)
        for start in range(1, 20):
            append(log, batch())
            log.advance_start(start)
            await asyncio.gather(*(directory.checkpoints.save() for _ in range(8)))
            assert directory.failure is None
            assert (tmp_path / LOG_START_OFFSETS).read_text() == f"0\n1\norders 0 {start}\n"

    asyncio.run(test())


@simulated
async def test_checkpoints_that_do_not_fit_are_an_error_but_not_the_end(world: World) -> None:
    directory, _ = world.started()
    world.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        await directory.checkpoints.save()
    assert directory.failure is None


# --- high watermarks


@simulated
async def test_they_are_written_in_kafkas_format_and_the_next_start_reads_them(world: World) -> None:
    directory = opened(world, *BOTH)
    assert known(directory) == [0, 0]
    await directory.checkpoints.save_high_watermarks({ORDERS: 1234567, PAYMENTS: 3})
    assert world.disk.read_file(PATH) == b"0\n2\norders 0 1234567\npayments 3 3\n"
    assert known(directory) == [1234567, 3]
    assert known(await restarted(world, directory, *BOTH)) == [1234567, 3]


@simulated
async def test_a_clean_stop_keeps_them(world: World) -> None:
    directory = opened(world, *BOTH)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    await directory.close()
    assert known(opened(world, *BOTH)) == [5, 3]


@simulated
async def test_logs_that_a_save_does_not_name_keep_theirs(world: World) -> None:
    directory = opened(world, *BOTH)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    await directory.checkpoints.save_high_watermarks({ORDERS: 6})
    assert known(directory) == [6, 3]
    # One log could not be opened again: what is known of it must outlive the saves of others.
    directory = await restarted(world, directory, ORDERS)
    await directory.checkpoints.save_high_watermarks({ORDERS: 7})
    assert world.disk.read_file(PATH) == b"0\n2\norders 0 7\npayments 3 3\n"
    assert known(await restarted(world, directory, *BOTH)) == [7, 3]


@simulated
async def test_nothing_is_written_of_a_log_that_is_not_here(world: World) -> None:
    directory = opened(world, ORDERS)
    await directory.checkpoints.save_high_watermarks({PAYMENTS: 3})
    assert world.disk.read_file(PATH) is None
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    assert world.disk.read_file(PATH) == b"0\n1\norders 0 5\n"


@simulated
async def test_the_same_is_not_written_twice_not_even_after_a_start(world: World) -> None:
    directory = opened(world, ORDERS)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5})
    world.disk.fail(lambda path: path == PATH, "replace_file", times=None)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5})
    directory = await restarted(world, directory, ORDERS)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5})
    assert directory.failure is None
    with pytest.raises(StorageError):
        await directory.checkpoints.save_high_watermarks({ORDERS: 6})


@simulated
async def test_a_full_disk_refuses_them_until_there_is_room(world: World) -> None:
    directory = opened(world, ORDERS)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5})
    world.disk.capacity_bytes = world.disk.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFullError):
            await directory.checkpoints.save_high_watermarks({ORDERS: 6})
    assert directory.failure is None
    assert world.disk.read_file(PATH) == b"0\n1\norders 0 5\n"
    world.disk.capacity_bytes = None
    await directory.checkpoints.save_high_watermarks({ORDERS: 6})
    assert known(await restarted(world, directory, ORDERS)) == [6, 0]


@simulated
async def test_a_disk_that_fails_takes_the_directory_offline(world: World) -> None:
    directory = opened(world, ORDERS)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5})
    world.disk.fail(lambda path: path == PATH, "replace_file")
    with pytest.raises(StorageError):
        await directory.checkpoints.save_high_watermarks({ORDERS: 6})
    assert directory.failure is not None
    assert world.disk.read_file(PATH) == b"0\n1\norders 0 5\n"


@simulated
async def test_a_file_that_is_cut_short_counts_as_none_and_is_written_anew(world: World) -> None:
    directory = opened(world, *BOTH)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    content = world.disk.read_file(PATH)
    assert content is not None
    for size in range(len(content)):
        world.disk.replace_file(PATH, content[:size])
        directory = await restarted(world, directory, *BOTH)
        assert known(directory) == [0, 0], content[:size]
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    assert world.disk.read_file(PATH) == content


def test_a_power_cut_during_a_write_leaves_the_last_ones_that_were_saved_or_the_next_whole() -> None:
    for seed in range(80):
        loop = SimLoop(seed)
        loop.run(_cut_power_during_a_write(World(loop), Random(seed)))


async def _cut_power_during_a_write(world: World, random: Random) -> None:
    await opened(world, *BOTH).close()  # so that the logs themselves survive
    directory = opened(world, *BOTH)
    saved = 0

    async def save_more_and_more() -> None:
        nonlocal saved
        while True:
            await directory.checkpoints.save_high_watermarks({ORDERS: saved + 1, PAYMENTS: 10 * (saved + 1)})
            saved += 1

    saving = asyncio.ensure_future(save_more_and_more())
    await asyncio.sleep(random.uniform(0.1, 0.5))
    directory.tasks.abandon()
    world.disk.crash()
    await asyncio.wait([saving])
    assert saved > 0
    assert known(opened(world, *BOTH)) in ([saved, 10 * saved], [saved + 1, 10 * (saved + 1)])


@simulated
async def test_a_removed_partition_leaves_none_in_the_file(world: World) -> None:
    directory = opened(world, *BOTH)
    await directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3})
    directory.remove_partition(ORDERS)
    assert known(directory) == [0, 3]
    await asyncio.sleep(1)  # the removal forgets it on disk as well
    assert world.disk.read_file(PATH) == b"0\n1\npayments 3 3\n"
    assert known(await restarted(world, directory, PAYMENTS)) == [0, 3]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_partition_removed_during_the_write_leaves_none_for_its_namesake(is_recreated: bool) -> None:
    async def run(world: World) -> None:
        directory = opened(world, *BOTH)
        saving = asyncio.ensure_future(directory.checkpoints.save_high_watermarks({ORDERS: 5, PAYMENTS: 3}))
        await asyncio.sleep(0)  # it has decided what to write, and waits for its thread
        assert not saving.done()
        directory.remove_partition(ORDERS)
        if is_recreated:
            directory.open_partition(ORDERS, RECREATED, LAZY)
        await saving
        assert known(directory) == [0, 3]
        await asyncio.sleep(1)
        assert world.disk.read_file(PATH) == b"0\n1\npayments 3 3\n"
        directory = await restarted(world, directory, PAYMENTS)
        directory.open_partition(ORDERS, RECREATED, LAZY)
        assert known(directory) == [0, 3]

    loop = SimLoop(11)
    loop.run(run(World(loop)))
