"""Truncation of a log: nothing known of it extends beyond its new end."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from tailrace.errors import KafkaError
from tailrace.model import TopicPartition
from tailrace.records.batch import read_header
from tailrace.storage.checkpoints import Gaps
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.producer_state import ProducerState
from tests.support.batches.time_search import offset_for_timestamp, offset_of_max_timestamp
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, read_all

NAME = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=1)
#: Four batches of one record in each segment.
SMALL = LogConfig(index_interval_bytes=0, segment_bytes=4 * BATCH_BYTES)


def cut(log: PartitionLog, offset: int) -> None:
    producers = log.producers.below(offset)
    log.truncate(offset, ProducerState() if producers is None else producers)


def values(log: PartitionLog) -> dict[int, bytes]:
    return {record.offset: record.value or b"" for record in read_all(log)}


def numbered(log: PartitionLog, first: int, count: int, leader_epoch: int = 0, marked: str = "") -> None:
    for number in range(first, first + count):
        append(log, batch(value=f"{number:06d}{marked[:1]:1}".encode(), timestamp=NOW_MS + number), leader_epoch)


SIZE = len(batch(value=b"000000 "))


@pytest.mark.parametrize("offset", range(12))
def test_after_a_cut_the_log_is_what_it_was_at_that_end(logs: Logs, offset: int) -> None:
    logs = logs.configure(segment_bytes=4 * SIZE)
    log = logs.open()
    numbered(log, 0, 6, leader_epoch=1)
    numbered(log, 6, 5, leader_epoch=3)
    whole = values(log)
    cut(log, offset)
    expected = {at: value for at, value in whole.items() if at < offset}
    assert (values(log), log.end_offset) == (expected, min(offset, 11))
    assert log.leader_epochs.entries == tuple(entry for entry in ((1, 0), (3, 6)) if entry[1] < offset)
    assert offset_of_max_timestamp(log, log.end_offset).offset == log.end_offset - 1
    assert offset_for_timestamp(log, NOW_MS + 3, log.end_offset).offset == (3 if offset > 3 else -1)
    assert log.segments.size_bytes == len(expected) * SIZE
    numbered(log, offset, 7, leader_epoch=4, marked="x")
    again = {**expected, **{at: f"{at:06d}x".encode() for at in range(log.end_offset - 7, log.end_offset)}}
    assert values(log) == again
    for at in again:
        part = log.read(at, SIZE, log.end_offset)
        assert part is not None
        assert read_header(part.file.read(part.position, part.size)).base_offset == at
    for stopped_cleanly in (False, True):
        log.close()
        reopened = logs.open(stopped_cleanly=stopped_cleanly)
        assert (values(reopened), reopened.leader_epochs.entries) == (again, log.leader_epochs.entries)


@pytest.mark.parametrize(("offset", "end"), [(0, 0), (1, 0), (4, 0), (5, 5), (7, 5), (9, 5), (10, 10), (11, 11)])
def test_a_batch_that_holds_the_offset_goes_as_a_whole(logs: Logs, offset: int, end: int) -> None:
    log = logs.open()
    for _ in range(2):
        append(log, batch(5))
    append(log)
    append(log)
    cut(log, offset)
    assert (log.end_offset, list(values(log))) == (end, list(range(end)))


def test_in_a_gap_the_log_ends_where_it_was_told_to(logs: Logs) -> None:
    log = logs.configure(segment_bytes=10 * BATCH_BYTES).open()
    leader = Logs(logs.directory + "-leader", logs.config).open()
    for _ in range(10):
        append(leader)
    whole = leader.read(0, 1 << 20, 10)
    assert whole is not None
    data = whole.file.read(0, whole.size)
    kept = b"".join(data[at * BATCH_BYTES : (at + 1) * BATCH_BYTES] for at in (0, 1, 2, 7, 8, 9))
    assert log.append_replicated(memoryview(kept), 10) == len(kept)
    assert (log.end_offset, log.gaps.within_below) == (10, 10)
    cut(log, 5)
    assert (log.end_offset, list(values(log)), log.gaps) == (5, [0, 1, 2], Gaps(6, 5))
    append(log)
    assert list(values(log)) == [0, 1, 2, 5]


def test_what_was_promised_and_synced_goes_no_further_than_the_log(logs: Logs) -> None:
    log = logs.configure(flush_messages=3).open()
    for _ in range(5):
        append(log)
    target, work = log.sync_work()
    work()
    log.synced(target)
    assert (log.flushed_offset, log.promised_offset, log.is_durable) == (5, 5, True)
    cut(log, 2)
    assert (log.flushed_offset, log.promised_offset, log.is_durable) == (2, 2, False)
    for _ in range(2):
        append(log)
    assert (log.flushed_offset, log.promised_offset) == (2, 4)
    append(log)
    assert log.promised_offset == 4


def test_a_cut_below_the_log_start_takes_it_along(logs: Logs) -> None:
    log = logs.open()
    for _ in range(8):
        append(log)
    log.advance_start(6)
    cut(log, 4)
    assert (log.start_offset, log.end_offset, values(log)) == (4, 4, {})


def test_a_cut_before_everything_there_is_makes_an_empty_log(logs: Logs) -> None:
    log = logs.configure(segment_bytes=4 * BATCH_BYTES, retention_bytes=0).open()
    for _ in range(10):
        append(log)
    log.advance_start(8)
    for segment in log.remove_expired(8):
        segment.remove_files()
    assert logs.bases() == [8]
    cut(log, 5)
    assert (log.start_offset, log.end_offset, logs.bases()) == (5, 5, [5])
    append(log)
    assert list(values(log)) == [5]


def test_a_log_that_begins_anew_has_nothing_left_of_the_old(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=4 * BATCH_BYTES)
    log = logs.open()
    for number in range(10):
        append(log, batch(producer=(7, 0, number)), leader_epoch=2)
    removed = log.restart_at(100)
    assert len(removed) == 3
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.promised_offset) == (100, 100, 100, 100)
    assert (log.leader_epochs.entries, len(log.producers), logs.bases()) == ((), 0, [100])
    assert [name for name in logs.names() if name.endswith(".snapshot")] == []
    append(log, leader_epoch=3)
    assert (list(values(log)), log.leader_epochs.entries) == ([100], ((3, 100),))


@pytest.mark.parametrize("offset", range(0, 40, 3))
def test_producers_are_what_they_were_at_that_end(logs: Logs, offset: int) -> None:
    logs = logs.configure(segment_bytes=7 * BATCH_BYTES)
    log, model = logs.open(), Logs(logs.directory + "-model", logs.config).open()
    sequences: dict[tuple[int, int], int] = {}
    random = Random(offset)
    for number in range(40):
        # The third comes late, so that a cut may take all that is remembered of it.
        producer = random.choice((1, 2) if number < 25 else (2, 3, 3, 3)), number // 30
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + 1
        for each in (log, model) if number < offset else (log,):
            append(each, batch(producer=(*producer, sequence)))
    known = log.producers.below(offset)
    steps = log.find_producers(offset)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            replayed = found.value
            break

    def of(state: ProducerState) -> dict[int, tuple[int, list[tuple[int, ...]]]]:
        return {
            number: (entry.epoch, [kept[:4] for kept in entry.batches]) for number, entry in sorted(state.entries())
        }

    assert of(replayed) == of(model.producers)
    if known is not None:
        # Fewer batches may be remembered, but the newest are, and with them what a retry may ask for.
        for number, (epoch, kept) in of(model.producers).items():
            assert of(known)[number][0] == epoch
            assert kept[-len(of(known)[number][1]) :] == of(known)[number][1] != []


def test_readers_that_hold_a_part_that_was_cut_do_not_make_the_log_serve_it(logs: Logs) -> None:
    log = logs.open()
    numbered(log, 0, 10)
    held = log.read(4, 1 << 20, 10)
    assert held is not None
    cut(log, 6)
    assert log.read(6, 1 << 20, 10) is None
    with pytest.raises(KafkaError):
        log.read(7, 1 << 20, 10)
    data = held.file.read(held.position, held.size)
    assert len(data) == 2 * SIZE


def test_damage_that_was_cut_off_is_forgotten_and_damage_below_is_not(logs: Logs) -> None:
    log = logs.open()
    numbered(log, 0, 10)
    segment = log.segments[0]
    segment.found_corrupt(7 * SIZE)
    cut(log, 8)
    assert segment.corrupt_position == 7 * SIZE
    cut(log, 7)
    assert segment.corrupt_position is None
    numbered(log, 7, 2)
    assert len(values(log)) == 9
