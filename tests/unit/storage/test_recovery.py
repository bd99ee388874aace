"""What a crash or a clean stop left is a log again: whole batches, sound indexes, and nothing promised is dropped."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import HEADER_BYTES
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.segment import CorruptSegmentError
from tests.support.batches.time_search import offset_for_timestamp
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, fill, read_all

INDEX_SUFFIXES = [".index", ".timeindex"]


def written(logs: Logs, batches: int = 6, *, close: bool = True) -> None:
    """A log of one-record batches, each with a timestamp of its own."""
    log = logs.open()
    for number in range(batches):
        append(log, batch(timestamp=NOW_MS + number, producer=(7, 0, number)))
    if close:
        log.close()


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_all(log)]


def copy_of(logs: Logs, name: str) -> Logs:
    directory = f"{logs.directory}-{name}"
    copytree(logs.directory, directory)
    return replace(logs, directory=directory)


def rewrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


# --- after a crash


def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_batch(logs: Logs) -> None:
    written(logs, 3)
    whole = logs.path(0).read_bytes()
    for size in range(2 * BATCH_BYTES, 3 * BATCH_BYTES):
        logs.path(0).write_bytes(whole[:size])
        log = logs.open()
        assert (log.end_offset, logs.path(0).stat().st_size) == (2, 2 * BATCH_BYTES), size
        assert append(log)[:2] == (2, 2)
        assert offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("zeros", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 5000, 5 << 20])
def test_a_tail_of_zeros_is_cut_off(logs: Logs, zeros: int) -> None:
    written(logs, 3)
    with logs.path(0).open("ab") as file:
        file.write(bytes(zeros))
    assert logs.open().end_offset == 3
    assert logs.path(0).stat().st_size == 3 * BATCH_BYTES


def test_a_tail_that_was_extended_before_its_bytes_came_is_cut_at_any_byte(logs: Logs) -> None:
    written(logs, 3)
    whole = logs.path(0).read_bytes()
    for size in range(2 * BATCH_BYTES, 3 * BATCH_BYTES):
        if any(whole[size:]):
            logs.path(0).write_bytes(whole[:size] + bytes(3 * BATCH_BYTES - size))
            assert logs.open().end_offset == 2, size


def test_every_flipped_bit_of_the_last_batch_is_noticed_but_those_of_its_epoch(logs: Logs) -> None:
    written(logs, 3)
    whole = logs.path(0).read_bytes()
    epoch_bits = range((2 * BATCH_BYTES + 12) * 8, (2 * BATCH_BYTES + 16) * 8)
    for bit in range(2 * BATCH_BYTES * 8, 3 * BATCH_BYTES * 8):
        if bit in epoch_bits:
            continue
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        logs.path(0).write_bytes(damaged)
        assert logs.open().end_offset == 2, bit


def test_damage_before_the_end_cuts_the_log_there(logs: Logs) -> None:
    written(logs, 6)
    rewrite(logs.path(0), 3 * BATCH_BYTES - 1, b"\xff")
    log = logs.open()
    assert offsets(log) == [0, 1]
    assert log.end_offset == 2


def test_segments_after_a_torn_one_are_dropped(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    logs.path(2).write_bytes(logs.path(2).read_bytes()[:-1])
    log = logs.open()
    assert (log.end_offset, logs.bases()) == (3, [0, 2])
    assert not [name for name in logs.names() if name.startswith(("00000000000000000004", "00000000000000000006."))]


def test_segments_after_one_that_lost_its_end_at_a_batch_boundary_are_dropped(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    logs.path(2).write_bytes(logs.path(2).read_bytes()[:BATCH_BYTES])
    assert (logs.open().end_offset, logs.bases()) == (3, [0, 2])


def test_segments_after_an_empty_one_are_dropped(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    logs.path(2).write_bytes(b"")
    log = logs.open()
    assert (log.end_offset, logs.bases()) == (2, [0, 2])
    assert append(log)[:2] == (2, 2)


@pytest.mark.parametrize("damage", [b"\xff", b""])
def test_promised_segments_are_never_dropped_for_damage_in_one_of_them(logs: Logs, damage: bytes) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    rewrite(logs.path(2), 16, damage * 20)
    if not damage:
        logs.path(2).write_bytes(logs.path(2).read_bytes()[:-3])
    logs.path(2, ".index").unlink()
    log = logs.open(recovery_point=6)
    assert (log.end_offset, logs.bases()) == (7, [0, 2, 4, 6])
    with pytest.raises(CorruptSegmentError):
        log.read(3, 1000, 7)
    part = log.read(4, 1000, 7)
    assert part is not None
    assert part.size == 2 * BATCH_BYTES


def test_the_scan_begins_at_the_recovery_points_segment(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    rewrite(logs.path(0), BATCH_BYTES - 1, b"\xff")
    assert logs.open(recovery_point=4).end_offset == 7
    assert logs.open(recovery_point=0).end_offset == 0


def test_a_recovery_point_beyond_the_log_is_no_reason_to_refuse(logs: Logs) -> None:
    written(logs, 3)
    log = logs.open(recovery_point=1000)
    assert (log.end_offset, log.flushed_offset) == (3, 3)


def test_what_survived_above_the_recovery_point_is_not_taken_for_synced(logs: Logs) -> None:
    written(logs, 6)
    log = logs.configure(flush_messages=1).open(recovery_point=4)
    assert (log.flushed_offset, log.promised_offset, log.needs_flush) == (4, 4, True)


def test_offsets_given_up_before_the_crash_are_not_used_again(logs: Logs) -> None:
    written(logs, 6)
    logs.path(0).write_bytes(logs.path(0).read_bytes()[: 2 * BATCH_BYTES])
    log = logs.open(log_start=5)
    assert (log.start_offset, log.end_offset, logs.bases()) == (5, 5, [5])
    assert append(log)[:2] == (5, 5)


def test_the_log_start_is_kept(logs: Logs) -> None:
    written(logs, 6)
    for stopped_cleanly in (True, False):
        assert offsets(logs.open(log_start=4, stopped_cleanly=stopped_cleanly)) == [4, 5]


def test_leftovers_of_what_a_crash_interrupted_are_removed(logs: Logs) -> None:
    written(logs, 2)
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000000009.index", "1.timeindex", "y.swap"):
        (Path(logs.directory) / name).write_bytes(b"left over")
    assert offsets(logs.open()) == [0, 1]
    assert {Path(name).suffix for name in logs.names()} <= {".log", ".index", ".timeindex", ".snapshot", ""}
    assert logs.bases() == [0]


@pytest.mark.parametrize("stopped_cleanly", [True, False])
@pytest.mark.parametrize("old", [[0, 2, 4], [2, 4], [4], []])
def test_a_cleaned_segment_that_a_crash_kept_from_its_place_is_put_there(
    logs: Logs, old: list[int], stopped_cleanly: bool
) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7)
    whole = b"".join(logs.path(base).read_bytes() for base in (0, 2, 4))
    # Of the batches 0 to 5 these are left, in one segment; the renames of the old ones came to any point.
    kept = [0, 3, 5]
    cleaned = b"".join(whole[number * BATCH_BYTES : (number + 1) * BATCH_BYTES] for number in kept)
    logs.path(0, ".log.swap").write_bytes(cleaned)
    logs.path(0, ".index.swap").write_bytes(b"")
    for base in (0, 2, 4):
        for suffix in (".log", *INDEX_SUFFIXES):
            if base not in old:
                logs.path(base, suffix).rename(logs.path(base, f"{suffix}.deleted"))
    (Path(logs.directory) / "compaction-checkpoint").write_bytes(b"0\n1\n6\n")
    log = logs.open(stopped_cleanly=stopped_cleanly)
    assert (logs.bases(), offsets(log)) == ([0, 6], [0, 3, 5, 6])
    assert not [name for name in logs.names() if name.endswith((".swap", ".deleted"))]
    assert [offset_for_timestamp(log, NOW_MS + number, 7).offset for number in range(7)] == [0, 3, 3, 3, 5, 5, 6]


def test_gaps_are_sound_only_where_compaction_says_so(logs: Logs) -> None:
    written(logs, 6)
    whole = logs.path(0).read_bytes()
    logs.path(0).write_bytes(whole[: 2 * BATCH_BYTES] + whole[4 * BATCH_BYTES :])
    marker = Path(logs.directory) / "compaction-checkpoint"
    for content, expected in ((b"0\n1\n6\n", [0, 1, 4, 5]), (b"torn", [0, 1, 4, 5]), (None, [0, 1])):
        marker.write_bytes(content) if content is not None else marker.unlink()
        assert offsets(logs.open()) == expected
        logs.path(0).write_bytes(whole[: 2 * BATCH_BYTES] + whole[4 * BATCH_BYTES :])


def test_recovery_of_a_recovered_log_changes_nothing(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=3 * BATCH_BYTES)
    written(logs, 8)
    logs.path(6).write_bytes(logs.path(6).read_bytes()[:-1])
    logs.open()
    before = {name: (Path(logs.directory) / name).read_bytes() for name in logs.names() if name.endswith(".log")}
    assert offsets(logs.open()) == list(range(7))
    assert {name: (Path(logs.directory) / name).read_bytes() for name in before} == before


def test_epochs_are_found_again_in_the_log(logs: Logs) -> None:
    log = logs.open()
    for epoch in (0, 0, 3, 4, 4):
        append(log, leader_epoch=epoch)
    (Path(logs.directory) / "leader-epoch-checkpoint").unlink()
    assert logs.open().leader_epochs.entries == ((0, 0), (3, 2), (4, 3))


def test_epochs_of_what_was_cut_are_forgotten(logs: Logs) -> None:
    log = logs.open()
    for epoch in (0, 0, 3):
        append(log, leader_epoch=epoch)
    logs.path(0).write_bytes(logs.path(0).read_bytes()[:-1])
    assert logs.open().leader_epochs.entries == ((0, 0),)


# --- indexes


def damage_of(kind: str, content: bytes) -> bytes | None:
    entry = content[: len(content) // 5] if content else b""
    return {
        "missing": None,
        "empty": b"",
        "short": content[: len(content) // 2],
        "torn": content[:-3],
        "zeros": bytes(len(content)),
        "zero tail": content[: -len(entry)] + bytes(len(entry)),
        "garbage": bytes((byte * 7 + 13) % 256 for byte in content),
        "beyond the log": content + struct.pack(">iI", 50, 1 << 30) * 3,
    }[kind]


KINDS = ["missing", "empty", "short", "torn", "zeros", "zero tail", "garbage", "beyond the log"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", INDEX_SUFFIXES)
@pytest.mark.parametrize("stopped_cleanly", [True, False])
def test_the_newest_segments_index_is_only_a_hint(logs: Logs, kind: str, suffix: str, stopped_cleanly: bool) -> None:
    written(logs, 6)
    path = logs.path(0, suffix)
    content = damage_of(kind, path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    log = logs.open(stopped_cleanly=stopped_cleanly)
    assert (log.end_offset, offsets(log)) == (6, list(range(6)))
    found = [offset_for_timestamp(log, NOW_MS + number, 6).offset for number in range(7)]
    assert found == [0, 1, 2, 3, 4, 5, -1]
    assert append(log)[:2] == (6, 6)


@pytest.mark.parametrize("kind", ["missing", "empty", "short", "torn", "zeros", "zero tail"])
@pytest.mark.parametrize("suffix", INDEX_SUFFIXES)
@pytest.mark.parametrize("stopped_cleanly", [True, False])
def test_what_a_power_cut_does_to_an_older_segments_index_does_no_harm(
    logs: Logs, kind: str, suffix: str, stopped_cleanly: bool
) -> None:
    logs = logs.configure(segment_bytes=6 * BATCH_BYTES)
    written(logs, 13)
    path = logs.path(6, suffix)
    content = damage_of(kind, path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    log = logs.open(stopped_cleanly=stopped_cleanly, recovery_point=12)
    assert offsets(log) == list(range(13))
    assert [offset_for_timestamp(log, NOW_MS + number, 13).offset for number in range(13)] == list(range(13))


def test_a_missing_index_is_built_again_as_it_was(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=6 * BATCH_BYTES)
    written(logs, 13)
    for stopped_cleanly in (True, False):
        for base in (0, 6):
            before = [logs.path(base, suffix).read_bytes() for suffix in INDEX_SUFFIXES]
            assert all(before)
            for suffix in INDEX_SUFFIXES:
                logs.path(base, suffix).unlink()
            logs.open(stopped_cleanly=stopped_cleanly, recovery_point=12)
            assert [logs.path(base, suffix).read_bytes() for suffix in INDEX_SUFFIXES] == before


# --- a clean stop


def test_a_clean_stop_skips_the_scan(logs: Logs) -> None:
    written(logs, 6)
    rewrite(logs.path(0), 3 * BATCH_BYTES - 1, b"\xff")  # a scan would cut here
    log = logs.open(stopped_cleanly=True)
    assert (log.end_offset, log.flushed_offset, log.needs_flush) == (6, 6, False)


def test_a_log_that_is_damaged_after_a_clean_stop_is_refused_and_not_cut(logs: Logs) -> None:
    written(logs, 6)
    rewrite(logs.path(0), 5 * BATCH_BYTES, bytes(BATCH_BYTES))
    with pytest.raises(KafkaError) as caught:
        logs.open(stopped_cleanly=True)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert logs.path(0).stat().st_size == 6 * BATCH_BYTES


def test_an_empty_log_is_opened_either_way(logs: Logs) -> None:
    for stopped_cleanly in (True, False):
        log = logs.open(stopped_cleanly=stopped_cleanly)
        assert (log.start_offset, log.end_offset) == (0, 0)


# --- producers


def is_duplicate(log: PartitionLog, sequence: int) -> bool:
    return append(log, batch(timestamp=NOW_MS, producer=(7, 0, sequence))).is_duplicate


@pytest.mark.parametrize("stopped_cleanly", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 30, 2 * BATCH_BYTES])
def test_retries_are_recognised_after_a_restart(logs: Logs, stopped_cleanly: bool, segment_bytes: int) -> None:
    logs = logs.configure(segment_bytes=segment_bytes)
    written(logs, 7, close=stopped_cleanly)
    log = logs.open(stopped_cleanly=stopped_cleanly)
    assert [is_duplicate(log, sequence) for sequence in (2, 3, 4, 5, 6)] == [True] * 5
    assert not is_duplicate(log, 7)


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(100)])
def test_a_damaged_snapshot_is_replaced_by_the_log(logs: Logs, content: bytes) -> None:
    written(logs, 6)
    (snapshot,) = (name for name in logs.names() if name.endswith(".snapshot"))
    (Path(logs.directory) / snapshot).write_bytes(content)
    for stopped_cleanly in (True, False):
        assert is_duplicate(copy_of(logs, str(stopped_cleanly)).open(stopped_cleanly=stopped_cleanly), 5)


def test_a_snapshot_of_records_that_were_cut_is_not_used_now_nor_later(logs: Logs) -> None:
    written(logs, 6)
    logs.path(0).write_bytes(logs.path(0).read_bytes()[: 3 * BATCH_BYTES])
    log = logs.open()
    assert logs.names().count("00000000000000000006.snapshot") == 0
    assert not is_duplicate(log, 3)


def test_a_stale_snapshot_is_brought_up_to_the_log_end(logs: Logs) -> None:
    logs = logs.configure(segment_bytes=2 * BATCH_BYTES)
    written(logs, 7, close=False)
    log = logs.open(recovery_point=6)
    assert len(log.producers) == 1
    assert is_duplicate(log, 6)


def test_many_batches_are_recovered_across_read_chunks(logs: Logs) -> None:
    log = logs.configure(index_interval_bytes=4096).open()
    for _ in range(40):
        append(log, batch(value=bytes(300_000)))
    fill(log, 5)
    assert logs.open().end_offset == 45
