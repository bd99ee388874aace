"""The log of a partition: offsets, rolling, reading, retention, and what is promised when."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.partition_log import PartitionLog
from tailrace.testing.disk import SimDisk
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, fill, read_all

HOUR_MS = 3_600_000


def refusal(log: PartitionLog, data: bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        append(log, data)
    return caught.value.code


def offsets_in(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[int] | None:
    part = log.read(offset, max_bytes, limit)
    if part is None:
        return None
    return list(range(part.position // BATCH_BYTES, (part.position + part.size) // BATCH_BYTES))


# --- appending


def test_offsets_follow_each_other(logs: Logs) -> None:
    log = logs.open()
    assert append(log, batch(3))[:2] == (0, 2)
    assert append(log, batch(1))[:2] == (3, 3)
    assert log.end_offset == 4
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]


def test_a_batch_carries_the_epoch_it_was_written_in(logs: Logs) -> None:
    log = logs.open()
    append(log, leader_epoch=2)
    append(log, leader_epoch=2)
    append(log, leader_epoch=5)
    assert log.leader_epochs.entries == ((2, 0), (5, 2))


def test_a_batch_that_is_too_large_is_refused(logs: Logs) -> None:
    log = logs.configure(max_message_bytes=BATCH_BYTES).open()
    append(log)
    assert refusal(log, batch(2)) is ErrorCode.MESSAGE_TOO_LARGE
    assert log.end_offset == 1


def test_a_duplicate_is_answered_with_its_first_offsets_and_not_written(logs: Logs) -> None:
    log = logs.open()
    append(log)
    first = append(log, batch(2, producer=(7, 0, 0)))
    again = append(log, batch(2, producer=(7, 0, 0)))
    assert again.is_duplicate
    assert again[:2] == first[:2] == (1, 2)
    assert log.end_offset == 3


def test_a_refused_batch_leaves_no_trace_of_its_producer(logs: Logs) -> None:
    log = logs.open()
    assert refusal(log, batch(timestamp=NOW_MS + 2 * HOUR_MS, producer=(7, 0, 0))) is ErrorCode.INVALID_TIMESTAMP
    assert append(log, batch(producer=(7, 0, 0)))[:2] == (0, 0)


def test_producers_expire_by_the_brokers_clock_and_not_by_the_age_of_their_records(logs: Logs) -> None:
    log = logs.open()
    append(log, batch(timestamp=1, producer=(7, 0, 0)))
    log.producers.expire(before_ms=NOW_MS - HOUR_MS)
    assert append(log, batch(timestamp=1, producer=(7, 0, 0))).is_duplicate


@pytest.mark.parametrize(
    ("age_ms", "accepted"), [(0, True), (HOUR_MS, True), (HOUR_MS + 1, False), (-HOUR_MS, True), (-HOUR_MS - 1, False)]
)
def test_timestamps_must_be_near_the_brokers_time(logs: Logs, age_ms: int, accepted: bool) -> None:
    log = logs.configure(timestamp_before_max_ms=HOUR_MS, timestamp_after_max_ms=HOUR_MS).open()
    data = batch(timestamp=NOW_MS - age_ms)
    if accepted:
        append(log, data)
    else:
        assert refusal(log, data) is ErrorCode.INVALID_TIMESTAMP
    assert log.end_offset == int(accepted)


def test_records_without_a_timestamp_are_never_too_old(logs: Logs) -> None:
    log = logs.configure(timestamp_before_max_ms=HOUR_MS).open()
    append(log, batch(timestamp=-1))


def test_with_log_append_time_the_broker_stamps_the_records_and_says_so(logs: Logs) -> None:
    log = logs.configure(log_append_time=True).open()
    assert append(log, batch(2, timestamp=5, producer=(7, 0, 0))).append_time_ms == NOW_MS
    assert {record.timestamp for record in read_all(log)} == {NOW_MS}
    logs.clock.now_ms += 1000
    assert append(log, batch(2, timestamp=5, producer=(7, 0, 0))).append_time_ms == NOW_MS


def test_with_create_time_there_is_no_append_time(logs: Logs) -> None:
    assert append(logs.open()).append_time_ms == -1


# --- rolling


def test_a_segment_rolls_before_it_becomes_larger_than_allowed(logs: Logs) -> None:
    log = logs.configure(segment_bytes=3 * BATCH_BYTES).open()
    fill(log, 7)
    assert logs.bases() == [0, 3, 6]
    assert all(logs.path(base).stat().st_size <= 3 * BATCH_BYTES for base in logs.bases())


def test_a_batch_larger_than_a_segment_has_one_of_its_own(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * BATCH_BYTES).open()
    fill(log, 1)
    append(log, batch(50))
    fill(log, 1)
    assert logs.bases() == [0, 1, 51]


def test_a_segment_rolls_when_its_first_record_is_old_enough(logs: Logs) -> None:
    log = logs.configure(segment_ms=1000, timestamp_after_max_ms=HOUR_MS).open()
    for age in (0, 1000, 1001, 2001, 2002):
        append(log, batch(timestamp=NOW_MS + age))
    assert logs.bases() == [0, 2, 4]


@pytest.mark.parametrize("stopped_cleanly", [True, False])
def test_the_age_of_a_segment_survives_a_restart(logs: Logs, stopped_cleanly: bool) -> None:
    logs = logs.configure(segment_ms=1000, timestamp_after_max_ms=HOUR_MS)
    log = logs.open()
    fill(log, 2)
    log.close()
    append(logs.open(stopped_cleanly=stopped_cleanly), batch(timestamp=NOW_MS + 1001))
    assert logs.bases() == [0, 2]


def test_a_segment_rolls_when_its_index_is_full(logs: Logs) -> None:
    log = logs.configure(segment_index_bytes=16).open()
    fill(log, 7)
    assert logs.bases() == [0, 3, 6]


def test_rolling_leaves_a_snapshot_of_the_producers_and_keeps_two(logs: Logs) -> None:
    log = logs.configure(segment_bytes=BATCH_BYTES).open()
    fill(log, 5)
    assert [name for name in logs.names() if name.endswith(".snapshot")] == [
        f"{offset:020d}.snapshot" for offset in (3, 4)
    ]


# --- reading


def test_a_read_begins_with_the_batch_that_holds_the_offset(logs: Logs) -> None:
    log = logs.open()
    fill(log, 3, records_each=4)
    size = len(batch(4))
    for offset in range(12):
        part = log.read(offset, 1, 12)
        assert part is not None
        assert (part.position, part.size) == (offset // 4 * size, size)


def test_a_read_stops_at_the_limit_even_in_the_first_batch_of_a_segment(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * len(batch(4))).open()
    fill(log, 4, records_each=4)
    for offset in range(log.end_offset):
        for limit in range(log.end_offset + 1):
            part = log.read(offset, 1 << 20, limit)
            whole_batches = limit // 4 * 4
            if offset >= whole_batches:
                assert part is None, (offset, limit)
            else:
                assert part is not None
                segment = offset // 8 * 8
                assert part.position + part.size <= (min(whole_batches, segment + 8) - segment) // 4 * len(batch(4))


def test_a_read_honours_its_size_and_ends_with_its_segment(logs: Logs) -> None:
    log = logs.configure(segment_bytes=5 * BATCH_BYTES).open()
    fill(log, 8)
    assert offsets_in(log, 0, 3 * BATCH_BYTES, 8) == [0, 1, 2]
    assert offsets_in(log, 0, 3 * BATCH_BYTES - 1, 8) == [0, 1]
    assert offsets_in(log, 3, 1 << 20, 8) == [3, 4]
    assert offsets_in(log, 5, 1 << 20, 8) == [0, 1, 2]
    assert offsets_in(log, 1, 0, 8) == [1]
    assert offsets_in(log, 1, 1 << 20, 3) == [1, 2]


def test_reading_where_nothing_is_yet_gives_nothing(logs: Logs) -> None:
    log = logs.open()
    assert log.read(0, 100, 0) is None
    fill(log, 2)
    assert log.read(2, 100, 2) is None
    assert log.read(1, 100, 1) is None


@pytest.mark.parametrize("offset", [-1, 1, 6])
def test_reading_outside_of_the_log_is_refused(logs: Logs, offset: int) -> None:
    log = logs.open()
    fill(log, 5)
    log.advance_start(2)
    with pytest.raises(KafkaError) as caught:
        log.read(offset, 100, 5)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("max_bytes", [1, BATCH_BYTES, 2 * BATCH_BYTES + 1, 1 << 20])
def test_reading_on_and_on_gives_every_record_once(logs: Logs, max_bytes: int) -> None:
    random = Random(max_bytes)
    log = logs.configure(segment_bytes=400, index_interval_bytes=100).open()
    for _ in range(60):
        append(log, batch(random.randint(1, 5)))
    assert [record.offset for record in read_all(log, max_bytes=max_bytes)] == list(range(log.end_offset))


# --- where the disk is full


def test_after_a_roll_that_a_full_disk_refused_the_old_segment_goes_on_and_nothing_is_lost() -> None:
    disk = SimDisk(Random(1))
    logs = Logs("/data/orders-0", disk=disk).configure(segment_bytes=3 * BATCH_BYTES, index_interval_bytes=1 << 30)
    log = logs.open()
    fill(log, 5)
    for suffix in (".timeindex", ".log"):
        disk.fail(lambda path, suffix=suffix: path.endswith(suffix), "open", DiskFullError)
        with pytest.raises(DiskFullError):
            append(log, batch(30))
    fill(log, 1)
    log.close()
    assert [record.offset for record in read_all(logs.open(stopped_cleanly=True))] == [0, 1, 2, 3, 4, 5]


def test_a_roll_does_not_need_its_producer_snapshot() -> None:
    disk = SimDisk(Random(1))
    log = Logs("/data/orders-0", disk=disk).configure(segment_bytes=BATCH_BYTES).open()
    disk.fail(lambda path: path.endswith(".snapshot"), "replace_file", DiskFullError)
    fill(log, 2)
    assert log.segments.count == 2


# --- promises


def test_without_a_flush_policy_what_is_appended_is_promised(logs: Logs) -> None:
    log = logs.open()
    fill(log, 3)
    assert (log.promised_offset, log.flushed_offset, log.needs_flush) == (3, 0, False)


def test_with_flush_messages_of_one_nothing_is_promised_before_its_sync(logs: Logs) -> None:
    log = logs.configure(flush_messages=1).open()
    fill(log, 3)
    assert (log.promised_offset, log.needs_flush) == (0, True)
    target, work = log.sync_work()
    fill(log, 1)
    work()
    log.synced(target)
    assert (log.promised_offset, log.flushed_offset, log.needs_flush) == (3, 3, True)


def test_flush_messages_is_how_many_records_may_be_unsynced(logs: Logs) -> None:
    log = logs.configure(flush_messages=3).open()
    promised = []
    for _ in range(4):
        append(log)
        promised.append(log.promised_offset)
    assert promised == [1, 2, 2, 2]
    target, work = log.sync_work()
    work()
    log.synced(target)
    assert log.promised_offset == 4
    append(log)
    assert log.promised_offset == 5


def test_the_promise_never_goes_back(logs: Logs) -> None:
    log = logs.configure(flush_messages=2).open()
    random = Random(3)
    promised = 0
    for _ in range(200):
        append(log, batch(random.randint(1, 3)))
        if random.random() < 0.3:
            target, work = log.sync_work()
            work()
            log.synced(target)
        assert promised <= log.promised_offset <= log.end_offset
        assert log.promised_offset - log.flushed_offset < 2 or log.promised_offset == promised
        promised = log.promised_offset


def test_a_sync_covers_every_segment_since_the_last_one(logs: Logs) -> None:
    disk = SimDisk(Random(1))
    logs = Logs("/data/orders-0", disk=disk).configure(segment_bytes=BATCH_BYTES)
    log = logs.open()
    fill(log, 4)
    target, work = log.sync_work()
    work()
    log.synced(target)
    disk.sync_directory("/data")
    disk.crash()
    recovered = logs.open(recovery_point=target)
    assert [record.offset for record in read_all(recovered)] == [0, 1, 2, 3]
