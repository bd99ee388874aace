"""A log with an archived part: what may be removed, what is still known of it, and where another log starts."""

from __future__ import annotations

from tailrace.storage.partition_log import LogPast, PartitionLog
from tailrace.storage.producer_state import ProducerState
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, fill


def archived_log(logs: Logs) -> PartitionLog:
    """Ten records in five segments, all of them expired."""
    log = logs.configure(segment_bytes=2 * BATCH_BYTES, retention_ms=0, is_archived=True).open()
    fill(log, 10)
    logs.clock.now_ms = NOW_MS + 10
    return log


def test_only_what_is_archived_is_removed(logs: Logs) -> None:
    log = archived_log(logs)
    assert log.remove_expired(10, archived_offset=0) == []
    assert (log.start_offset, log.retention.waits_for_archive) == (0, True)
    assert [segment.base_offset for segment in log.remove_expired(10, archived_offset=5)] == [0, 2]
    assert (log.start_offset, log.retention.waits_for_archive) == (4, True)
    assert len(log.remove_expired(10, archived_offset=10)) == 3
    assert (log.start_offset, log.end_offset, log.retention.waits_for_archive) == (10, 10, False)


def test_what_was_given_up_is_not_waited_for(logs: Logs) -> None:
    log = archived_log(logs)
    log.advance_start(5)
    assert [segment.base_offset for segment in log.remove_expired(10, archived_offset=0)] == [0, 2]
    assert (log.start_offset, log.retention.waits_for_archive) == (5, True)


def test_epochs_of_archived_records_stay_known_until_those_go(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES, retention_ms=0, is_archived=True)
    log = logs.open()
    for epoch in range(5):
        append(log, leader_epoch=epoch)
        append(log, leader_epoch=epoch)
    logs.clock.now_ms = NOW_MS + 10
    log.remove_expired(10, 6, epochs_from=0)
    assert log.start_offset == 6
    assert [epoch for epoch, _ in log.leader_epochs.entries] == [0, 1, 2, 3, 4]
    log.close()
    again = logs.open()
    assert [epoch for epoch, _ in again.leader_epochs.entries] == [0, 1, 2, 3, 4]
    assert again.leader_epochs.epoch_at(1) == 0
    again.remove_expired(10, 8, epochs_from=3)
    assert again.leader_epochs.entries[0] == (1, 3)


def test_a_log_that_begins_behind_archived_records_knows_their_epochs_and_producers(logs: Logs) -> None:
    leader = logs.configure(is_archived=True).open()
    append(leader, batch(2, producer=(7, 0, 0)), leader_epoch=3)
    append(leader, batch(1, producer=(8, 1, 0)), leader_epoch=4)
    append(leader, batch(3, producer=(7, 0, 2)), leader_epoch=4)
    past = LogPast(
        [entry for entry in leader.leader_epochs.entries if entry[1] < 3],
        ProducerState.from_snapshot(leader.producers.before(3).snapshot()),
    )
    follower_logs = Logs(f"{logs.directory}-follower").configure(is_archived=True)
    follower = follower_logs.open()
    follower.restart_at(3, past)
    for log in (follower, _reopened(follower_logs, follower)):
        assert (log.start_offset, log.end_offset) == (3, 3)
        assert log.leader_epochs.entries == ((3, 0), (4, 2))
        remembered = {number: [each[:4] for each in entry.batches] for number, entry in log.producers.entries()}
        assert remembered == {7: [(0, 1, 0, 1)], 8: [(0, 0, 2, 2)]}


def _reopened(logs: Logs, log: PartitionLog) -> PartitionLog:
    log.close()
    return logs.open()


def test_the_time_at_an_offset_is_that_of_its_batch(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * BATCH_BYTES).open()
    for number in range(4):
        append(log, batch(timestamp=NOW_MS - number))
    assert [log.timestamp_at(offset) for offset in range(5)] == [NOW_MS, NOW_MS - 1, NOW_MS - 2, NOW_MS - 3, -1]
