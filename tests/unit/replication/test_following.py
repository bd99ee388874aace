"""A follower: it keeps the leader's batches unchanged, and truncates its own records where the leader has others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.log_config import LogConfig
from tests.unit.replication.replicas import Replicas, with_replicas
from tests.unit.replication.test_partition import refusal


async def refused(call: object) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def test_a_follower_has_the_leaders_bytes() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        for number in range(20):
            leader.append(b"%d" % number, records=1 + number % 3, producer=(number % 2, 0, 0) if number < 2 else None)
        await replicas.fetch()
        for file in ("00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"):
            for replica in (leader, second):
                replica.partition.log.close()
            path = f"/data/orders-0/{file}"
            assert second.disk.read_file(path) == leader.disk.read_file(path) != b"", file
        assert second.partition.log.leader_epochs.entries == leader.partition.log.leader_epochs.entries
        remembered = [
            [(number, entry.epoch, [batch[:4] for batch in entry.batches]) for number, entry in log.producers.entries()]
            for log in (leader.partition.log, second.partition.log)
        ]
        assert remembered[0] == remembered[1] != []

    with_replicas(test)


def test_a_follower_learns_what_is_committed_but_never_beyond_its_own_log() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        for _ in range(5):
            leader.append()
        await third.fetch_from(leader, rounds=2)
        await second.take(leader.answer(second, max_bytes=1))
        second.partition.following.append_fetched(memoryview(b""), 5, 0)
        assert (second.partition.high_watermark, second.partition.log.end_offset) == (1, 1)
        second.partition.following.append_fetched(memoryview(b""), 0, 0)
        assert second.partition.high_watermark == 1

    with_replicas(test)


def test_a_follower_gives_up_what_the_leader_gave_up_once_that_is_committed() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        for _ in range(5):
            leader.append()
        await replicas.fetch()
        leader.partition.log.advance_start(3)
        await second.fetch_from(leader)
        assert second.partition.log.start_offset == 3

    with_replicas(test)


def test_an_empty_replica_begins_where_the_leaders_log_starts_even_within_a_batch() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        replicas.change(isr=(1,))
        for _ in range(4):
            leader.append(records=5)
        leader.partition.log.advance_start(12)
        error = refusal(lambda: leader.answer(second))
        assert error is ErrorCode.OFFSET_OUT_OF_RANGE
        await second.partition.following.start_anew_at(12)
        assert second.partition.following.fetch_position() == (12, -1)
        await second.fetch_from(leader, rounds=2)
        log = second.partition.log
        assert (log.start_offset, log.end_offset, second.partition.high_watermark) == (12, 20, 20)
        assert second.values() == leader.values()
        await second.crash(power_cut=False)
        second.start()
        assert second.partition.log.end_offset == 20
        assert dict(list(second.values().items())[-8:]) == leader.values()

    with_replicas(test)


@pytest.mark.parametrize(
    ("own", "leader_says", "end"),
    [
        # Epochs with where they start, then where the log ends; what the leader says of an epoch; where it is cut.
        ([(0, 0), (1, 5)], (1, 8), 8),
        ([(0, 0), (1, 5)], (0, 3), 3),
        ([(0, 0), (1, 5)], (0, 7), 5),
        ([(0, 0), (2, 5)], (1, 9), 5),
        ([(0, 0), (2, 5)], (1, 4), 4),
        ([(3, 0)], (2, 4), 0),
        ([(0, 0), (1, 5)], (1, 50), 10),
    ],
)
def test_a_log_is_cut_where_leader_and_follower_last_agree(
    own: list[tuple[int, int]], leader_says: tuple[int, int], end: int
) -> None:
    async def test(replicas: Replicas) -> None:
        replica = replicas.third
        ends = [start for _, start in own[1:]] + [10]
        for (epoch, start), until in zip(own, ends, strict=True):
            replica.apply(PartitionState((1, 3), (1, 3), 3, epoch))
            for _ in range(until - start):
                replica.append()
        replica.apply(PartitionState((1, 3), (1, 3), 1, 7))
        await replica.partition.following.truncate_to(*leader_says)
        log = replica.partition.log
        assert (log.end_offset, list(replica.values())) == (end, list(range(end)))
        assert all(start < end for _, start in log.leader_epochs.entries)
        position = replica.partition.following.fetch_position()
        assert position == (end, log.leader_epochs.epoch_at(end - 1) if end else -1)

    with_replicas(test)


def test_cutting_below_what_was_committed_is_said_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def test(replicas: Replicas) -> None:
        leader, second, third = replicas.all
        for _ in range(5):
            leader.append(b"old")
        await replicas.fetch(rounds=3)
        assert third.partition.high_watermark == 5
        await second.crash(power_cut=False)
        second.disk.remove("/data/orders-0")
        second.start()
        replicas.change(leader=2, isr=(2,))
        second.append(b"new")
        with caplog.at_level(logging.INFO):
            await third.fetch_from(second)
        assert third.partition.log.end_offset == 0
        (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "records 0 to 4 were committed and are lost" in line.getMessage()
        assert third.partition.high_watermark == 0
        await third.fetch_from(second, rounds=2)
        assert third.values() == {0: b"new"}

    with_replicas(test)


def test_cutting_what_was_never_committed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.append()
        await replicas.fetch(rounds=3)
        leader.append(b"nobody else has it")
        replicas.change(leader=2)
        with caplog.at_level(logging.INFO):
            await leader.fetch_from(replicas.second)
        assert "truncating records 1 to 1, which broker" in caplog.text
        assert [record for record in caplog.records if record.levelno > logging.INFO] == []
        assert leader.partition.high_watermark == 1

    with_replicas(test)


def test_while_a_log_is_cut_nothing_is_appended_to_it_in_any_role() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append()
        await replicas.fetch()
        leader.append(b"other")
        replicas.change(leader=2)
        second.append(b"new")
        cut = asyncio.get_running_loop().create_task(leader.fetch_from(second))
        await asyncio.sleep(0)
        assert leader.partition.log.is_being_cut
        assert not leader.partition.following.may_fetch
        data = memoryview(b"")
        assert refusal(lambda: leader.partition.following.append_fetched(data, 0, 0)) is ErrorCode.REPLICA_NOT_AVAILABLE
        replicas.change(leader=1)
        assert refusal(leader.append) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cut
        # It led before its log was cut: then its log is the truth as it was.
        assert leader.append(b"last") == 2
        await second.fetch_from(leader, rounds=2)
        assert second.values() == leader.values() == {0: b"a value", 1: b"other", 2: b"last"}

    with_replicas(test)


def test_a_cut_whose_fetcher_is_gone_is_done_to_its_end() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append()
        replicas.change(leader=2)
        cut = asyncio.get_running_loop().create_task(leader.fetch_from(second))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.sleep(1)
        assert (leader.partition.log.is_being_cut, leader.partition.log.end_offset) == (False, 0)
        await leader.fetch_from(second)

    with_replicas(test)


def test_two_cuts_at_once_are_refused() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append()
        replicas.change(leader=2)
        first = asyncio.get_running_loop().create_task(leader.fetch_from(second))
        await asyncio.sleep(0)
        error = await refused(leader.partition.following.truncate_at(0))
        assert error.code is ErrorCode.REPLICA_NOT_AVAILABLE
        await first

    with_replicas(test)


def test_a_full_disk_refuses_what_was_fetched_and_a_failing_one_goes_offline() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append()
        second.disk.fail(lambda path: path.endswith(".log"), "append", DiskFullError)
        error = await refused(second.fetch_from(leader))
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert second.directory.failure is None
        await second.fetch_from(leader)
        leader.append()
        second.disk.fail(lambda path: path.endswith(".log"), "append", StorageError)
        error = await refused(second.fetch_from(leader))
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert second.directory.failure is not None
        error = await refused(second.fetch_from(leader))
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR

    with_replicas(test)


def test_a_disk_that_fails_during_a_cut_takes_its_directory_offline() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        leader.append()
        replicas.change(leader=2)
        leader.disk.fail(lambda path: path.endswith(".log"), "truncate", StorageError)
        error = await refused(leader.fetch_from(second))
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert leader.directory.failure is not None

    with_replicas(test)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_replica_starts_with_the_high_watermark_that_was_written_down(is_clean: bool) -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        for _ in range(5):
            leader.append()
        await replicas.fetch(rounds=3)
        await second.save_high_watermark()
        for _ in range(5):
            leader.append()
        await second.fetch_from(leader)
        if is_clean:
            await second.stop()
        else:
            await second.crash(power_cut=False)
        second.start()
        second.apply(replicas.state)
        assert (second.partition.high_watermark, second.partition.log.end_offset) == (5, 10)

    with_replicas(test)


def test_a_high_watermark_beyond_what_a_crash_left_is_cut_to_the_log_end() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        for _ in range(5):
            leader.append()
        await replicas.fetch(rounds=3)
        await second.save_high_watermark()
        await second.crash(power_cut=False)
        second.disk.remove("/data/orders-0")
        second.start()
        assert (second.partition.high_watermark, second.partition.log.end_offset) == (0, 0)

    with_replicas(test)


def test_a_compacted_leaders_gaps_are_taken_over_and_survive_a_crash() -> None:
    config = LogConfig(index_interval_bytes=0)

    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        replicas.change(isr=(1,))
        for number in range(10):
            leader.append(b"%d" % number)
        answer = leader.answer(second)
        size = len(answer.data) // 10
        kept = [number for number in range(10) if number not in (0, 3, 4, 8)]
        data = b"".join(answer.data[number * size : (number + 1) * size] for number in kept)
        await second.take(answer._replace(data=data))
        assert list(second.values()) == kept
        for power_cut in (False, True):
            await asyncio.sleep(3)
            await second.crash(power_cut=power_cut)
            second.start()
            assert list(second.values()) == kept
            assert second.partition.log.end_offset == 10

    with_replicas(test, config)


def test_what_a_leader_does_not_have_is_refused() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        for number in range(4):
            leader.append(b"%d" % number)
        answer = leader.answer(second)
        size = len(answer.data) // 4
        first, _, third, fourth = (answer.data[at * size : (at + 1) * size] for at in range(4))
        damaged = bytearray(fourth)
        damaged[-1] ^= 1
        for wrong in (first + third, third + first, first + first, bytes(damaged), third):
            error = await refused(second.take(answer._replace(data=wrong)))
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            assert second.partition.log.end_offset == 0
        await second.take(answer._replace(data=answer.data[:-5]))
        assert second.partition.log.end_offset == 3
        error = await refused(second.take(answer))
        assert "Batch 0 to 0 does not follow the end of orders-0 at 3" in str(error)

    with_replicas(test)
