"""Retention: which segments are removed, when, and what the log is without them."""

from __future__ import annotations

from random import Random

from tailrace.runtime.disk import DiskFullError
from tailrace.testing.disk import SimDisk
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, fill, read_all, timed


def test_segments_whose_newest_record_is_too_old_are_removed(logs: Logs) -> None:
    log = timed(logs.configure(segment_bytes=2 * BATCH_BYTES, retention_ms=1000), 0, 10, 0, 20, 500)
    logs.clock.now_ms = NOW_MS + 1010
    assert log.remove_expired(log.end_offset) == []
    logs.clock.now_ms += 1
    assert len(log.remove_expired(log.end_offset)) == 1
    assert (log.start_offset, [record.offset for record in read_all(log)]) == (2, [2, 3, 4])


def test_the_newest_segment_expires_too_and_the_log_goes_on_behind_it(logs: Logs) -> None:
    log = timed(logs.configure(retention_ms=1000), 0, 0)
    logs.clock.now_ms += 1001
    assert len(log.remove_expired(log.end_offset)) == 1
    assert (log.start_offset, log.end_offset, read_all(log)) == (2, 2, [])
    assert append(log)[:2] == (2, 2)
    log.close()
    assert logs.open(stopped_cleanly=True).start_offset == 2


def test_segments_beyond_the_size_are_removed_oldest_first(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * BATCH_BYTES, retention_bytes=4 * BATCH_BYTES, retention_ms=-1).open()
    fill(log, 9)
    log.remove_expired(log.end_offset)
    assert (log.start_offset, log.segments.size_bytes) == (4, 5 * BATCH_BYTES)


def test_nothing_is_removed_beyond_the_high_watermark_or_where_deletion_is_off(logs: Logs) -> None:
    log = timed(logs.configure(segment_bytes=BATCH_BYTES, retention_ms=0), 0, 0, 0)
    logs.clock.now_ms += 1
    assert len(log.remove_expired(limit_offset=1)) == 1
    log.config = logs.configure(retention_ms=0, delete_expired=False).config
    assert log.remove_expired(log.end_offset) == []


def test_giving_up_records_frees_whole_segments_only_but_hides_the_rest(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * BATCH_BYTES, delete_expired=False).open()
    fill(log, 6)
    log.advance_start(3)
    assert len(log.remove_expired(log.end_offset)) == 1
    assert [record.offset for record in read_all(log)] == [3, 4, 5]
    log.advance_start(2)
    assert log.start_offset == 3
    log.advance_start(6)
    log.remove_expired(log.end_offset)
    assert (log.start_offset, log.end_offset, log.segments.count) == (6, 6, 1)


def test_readers_keep_what_they_have_when_its_segment_is_removed(logs: Logs) -> None:
    log = timed(logs.configure(retention_ms=0), 0)
    part = log.read(0, 100, 1)
    assert part is not None
    logs.clock.now_ms += 1
    (segment,) = log.remove_expired(1)
    segment.remove_files()
    assert len(part.file.read(part.position, part.size)) == BATCH_BYTES


def test_retention_goes_past_a_damaged_segment_when_the_next_one_has_expired(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES, retention_ms=1000)
    timed(logs, 0, 0, 10, 10, 5000).close()
    with logs.path(0).open("r+b") as file:
        file.write(b"\xff" * 20)
    logs.path(0, ".timeindex").write_bytes(b"")
    log = logs.open(stopped_cleanly=True)
    logs.clock.now_ms += 1011
    assert len(log.remove_expired(log.end_offset)) == 2
    assert log.start_offset == 4


def test_on_a_full_disk_retention_still_hands_over_what_it_took_out() -> None:
    disk = SimDisk(Random(1))
    logs = Logs("/data/orders-0", disk=disk).configure(segment_bytes=2 * BATCH_BYTES, retention_ms=1000)
    log = logs.open()
    for epoch in range(5):
        append(log, leader_epoch=epoch)
    logs.clock.now_ms += 1001
    disk.capacity_bytes = disk.used_bytes
    disk.fail(lambda path: path.endswith(".log"), "open", DiskFullError, times=None)
    assert [segment.base_offset for segment in log.remove_expired(5)] == [0, 2]
    assert (log.start_offset, log.leader_epochs.entries) == (4, ((4, 4),))
