"""A log directory: how it fails, how it continues after a full disk, and which logs it accepts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import MAX_TOPIC_NAME_LENGTH, TopicPartition
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.log_directory import LogDirectory
from tests.unit.storage.directories import (
    IDS,
    LAZY,
    MARKER,
    ORDERS,
    PAYMENTS,
    SYNC_EACH,
    World,
    on_the_real_disk,
    simulated,
)
from tests.unit.storage.logs import BATCH_BYTES, read_all


@simulated
async def test_a_failed_sync_takes_the_directory_offline_and_nothing_is_promised(world: World) -> None:
    directory, log = world.started(SYNC_EACH)
    failed: list[LogDirectory] = []
    directory.on_failure = failed.append
    world.disk.fail(lambda path: path.endswith(".log"), "sync")
    world.append(log)
    await asyncio.sleep(1)
    assert failed == [directory]
    assert (log.promised_offset, world.promised) == (0, [])
    with pytest.raises(KafkaError) as caught:
        directory.require_online()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await directory.close()
    assert not world.disk.exists(MARKER)


@simulated
async def test_a_full_disk_refuses_appends_and_the_log_goes_on_later(world: World) -> None:
    directory, log = world.started()
    world.append(log, 2)
    world.disk.capacity_bytes = world.disk.used_bytes
    for _ in range(3):
        with pytest.raises(DiskFullError):
            world.append(log)
    world.disk.capacity_bytes = None
    world.append(log, 2)
    assert directory.failure is None
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]


# --- stopping and starting


@simulated
async def test_a_clean_stop_leaves_a_marker_that_the_next_start_takes_away(world: World) -> None:
    directory, log = world.started()
    world.append(log, 3)
    await directory.close()
    assert world.disk.exists(MARKER)
    world.disk.crash()
    directory, log = world.started()
    assert directory.stopped_cleanly
    assert not world.disk.exists(MARKER)
    assert (log.end_offset, log.flushed_offset) == (3, 3)


@simulated
async def test_a_stop_in_the_middle_of_the_first_sync_loses_nothing(world: World) -> None:
    directory, log = world.started(SYNC_EACH)
    world.append(log)
    await asyncio.sleep(0)
    await directory.close()
    assert world.disk.exists(MARKER)
    world.disk.crash()
    _, log = world.started()
    assert [record.offset for record in read_all(log)] == [0]


@simulated
async def test_a_start_that_failed_after_a_crash_does_not_call_the_logs_clean(world: World) -> None:
    directory, log = world.started()
    world.append(log, 3)
    log.advance_start(2)
    await directory.checkpoints.save()
    checkpoints = world.checkpoints()
    world.disk.kill()
    failed = world.directory()  # and nothing is opened: the store, say, was not there
    await failed.close()
    assert not world.disk.exists(MARKER)
    assert world.checkpoints() == checkpoints
    assert world.started()[1].start_offset == 2


@simulated
async def test_a_start_that_failed_after_a_clean_stop_leaves_it_clean(world: World) -> None:
    directory, _ = world.started()
    await directory.close()
    await world.directory().close()
    assert world.directory().stopped_cleanly


@simulated
async def test_a_log_that_could_not_be_opened_keeps_its_checkpoints_and_its_recovery(world: World) -> None:
    directory, log = world.started()
    world.append(log, 3)
    log.advance_start(1)
    await directory.checkpoints.save()
    world.disk.kill()
    directory = world.directory()
    directory.needs_recovery()
    directory.start()
    await directory.close()
    directory = world.directory()
    assert not directory.stopped_cleanly
    assert directory.open_partition(ORDERS, IDS[ORDERS], LAZY).start_offset == 1


@simulated
async def test_another_brokers_directory_is_refused(world: World) -> None:
    directory = world.directory()
    directory.identify(1, "cluster-a")
    directory.identify(1, "cluster-a")
    for broker_id, cluster_id, owner in ((2, "cluster-a", "another broker"), (1, "cluster-b", "another cluster")):
        with pytest.raises(StorageError, match=f"belongs to {owner}; give this one its own"):
            directory.identify(broker_id, cluster_id)


# --- whose logs


@simulated
async def test_a_recreated_topic_does_not_adopt_the_old_records(world: World) -> None:
    directory, log = world.started()
    world.append(log, 3)
    await directory.close()
    directory = world.directory()
    log = directory.open_partition(ORDERS, UUID(int=99), LAZY)
    assert (log.start_offset, log.end_offset) == (0, 0)
    await asyncio.sleep(1)
    assert [name for name in world.disk.list("/data") if "delete" in name] == []


@simulated
async def test_a_removed_partition_is_gone_and_may_come_back_empty_at_once(world: World) -> None:
    directory, log = world.started(SYNC_EACH)
    world.append(log, 2)
    await asyncio.sleep(0)  # its first sync is under way
    directory.remove_partition(ORDERS)
    again = directory.open_partition(ORDERS, UUID(int=99), SYNC_EACH)
    world.append(again)
    await asyncio.sleep(1)
    assert (directory.failure, again.promised_offset) == (None, 1)
    world.disk.crash()
    recovered = world.directory().open_partition(ORDERS, UUID(int=99), SYNC_EACH)
    assert recovered.end_offset == 1


@simulated
async def test_files_of_expired_segments_are_removed_later_but_never_those_of_a_new_log(world: World) -> None:
    config = replace(LAZY, segment_bytes=BATCH_BYTES, file_delete_delay_ms=1000)
    directory, log = world.started(config)
    world.append(log, 3)
    log.advance_start(2)
    directory.removals.remove_later(log, await directory.starts.take_out_expired(log, lambda: log.remove_expired(3)))
    assert "00000000000000000000.log.deleted" in world.disk.list("/data/orders-0")
    await asyncio.sleep(1.5)
    assert [name for name in world.disk.list("/data/orders-0") if name.startswith("00000000000000000000.")] == []

    directory.removals.remove_later(log, await directory.starts.take_out_expired(log, lambda: log.remove_expired(3)))
    log.advance_start(3)
    directory.removals.remove_later(log, await directory.starts.take_out_expired(log, lambda: log.remove_expired(3)))
    directory.remove_partition(ORDERS)
    again = directory.open_partition(ORDERS, UUID(int=99), config)
    world.append(again, 4)
    before = world.disk.list("/data/orders-0")
    await asyncio.sleep(5)
    assert world.disk.list("/data/orders-0") == before
    assert [record.offset for record in read_all(again)] == [0, 1, 2, 3]


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        directory = on_the_real_disk(tmp_path)
        partition = TopicPartition("t" * MAX_TOPIC_NAME_LENGTH, 10_000)
        directory.open_partition(partition, UUID(int=3), LAZY)
        directory.remove_partition(partition)
        assert directory.failure is None
        assert not (tmp_path / str(partition)).exists()
        await directory.close()

    asyncio.run(test())


@simulated
async def test_only_directories_that_say_so_are_taken_for_partitions(world: World) -> None:
    directory, _ = world.started()
    directory.open_partition(PAYMENTS, IDS[PAYMENTS], LAZY)
    for name in ("photos-2020", "notes", "please-delete", "-5", "orders-x"):
        world.disk.make_directory(f"/data/{name}")
        world.disk.replace_file(f"/data/{name}/precious", b"content")
    world.disk.make_directory(f"/data/old-0.{'0' * 32}-delete")
    assert sorted(directory.partition_directories()) == [ORDERS, PAYMENTS]
    assert "please-delete" in world.disk.list("/data")
    assert f"old-0.{'0' * 32}-delete" not in world.disk.list("/data")


@simulated
async def test_a_disk_error_while_opening_takes_the_directory_offline_but_a_full_disk_does_not(world: World) -> None:
    directory = world.directory()
    world.disk.fail(lambda path: "orders-0" in path, "replace_file", DiskFullError)
    with pytest.raises(DiskFullError):
        directory.open_partition(ORDERS, IDS[ORDERS], LAZY)
    assert directory.failure is None
    world.disk.fail(lambda path: "orders-0" in path, "open")
    with pytest.raises(StorageError):
        directory.open_partition(ORDERS, IDS[ORDERS], LAZY)
    assert directory.failure is not None
