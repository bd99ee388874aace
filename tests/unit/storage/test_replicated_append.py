"""Batches that a leader sent: written as they are, indexed and rolled like others, and checked before that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import LOG_APPEND_TIME_BIT, assign_offset, read_header
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.partition_log import PartitionLog
from tailrace.testing.disk import SimDisk
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, read_all


def sent(offset: int, count: int = 1, leader_epoch: int = 0, **fields: object) -> bytes:
    """A batch as a leader has it in its log."""
    data = batch(count, **fields)  # type: ignore[arg-type]
    assign_offset(data, offset, leader_epoch)
    return bytes(data)


def take(log: PartitionLog, *batches: bytes, committed: int = 0) -> int:
    return log.append_replicated(memoryview(b"".join(batches)), committed)


def refusal(log: PartitionLog, *batches: bytes, committed: int = 0) -> str:
    end = log.end_offset
    with pytest.raises(KafkaError) as caught:
        take(log, *batches, committed=committed)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.end_offset == end
    return str(caught.value)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=40),
    st.integers(1, 2000),
    st.integers(100, 3000),
    st.sampled_from((0, 300)),
)
def test_a_follower_that_is_sent_pieces_of_any_size_has_the_leaders_log(
    batches: list[tuple[int, int, int]], piece: int, segment_bytes: int, index_interval: int
) -> None:
    leader, follower = (
        Logs("/log", disk=SimDisk(Random(number), cached_probability=1.0)).configure(
            segment_bytes=segment_bytes, index_interval_bytes=index_interval
        )
        for number in (1, 2)
    )
    log, copy = leader.open(), follower.open()
    epoch = 0
    for count, epochs, size in batches:
        epoch += epochs
        append(log, batch(count, value=b"v" * size, timestamp=NOW_MS + size), epoch)
    while copy.end_offset < log.end_offset:
        part = log.read(copy.end_offset, piece, log.end_offset)
        assert part is not None
        assert copy.append_replicated(memoryview(part.file.read(part.position, part.size)), 0) == part.size
    assert read_all(copy) == read_all(log)
    assert copy.leader_epochs.entries == log.leader_epochs.entries
    for each in (log, copy):
        each.close()
    assert leader.bases() == follower.bases()
    for base in leader.bases():
        for suffix in (".log", ".index", ".timeindex"):
            # Index files are made when there is something to put in them, or when they are looked into.
            path = f"/log/{base:020d}{suffix}"
            assert (leader.disk.read_file(path) or b"") == (follower.disk.read_file(path) or b""), path
    assert read_all(follower.open(stopped_cleanly=True)) == read_all(log)


def test_each_write_takes_as_many_batches_as_the_segment_does(logs: Logs) -> None:
    log = logs.configure(segment_bytes=3 * BATCH_BYTES).open()
    take(log, *(sent(offset) for offset in range(7)))
    assert (logs.bases(), log.end_offset) == ([0, 3, 6], 7)
    take(log, *(sent(offset) for offset in range(7, 9)))
    assert (logs.bases(), log.end_offset) == ([0, 3, 6], 9)


def test_a_batch_that_is_cut_short_is_left_for_the_next_time(logs: Logs) -> None:
    log = logs.open()
    assert take(log, sent(0), sent(1)[:-1]) == BATCH_BYTES
    assert take(log, sent(1)[:30]) == 0
    assert log.end_offset == 1


def test_what_is_not_sound_is_refused_and_says_what_is_wrong(logs: Logs) -> None:
    log = logs.open()
    take(log, *(sent(offset, leader_epoch=3) for offset in range(5)))
    damaged = bytearray(sent(5, leader_epoch=3))
    damaged[-1] ^= 1
    assert "CRC" in refusal(log, bytes(damaged))
    assert "leader epoch is 2, after 3" in refusal(log, sent(5, leader_epoch=2))
    assert "leader epoch is 4, after 5" in refusal(log, sent(5, leader_epoch=5), sent(6, leader_epoch=4))
    assert "a gap from 5 on" in refusal(log, sent(6, leader_epoch=3))
    assert "a gap from 6 on" in refusal(log, sent(5, leader_epoch=3), sent(7, leader_epoch=3))
    assert "ends at 6" in refusal(log, sent(5, leader_epoch=3), sent(5, leader_epoch=3))
    assert "Batch 3 to 7 does not follow the end of orders-0 at 5" in refusal(log, sent(3, 5, leader_epoch=3))
    assert "Batch 1 to 2 does not follow the end of orders-0 at 5" in refusal(log, sent(1, 2, leader_epoch=3))
    magic = bytearray(sent(5, leader_epoch=3))
    magic[16] = 1
    assert "magic is 1" in refusal(log, bytes(magic))


def test_gaps_are_sound_below_what_is_committed_and_recovery_knows(logs: Logs) -> None:
    log = logs.open()
    take(log, sent(3), sent(7), committed=20)
    assert (log.end_offset, log.gaps.within_below) == (8, 20)
    take(log, sent(19), committed=20)
    assert "a gap from 20 on" in refusal(log, sent(21), committed=20)
    reopened = logs.open()
    assert [record.offset for record in read_all(reopened)] == [3, 7, 19]


def test_a_gap_that_no_index_can_express_begins_another_segment(logs: Logs) -> None:
    log = logs.open()
    far = 5_000_000_000
    take(log, sent(far), sent(far + 1), committed=far + 10)
    assert logs.bases() == [0, far]
    take(log, sent(2 * far), committed=3 * far)
    assert [record.offset for record in read_all(log)] == [far, far + 1, 2 * far]
    assert [record.offset for record in read_all(logs.open())] == [far, far + 1, 2 * far]


def test_a_log_without_records_may_begin_within_a_batch(logs: Logs) -> None:
    log = logs.open()
    log.restart_at(7)
    take(log, sent(5, 5), sent(10))
    assert (log.start_offset, log.end_offset, logs.bases()) == (7, 11, [5])
    assert [record.offset for record in read_all(log)] == [7, 8, 9, 10]


def test_a_log_that_cannot_begin_within_a_batch_on_a_full_disk_stays_as_it_is_and_can_later() -> None:
    disk = SimDisk(Random(1))
    log = Logs("/data/orders-0", disk=disk).open()
    log.restart_at(7)
    full = disk.fail(lambda path: path.endswith(".log"), "append", DiskFullError, times=None)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            take(log, sent(5, 5))
        assert (log.start_offset, log.end_offset, log.promised_offset) == (7, 7, 7)
        assert read_all(log) == []
    full.lift()
    take(log, sent(5, 5), sent(10))
    assert (log.start_offset, log.end_offset) == (7, 11)
    assert [record.offset for record in read_all(log)] == [7, 8, 9, 10]


def test_producers_are_remembered_without_being_checked(logs: Logs) -> None:
    log = logs.open()
    take(log, sent(0, 2, producer=(7, 0, 0)), sent(2, producer=(7, 0, 40)), sent(3, producer=(7, 3, 5)))
    ((number, entry),) = log.producers.entries()
    assert (number, entry.epoch, [kept[:4] for kept in entry.batches]) == (7, 3, [(5, 5, 3, 3)])


def test_the_time_a_leader_stamped_is_what_a_retry_is_told(logs: Logs) -> None:
    logs = logs.configure(log_append_time=True)
    log = logs.open()
    records = [NewRecord(b"v", timestamp=NOW_MS - 5000)]
    data = build_batch(
        records, attributes=LOG_APPEND_TIME_BIT, producer_id=7, producer_epoch=0, base_sequence=0, base_offset=0
    )
    assign_offset(data, 0, 0)
    log.append_replicated(memoryview(data), 0)
    again = batch(producer=(7, 0, 0))
    appended = log.append(memoryview(again), read_header(again), 0)
    assert (appended.is_duplicate, appended.append_time_ms) == (True, NOW_MS - 5000)


def test_the_flush_policy_holds_for_followers_too(logs: Logs) -> None:
    log = logs.configure(flush_messages=1).open()
    take(log, sent(0), sent(1))
    assert (log.end_offset, log.promised_offset, log.needs_flush) == (2, 0, True)
    target, work = log.sync_work()
    work()
    log.synced(target)
    assert log.promised_offset == 2


def test_a_full_disk_leaves_what_fitted_and_nothing_of_the_rest(logs: Logs) -> None:
    disk = SimDisk(Random(1), cached_probability=1.0)
    log = replace(logs, directory="/log", disk=disk).configure(segment_bytes=2 * BATCH_BYTES).open()
    disk.fail(lambda path: path.endswith("00000000000000000002.log"), "append", DiskFullError)
    batches = [sent(offset) for offset in range(4)]
    with pytest.raises(DiskFullError):
        take(log, *batches)
    assert log.end_offset == 2
    take(log, *batches[2:])
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]
