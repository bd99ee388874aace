"""A partition with an archive: one log for readers, its own start for followers, and no offset used twice."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tailrace.cluster.archives import ArchivedRange
from tailrace.errors import ErrorCode, KafkaError
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import LogPast
from tests.unit.replication.reads import read
from tests.unit.replication.replicas import Replica, Replicas, with_replicas
from tests.unit.replication.test_partition import refusal
from tests.unit.replication.transactions import end, write

CONFIG = LogConfig(index_interval_bytes=0, segment_bytes=300, retention_ms=0, is_archived=True)


async def ten_committed(replicas: Replicas, archived: int) -> None:
    """Ten records everywhere; those below an offset are archived and gone from the leader."""
    for number in range(10):
        replicas.leader.append(b"%d" % number)
    await replicas.fetch(rounds=10)
    await asyncio.sleep(1)
    for replica in replicas.all:
        replica.partition.apply_archive(ArchivedRange(0, archived), archived)
    partition = replicas.leader.partition
    log = partition.log
    take_out = partial(log.remove_expired, 10, archived, partition.log_start_offset)
    await partition.directory.starts.take_out_expired(log, take_out)
    assert 0 < log.start_offset <= archived


def test_what_is_archived_is_part_of_the_log() -> None:
    async def test(replicas: Replicas) -> None:
        await ten_committed(replicas, 6)
        partition = replicas.leader.partition
        start = partition.log.start_offset
        assert (partition.log_start_offset, partition.leading.low_watermark) == (0, 0)
        assert [partition.is_in_archive(offset) for offset in (0, start - 1, start, 9)] == [True, True, False, False]
        partition.apply_archive(ArchivedRange(2, 6), 6)
        assert (partition.log_start_offset, partition.is_in_archive(1), partition.is_in_archive(2)) == (2, False, True)
        assert refusal(lambda: read(partition, 1, 1000)) is ErrorCode.OFFSET_OUT_OF_RANGE
        partition.apply_archive(None, 6)
        assert partition.log_start_offset == start

    with_replicas(test, CONFIG)


def test_what_was_dropped_between_archive_and_log_is_skipped() -> None:
    async def test(replicas: Replicas) -> None:
        await ten_committed(replicas, 6)
        partition = replicas.leader.partition
        start = partition.log.start_offset
        partition.apply_archive(ArchivedRange(0, 2), 2)
        assert partition.is_in_archive(1)
        assert not partition.is_in_archive(2)
        found = read(partition, 2, 1000)
        assert found is not None
        assert found == read(partition, start, 1000)

    with_replicas(test, CONFIG)


def test_a_follower_below_the_leaders_own_log_is_told_where_records_are_and_begins_there() -> None:
    async def test(replicas: Replicas) -> None:
        await ten_committed(replicas, 6)
        leader, third = replicas.leader, replicas.third
        fresh = Replica(replicas.loop, 3, CONFIG)
        replicas.all[2] = fresh
        replicas.change(isr=(1, 2))
        with pytest.raises(KafkaError) as told:
            leader.answer(fresh)
        assert told.value.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
        log = leader.partition.log
        past = LogPast(log.leader_epochs.entries, log.producers.before(log.start_offset))
        await fresh.partition.following.start_anew_at(log.start_offset, past)
        await fresh.fetch_from(leader, rounds=3)
        assert fresh.partition.log.start_offset == log.start_offset
        assert fresh.values() == leader.values()
        assert fresh.partition.log.leader_epochs.epoch_at(0) == leader.partition.log.leader_epochs.epoch_at(0)
        fresh.partition.apply_archive(ArchivedRange(0, 6), 6)
        assert fresh.partition.log_start_offset == third.partition.log_start_offset == 0

    with_replicas(test, CONFIG)


@pytest.mark.parametrize("is_archived", [True, False], ids=["archived", "too old"])
def test_a_log_whose_last_record_was_taken_out_says_in_an_election_how_far_it_was(is_archived: bool) -> None:
    async def test(replicas: Replicas) -> None:
        partition = replicas.leader.partition
        assert replicas.third.partition.following.last_position() == (0, -1)
        replicas.change(leader=2)
        replicas.change(leader=1)
        if is_archived:
            await ten_committed(replicas, 10)
        else:
            for _ in range(10):
                replicas.leader.append()
            await replicas.fetch(rounds=10)
            await asyncio.sleep(1)
            await partition.directory.starts.take_out_expired(partition.log, lambda: partition.log.remove_expired(10))
        assert (partition.log.start_offset, partition.log.end_offset) == (10, 10)
        assert partition.following.fetch_position() == (10, -1)
        assert partition.following.last_position() == replicas.third.partition.following.last_position() == (10, 2)

    with_replicas(test, CONFIG)


def test_a_leader_whose_log_ends_before_the_archive_goes_on_behind_it() -> None:
    async def test(replicas: Replicas) -> None:
        await ten_committed(replicas, 10)
        fresh = Replica(replicas.loop, 2, CONFIG)
        replicas.all[1] = fresh
        fresh.partition.apply_archive(ArchivedRange(0, 10), 10)
        replicas.change(leader=2)
        with pytest.raises(KafkaError) as refused:
            fresh.append()
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(2)
        partition = fresh.partition
        assert (partition.log_start_offset, partition.log.start_offset, partition.high_watermark) == (0, 10, 10)
        assert fresh.append(acks=1) == 10
        assert partition.log.leader_epochs.entries == ((1, 10),)

    with_replicas(test, CONFIG)


def test_producers_are_refused_while_the_disk_is_full_of_what_is_not_archived() -> None:
    async def test(replicas: Replicas) -> None:
        partition = replicas.leader.partition
        partition.hold_for_archive(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not archived"))
        assert refusal(lambda: replicas.leader.append()) is ErrorCode.KAFKA_STORAGE_ERROR
        partition.hold_for_archive(None)
        assert replicas.leader.append() == 0

    with_replicas(test)


def test_what_was_open_in_a_log_that_ends_before_the_archive_has_ended() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        write(leader, 7, 0)
        replicas.change(isr=(1,))
        second = replicas.second
        await second.fetch_from(leader)
        assert second.partition.log.producers.transactions.first_open == 0
        end(leader, 7, commit=True)
        leader.append()
        second.partition.apply_archive(ArchivedRange(0, 3), 3)
        replicas.change(leader=2)
        await asyncio.sleep(2)
        partition = second.partition
        assert (partition.log.start_offset, partition.last_stable_offset) == (3, 3)
        assert write(second, 7, 1) == 3
        assert dict(partition.log.producers.entries())[7].transaction_start == 3

    with_replicas(test, CONFIG)
