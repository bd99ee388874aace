"""Partitions that are removed while others work on them, and topics that come back under the same name."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from tailrace.errors import KafkaError
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.runtime.disk import TooManyOpenFilesError
from tailrace.storage.directory_names import is_stray
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.segment import SegmentRemovedError
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.storage.directories import (
    IDS,
    LAZY,
    ORDERS,
    PAYMENTS,
    SYNC_EACH,
    World,
    on_the_real_disk,
    simulated,
)
from tests.unit.storage.logs import BATCH_BYTES, append

RECREATED = UUID(int=77)
TINY = replace(LAZY, segment_bytes=BATCH_BYTES, file_delete_delay_ms=0)


# --- whose files they are


@simulated
async def test_a_directory_without_an_identity_is_set_aside_and_not_taken_for_a_new_topics(world: World) -> None:
    for content in (None, b"", b"version: 0\n"):
        directory, log = world.started()
        world.append(log)
        world.disk.remove("/data/orders-0/partition.metadata")
        if content is not None:
            world.disk.replace_file("/data/orders-0/partition.metadata", content)
        world.disk.kill()
        directory = world.directory()
        assert directory.partition_directories() == ([] if content is None else [ORDERS])
        assert directory.open_partition(ORDERS, IDS[ORDERS], LAZY).end_offset == 0
        (stray,) = [name for name in world.disk.list("/data") if is_stray(name)]
        assert "00000000000000000000.log" in world.disk.list(f"/data/{stray}")
        world.disk.remove(f"/data/{stray}")
        world.disk.remove("/data/orders-0")
        world.disk.kill()


@simulated
async def test_a_directory_without_an_identity_and_without_records_is_removed(world: World) -> None:
    world.started()
    world.disk.remove("/data/orders-0/partition.metadata")
    world.disk.kill()
    assert world.directory().open_partition(ORDERS, IDS[ORDERS], LAZY).end_offset == 0
    assert [name for name in world.disk.list("/data") if is_stray(name)] == []


def test_a_recreated_topic_never_has_records_of_the_deleted_one_whatever_a_power_cut_leaves() -> None:
    for seed in range(60):
        loop = SimLoop(seed)
        loop.run(_recreate_after_a_power_cut(loop, Random(seed)))


async def _recreate_after_a_power_cut(loop: SimLoop, random: Random) -> None:
    disk = SimDisk(random)
    runtime = Runtime(
        SimClock(loop), disk, SimNetwork(loop, Random(6)).host("broker"), Random(7), SimHelper(disk, Random(8))
    )

    def opened() -> LogDirectory:
        directory = LogDirectory("/data", runtime, background_bytes=1 << 30, background_ms=100)
        directory.open()
        directory.partition_directories()
        return directory

    directory = opened()
    log = directory.open_partition(ORDERS, IDS[ORDERS], TINY)
    directory.start()
    for _ in range(3):
        append(log)
    await asyncio.sleep(0.5)
    directory.remove_partition(ORDERS)
    await asyncio.sleep(random.uniform(0, 0.1))
    is_recreated_before = random.random() < 0.5
    if is_recreated_before:
        directory.open_partition(ORDERS, RECREATED, TINY)
        await asyncio.sleep(random.uniform(0, 0.1))
    directory.tasks.abandon()
    disk.crash()
    directory = opened()
    recreated = directory.open_partition(ORDERS, RECREATED, TINY)
    assert (recreated.start_offset, recreated.end_offset) == (0, 0)
    assert directory.failure is None


@simulated
async def test_what_was_written_down_of_a_deleted_topic_is_not_taken_for_its_namesakes(world: World) -> None:
    directory, log = world.started()
    world.append(log, 30)
    log.advance_start(20)
    await directory.checkpoints.save()
    await directory.checkpoints.save_high_watermarks({ORDERS: 30})
    directory.remove_partition(ORDERS)
    log = directory.open_partition(ORDERS, RECREATED, LAZY)
    world.append(log, 3)
    world.disk.kill()
    directory = world.directory()
    log = directory.open_partition(ORDERS, RECREATED, LAZY)
    assert (log.start_offset, log.end_offset, directory.checkpoints.high_watermark_of(ORDERS)) == (0, 3, 0)


@simulated
async def test_what_a_log_without_files_had_written_down_goes_before_the_first_record(world: World) -> None:
    directory, log = world.started()
    world.append(log, 30)
    log.advance_start(20)
    await directory.checkpoints.save()
    world.disk.kill()
    world.disk.remove("/data/orders-0")
    log = world.directory().open_partition(ORDERS, RECREATED, LAZY)
    world.append(log, 3)
    world.disk.kill()
    log = world.directory().open_partition(ORDERS, RECREATED, LAZY)
    assert (log.start_offset, log.end_offset) == (0, 3)


@simulated
async def test_a_removed_log_does_not_open_the_files_of_its_namesake(world: World) -> None:
    directory, removed = world.started(TINY)
    world.append(removed, 3)
    directory.remove_partition(ORDERS)
    world.append(directory.open_partition(ORDERS, RECREATED, TINY), 3)
    with pytest.raises(SegmentRemovedError):
        removed.read(0, 100, 3)


# --- threads that are at work meanwhile


def test_logs_are_removed_while_a_thread_syncs_them_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a sync of many logs is one during which a topic is deleted."""
    names = [TopicPartition("orders", number) for number in range(8)]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        directory = on_the_real_disk(tmp_path)
        logs = {name: directory.open_partition(name, UUID(int=1), LAZY) for name in names}
        kept = directory.open_partition(PAYMENTS, UUID(int=2), LAZY)
        for log in (*logs.values(), kept):
            append(log)
        left = list(names)

        def remove_one() -> None:
            if left:
                directory.remove_partition(left.pop())

        def in_a_thread_of_the_disk() -> None:
            if threading.current_thread().name.startswith("tailrace-disk"):
                done = threading.Event()
                loop.call_soon_threadsafe(lambda: (remove_one(), done.set()))
                done.wait(10)

        for name in ("replace", "fsync", "fdatasync"):
            original = getattr(os, name)

            def hooked(*arguments: object, original=original, **options: object) -> object:
                in_a_thread_of_the_disk()
                return original(*arguments, **options)

            monkeypatch.setattr(os, name, hooked)
        batch = [*logs.values(), kept]
        for log in batch:
            directory.syncs.occupy(log, asyncio.current_task())
        await directory.syncs._sync_together(batch)
        assert directory.failure is None
        assert kept.flushed_offset == 1
        assert not left
        monkeypatch.undo()
        await directory.close()

    asyncio.run(run())


