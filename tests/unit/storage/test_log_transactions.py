"""Transactions in a log: what is stable, what is aborted, and that every way to open or change a log keeps both."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, iterate_batches
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import DiskFullError
from tailrace.storage import log_transactions
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.producer_state import ProducerState
from tailrace.testing.disk import SimDisk
from tests.unit.storage.logs import BATCH_BYTES, Logs, append, batch
from tests.unit.storage.transactions import aborted, end, read_committed, stable_end, write

INDEX = ".txnindex"
MARKER_BYTES = 78


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(str(tmp_path / "orders-0"))


def two_of_three(log: PartitionLog) -> list[int]:
    """One transaction is committed, one aborted and one open; the offsets that are committed and stable."""
    write(log, 1, 0)
    write(log, 2, 0)
    append(log, batch())
    write(log, 1, 1)
    end(log, 1, commit=True)
    end(log, 2, commit=False, coordinator_epoch=3)
    append(log, batch())
    write(log, 3, 0)
    append(log, batch())
    return [0, 2, 3, 6]


def truncate(log: PartitionLog, offset: int) -> None:
    known = log.producers.below(offset)
    if known is None:
        steps = log.find_producers(offset)
        while True:
            try:
                next(steps)
            except StopIteration as found:
                known = found.value
                break
    assert isinstance(known, ProducerState)
    for segment in log.truncate(offset, known):
        segment.remove_files()


def test_records_are_stable_below_the_first_open_transaction(logs: Logs) -> None:
    log = logs.open()
    assert read_committed(log) == []
    committed = two_of_three(log)
    assert stable_end(log) == 7
    assert aborted(log) == [(2, 1, 5, 6)]
    assert read_committed(log) == committed
    assert read_committed(log, max_bytes=1) == committed
    end(log, 3, commit=False)
    assert stable_end(log) == log.end_offset == 10
    assert aborted(log) == [(2, 1, 5, 6), (3, 7, 9, 10)]
    assert read_committed(log) == [*committed, 8]


def test_a_marker_holds_records_back_until_it_is_committed(logs: Logs) -> None:
    log = logs.open()
    write(log, 1, 0)
    append(log, batch())
    end(log, 1, commit=True)
    assert [stable_end(log, high_watermark) for high_watermark in (1, 2, 3)] == [0, 0, 3]


@pytest.mark.parametrize("stopped_cleanly", [True, False])
@pytest.mark.parametrize("lost", [(), (INDEX,), (".snapshot",), (INDEX, ".snapshot")])
def test_a_restart_changes_nothing(logs: Logs, lost: tuple[str, ...], stopped_cleanly: bool) -> None:
    log = logs.open()
    committed = two_of_three(log)
    if stopped_cleanly:
        log.close()
    for suffix in () if stopped_cleanly else lost:
        logs.path(0, suffix).unlink(missing_ok=True)
    reopened = logs.open(stopped_cleanly=stopped_cleanly)
    assert aborted(reopened) == [(2, 1, 5, 6)]
    assert (stable_end(reopened), read_committed(reopened)) == (7, committed)
    entries = dict(reopened.producers.entries())
    assert (entries[2].coordinator_epoch, entries[3].transaction_start) == (3, 7)
    with pytest.raises(KafkaError) as caught:
        end(reopened, 2, commit=False, coordinator_epoch=2)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_every_segment_has_its_own_index_which_is_found_again(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES + 20)
    log = logs.open()
    write(log, 99)  # begins before everything, and is aborted at the end
    expected = []
    for number in range(40):
        first = write(log, number % 3, number // 3).base_offset
        if number % 2:
            append(log, batch())
            expected.append(log.end_offset - 1)
        commit = number % 4 == 0
        end(log, number % 3, commit=commit)
        if commit:
            expected.append(first)
    end(log, 99, commit=False)
    assert len(logs.bases()) > 30
    assert read_committed(log) == sorted(expected)
    found = aborted(log)
    assert len(found) == 31
    for recovery_point in (0, log.end_offset // 2, log.end_offset):
        again = logs.open(recovery_point=recovery_point)
        assert aborted(again) == found
        assert read_committed(again, max_bytes=100) == sorted(expected)


def test_recovery_begins_with_a_snapshot_from_before_its_recovery_point(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES + 20)
    log = logs.open()
    write(log, 99)
    for _ in range(20):
        write(log, 5)
        end(log, 5, commit=False)
    kept = [name for name in logs.names() if name.endswith(".snapshot")]
    assert len(kept) > 15, "the recovery point on disk is still 0"
    log.saved_flushed_offset = 30
    log.write_producer_snapshot()
    kept = [name for name in logs.names() if name.endswith(".snapshot")]
    assert int(kept[0].split(".")[0]) <= 30 < int(kept[1].split(".")[0])
    # Were it read from the log, whose first records are removed, the open transaction would be unknown.
    before = aborted(log)
    for base in logs.bases()[:8]:
        for suffix in (".log", ".index", ".timeindex", INDEX):
            logs.path(base, suffix).unlink(missing_ok=True)
    again = logs.open(recovery_point=30, log_start=logs.bases()[0])
    assert aborted(again) == [each for each in before if each.last_offset >= logs.bases()[0]]
    assert stable_end(again) == 0


def test_a_truncation_opens_again_what_ended_beyond_it(logs: Logs) -> None:
    for offset in range(10):
        directory = Logs(f"{logs.directory}-{offset}")
        log = directory.open()
        two_of_three(log)
        end(log, 3, commit=False)
        truncate(log, offset)
        model = Logs(f"{logs.directory}-model-{offset}").open()
        for data in batches_of(log):
            append_as_it_is(model, data)
        assert aborted(log) == aborted(model)
        assert stable_end(log) == stable_end(model)
        assert dict(log.producers.entries()).keys() == dict(model.producers.entries()).keys()
        assert aborted(directory.open()) == aborted(model)


def batches_of(log: PartitionLog) -> list[bytes]:
    found = []
    for segment in log.segments:
        data = segment.log.read(0, segment.size)
        found += [bytes(data[at : at + header.size]) for at, header in iterate_batches(data)]
    return found


def append_as_it_is(log: PartitionLog, data: bytes) -> None:
    log.append_replicated(memoryview(data), log.end_offset)


def test_a_follower_has_the_same_index_and_state(logs: Logs) -> None:
    leader = logs.configure(segment_bytes=3 * BATCH_BYTES).open()
    committed = two_of_three(leader)
    data = b"".join(batches_of(leader))
    follower = Logs(logs.directory + "-follower").configure(segment_bytes=3 * BATCH_BYTES).open()
    follower.append_replicated(memoryview(data), leader.end_offset)
    assert aborted(follower) == aborted(leader)
    assert read_committed(follower) == committed
    assert [
        (number, each.epoch, each.coordinator_epoch, each.transaction_start)
        for number, each in follower.producers.entries()
    ] == [
        (number, each.epoch, each.coordinator_epoch, each.transaction_start)
        for number, each in leader.producers.entries()
    ]


def test_a_removed_segment_takes_its_index_with_it_and_an_open_transaction_stays_known(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES + 20)
    log = logs.open()
    write(log, 99)
    for _ in range(10):
        write(log, 5)
        end(log, 5, commit=False)
    log.advance_start(log.end_offset)
    removed = log.remove_expired(log.end_offset)
    assert removed
    for segment in removed:
        segment.remove_files()
    assert [name for name in logs.names() if name.endswith(INDEX)] == []
    assert stable_end(log) == 0
    assert dict(log.producers.entries())[99].transaction_start == 0
    append(log, batch())
    assert read_committed(log) == [], "the log starts above its last stable offset"
    end(log, 99, commit=False)
    assert read_committed(log) == [21]
    log.close()
    assert stable_end(logs.open(stopped_cleanly=True)) == 23


def test_a_new_log_has_no_aborted_transactions(logs: Logs) -> None:
    log = logs.open()
    two_of_three(log)
    for segment in log.restart_at(100):
        segment.remove_files()
    assert (aborted(log), stable_end(log), read_committed(log)) == ([], 100, [])


def test_a_read_ends_early_where_very_many_transactions_end(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_transactions, "_MOST_IN_READ", 5)
    log = logs.open()
    expected = []
    write(log, 99)
    for number in range(50):
        write(log, number % 7)
        expected.append(append(log, batch()).base_offset)
        end(log, number % 7, commit=False)
    end(log, 99, commit=False)
    part = log.read(0, 1 << 20, log.end_offset)
    assert part is not None
    shorter, listed = log.transactions.aborted_in(0, part)
    assert shorter.size < part.size
    assert len(listed) == 6
    assert read_committed(log) == expected


def test_a_control_batch_without_a_marker_is_refused(logs: Logs) -> None:
    log = logs.open()
    data = build_batch(
        [NewRecord(b"", b"\0\0\0\7")], producer_id=1, producer_epoch=0, attributes=CONTROL_BIT | TRANSACTIONAL_BIT
    )
    with pytest.raises(KafkaError) as caught:
        append(log, data)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert log.end_offset == 0


def test_a_marker_is_appended_however_small_batches_have_to_be(logs: Logs) -> None:
    log = logs.open()
    write(log, 1)
    log.reconfigure(logs.configure(max_message_bytes=10).config)
    end(log, 1, commit=True)
    assert stable_end(log) == 2


def test_a_refused_marker_leaves_the_transaction_open(logs: Logs) -> None:
    log = logs.open()
    write(log, 1, epoch=4)
    with pytest.raises(KafkaError) as caught:
        end(log, 1, epoch=3, commit=False)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError):
        end(log, 1, epoch=4, version=2, commit=False)
    assert (stable_end(log), log.end_offset) == (0, 1)


@pytest.mark.parametrize("takes_index", [False, True])
def test_a_full_disk_that_takes_the_marker_and_not_the_index_delays_the_sync(takes_index: bool) -> None:
    disk = SimDisk(Random(1))
    log = Logs("/data/orders-0", disk=disk).open()
    write(log, 1)
    disk.capacity_bytes = disk.used_bytes + MARKER_BYTES + (34 if takes_index else 0)
    end(log, 1, commit=False)
    assert aborted(log) == [(1, 0, 1, 2)]
    assert read_committed(log) == []
    assert log.transactions.has_unwritten is not takes_index
    if takes_index:
        return
    _, work = log.sync_work()
    with pytest.raises(DiskFullError):
        work()
    log.sync_failed()
    disk.capacity_bytes = None
    target, work = log.sync_work()
    work()
    log.synced(target)
    assert log.is_durable
    assert disk.read_file("/data/orders-0/00000000000000000000.txnindex") == (
        b"\0\0" + b"".join(number.to_bytes(8, "big") for number in (1, 0, 1, 2))
    )


def test_a_log_without_transactions_has_no_index_files(logs: Logs) -> None:
    log = logs.configure(segment_bytes=2 * BATCH_BYTES).open()
    for number in range(10):
        append(log, batch(producer=(1, 0, number)))
    assert read_committed(log) == list(range(10))
    log.close()
    logs.open()
    assert not [name for name in logs.names() if name.endswith(INDEX)]