# --- descriptors


def _is_being_removed(path: Path) -> bool:
    return any(found.name.endswith((".deleted", "-delete")) for found in path.rglob("*"))


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("how", ["retention", "deletion"])
def test_removing_more_segments_than_descriptors_takes_none_of_them(tmp_path: Path, how: str) -> None:
    async def run() -> None:
        directory = on_the_real_disk(tmp_path)
        log = directory.open_partition(ORDERS, IDS[ORDERS], TINY)
        await directory.offload(lambda: None)
        with few_descriptors(20):
            for _ in range(150):
                append(log)
            if how == "retention":
                log.advance_start(log.end_offset)
                take_out = partial(log.remove_expired, log.end_offset)
                directory.removals.remove_later(log, await directory.starts.take_out_expired(log, take_out))
            else:
                directory.remove_partition(ORDERS)
            while _is_being_removed(tmp_path):
                assert directory.failure is None, directory.failure
                await asyncio.sleep(0.01)
        assert directory.failure is None, directory.failure
        await directory.close()

    asyncio.run(run())


@simulated
async def test_a_sync_without_a_descriptor_is_tried_again_and_the_promise_given_then(world: World) -> None:
    directory, log = world.started(SYNC_EACH)
    fault = world.disk.fail(lambda path: "orders" in path, "sync", TooManyOpenFilesError, times=None)
    world.append(log)
    await asyncio.sleep(2.5)
    assert (directory.failure, log.promised_offset) == (None, 0)
    fault.lift()
    await asyncio.sleep(1.5)
    assert log.promised_offset == 1
    await directory.close()


@simulated
async def test_a_cut_without_a_descriptor_is_gone_on_with_when_there_is_one(world: World) -> None:
    directory, log = world.started(TINY)
    world.append(log, 5)
    fault = world.disk.fail(lambda path: "orders" in path, "truncate", TooManyOpenFilesError, times=None)
    cut = directory.cuts.truncate(log, 2, lambda: True)
    await asyncio.sleep(3)
    assert log.is_being_cut
    fault.lift()
    assert await cut is None
    assert (log.end_offset, directory.failure) == (2, None)
    world.append(log, 1)
    await directory.close()
    assert world.directory().open_partition(ORDERS, IDS[ORDERS], TINY).end_offset == 3


@simulated
async def test_a_batch_without_a_descriptor_is_refused_and_leaves_nothing(world: World) -> None:
    directory, log = world.started(replace(LAZY, segment_bytes=4 * BATCH_BYTES))
    for operation in ("open", "append", "read", "replace_file", "list"):
        fault = world.disk.fail(lambda path: "orders" in path, operation, TooManyOpenFilesError, times=None)
        for _ in range(6):
            try:
                world.append(log)
            except TooManyOpenFilesError:
                pass
        fault.lift()
        world.append(log)
    assert directory.failure is None
    end_offset = log.end_offset
    await directory.close()
    world.disk.remove("/data/.kafka_cleanshutdown")
    found = world.directory().open_partition(ORDERS, IDS[ORDERS], LAZY)
    assert (found.start_offset, found.end_offset) == (0, end_offset)


@simulated
async def test_partitions_are_removed_when_there_is_a_descriptor_again(world: World) -> None:
    directory, log = world.started()
    world.append(log)
    fault = world.disk.fail(lambda path: True, "remove", TooManyOpenFilesError, times=None)
    directory.remove_partition(ORDERS)
    await asyncio.sleep(5)
    assert [name for name in world.disk.list("/data") if name.endswith("-delete")]
    fault.lift()
    await asyncio.sleep(2)
    assert not [name for name in world.disk.list("/data") if name.endswith("-delete")]
    assert directory.failure is None
    with pytest.raises(KafkaError):
        log.read(0, 100, 1)


@simulated
async def test_a_checkpoint_that_is_being_written_of_a_removed_log_is_written_again(world: World) -> None:
    directory, log = world.started()
    world.append(log, 30)
    log.advance_start(20)
    writing = asyncio.ensure_future(directory.checkpoints.save())
    await asyncio.sleep(0)
    directory.remove_partition(ORDERS)
    assert directory.checkpoints.has_outdated(ORDERS)
    await directory.checkpoints.forget_removed()
    await writing
    world.append(directory.open_partition(ORDERS, RECREATED, LAZY), 3)
    world.disk.kill()
    log = world.directory().open_partition(ORDERS, RECREATED, LAZY)
    assert (log.start_offset, log.end_offset) == (0, 3)


@simulated
async def test_a_partition_that_was_made_by_half_is_durable_with_its_first_sync(world: World) -> None:
    directory, _ = world.started()
    await directory.close()
    for _ in range(20):
        directory = world.directory()
        assert directory.stopped_cleanly
        world.disk.fail(lambda path: path.endswith(".log"), "open", TooManyOpenFilesError)
        with pytest.raises(TooManyOpenFilesError):
            directory.open_partition(PAYMENTS, IDS[PAYMENTS], SYNC_EACH)
        log = directory.open_partition(PAYMENTS, IDS[PAYMENTS], SYNC_EACH)
        directory.start()
        world.append(log)
        await asyncio.sleep(1)
        assert log.promised_offset == 1
        directory.tasks.abandon()
        world.disk.crash()
        directory = world.directory()
        assert directory.open_partition(PAYMENTS, IDS[PAYMENTS], SYNC_EACH).end_offset == 1
        directory.remove_partition(PAYMENTS)
        directory.start()
        await directory.close()
