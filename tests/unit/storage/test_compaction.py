"""Compaction keeps the newest record of each key as it was, and nothing else that it may drop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.records.batch import DELETE_HORIZON_BIT, BatchHeader, iterate_batches, read_header
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.aborted_transactions import AbortedTransaction, read_aborted, render_aborted
from tailrace.storage.cleaned_transactions import CleanedTransactions
from tailrace.storage.compaction import (
    Cleaned,
    Damage,
    MapBuilt,
    Rules,
    SegmentRange,
    build_offset_map,
    clean_segments,
    group_segments,
)
from tailrace.storage.log_config import LogConfig
from tailrace.testing.loop import SimLoop
from tests.support.batches.compacted_log import CONFIG, NAME, Batch, World
from tests.support.batches.time_search import offset_for_timestamp, offset_of_max_timestamp
from tests.unit.storage.transactions import end, read_committed, write

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def simulate(test: Callable[[World], Coroutine[Any, Any, None]], config: LogConfig = CONFIG, **options: int) -> None:
    loop = SimLoop(3)

    async def main() -> None:
        world = World(loop, config, **options)
        await test(world)
        await world.stop()

    loop.run(main())


def keyed(key: bytes | None, value: bytes | None, timestamp: int = NOW_MS, **fields: Any) -> Batch:
    return Batch([NewRecord(value, key, timestamp)], **fields)


# --- against the model

records = st.builds(
    NewRecord,
    value=st.none() | st.binary(max_size=12),
    key=st.sampled_from([b"a", b"b", b"c", b"d", b"", b"a long key " * 20]),
    timestamp=st.integers(NOW_MS - 500, NOW_MS + 500),
    headers=st.sampled_from([(), (("h", b"1"),), (("h", None), ("ü", b""))]),
)
batches = st.builds(
    Batch,
    records=st.lists(records, min_size=1, max_size=4),
    compression=st.sampled_from(list(Compression)),
    producer=st.sampled_from([None, None, 1, 2]),
)
steps = st.lists(st.one_of(batches, batches, batches, st.sampled_from(["roll", "clean", "restart"])), max_size=25)


@settings(max_examples=60)
@given(
    steps=steps,
    segment_bytes=st.sampled_from([150, 600, 5000]),
    index_interval=st.sampled_from([0, 100, 4096]),
    delete_retention_ms=st.sampled_from([0, 10**12]),
    dedupe_bytes=st.sampled_from([1, 24 * 3, 24 * 5, 1 << 20]),
)
def test_what_is_left_is_what_the_model_says(
    steps: list[Batch | str], segment_bytes: int, index_interval: int, delete_retention_ms: int, dedupe_bytes: int
) -> None:
    async def test(world: World) -> None:
        for step in [*steps, "roll", "clean", "clean", "restart"]:
            if isinstance(step, Batch):
                world.append(step)
            elif step == "roll":
                world.roll()
            elif step == "clean":
                await world.sync()
                await world.clean()
            else:
                await world.stop()
                world.open()
            assert world.read_all() == world.model.expected()
        check(world)

    config = replace(
        CONFIG,
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval,
        delete_retention_ms=delete_retention_ms,
    )
    simulate(test, config, dedupe_bytes=dedupe_bytes)


def check(world: World) -> None:
    expected = world.model.expected()
    assert world.read_all() == expected
    assert world.read_all(max_bytes=1) == expected
    end = world.log.end_offset
    assert (world.log.start_offset, end) == (0, len(world.model.appended))
    for offset in range(0, end, 1 + end // 20):
        assert world.read_all(offset)[:1] == [record for record in expected if record.offset >= offset][:1]
    for timestamp in (0, NOW_MS - 100, NOW_MS + 100, NOW_MS + 501):
        first = next((record for record in expected if record.timestamp >= timestamp), None)
        found = offset_for_timestamp(world.log, timestamp, end)
        assert found == ((first.offset, first.timestamp) if first else (-1, -1))
    newest = max(expected, key=lambda record: record.timestamp, default=None)
    assert offset_of_max_timestamp(world.log, end) == ((newest.offset, newest.timestamp) if newest else (-1, -1))


@settings(max_examples=20)
@given(steps=st.lists(batches, min_size=1, max_size=12))
def test_producers_go_on_after_a_cleaning_even_where_the_log_alone_tells_of_them(steps: list[Batch]) -> None:
    async def test(world: World) -> None:
        for batch in steps:
            world.append(batch)
        world.roll()
        await world.sync()
        await world.clean()
        await world.stop()
        for name in world.disk.list(f"/data/{NAME}"):
            if name.endswith(".snapshot"):
                world.disk.remove(f"/data/{NAME}/{name}")
        world.open()
        for producer in (1, 2):
            world.append(keyed(b"a", b"next", producer=producer))  # out of order, it would be refused

    simulate(test)


# --- what goes and what stays


def headers(world: World) -> list[BatchHeader]:
    found = []
    for segment in world.log.segments.sealed:
        found += [header for _, header in segment.headers()]
    return found


def test_a_tombstone_stays_until_its_horizon_and_then_goes_with_the_next_cleaning() -> None:
    async def test(world: World) -> None:
        for batch in (keyed(b"k", b"1"), keyed(b"k", None), keyed(b"other", b"1")):
            world.append(batch)
        world.roll()
        await world.sync()
        assert await world.clean()
        (tombstone, _) = headers(world)
        assert tombstone.delete_horizon_ms is not None
        assert abs(tombstone.delete_horizon_ms - (world.clock.wall_ms() + DAY_MS)) < 2000
        assert [(record.key, record.value, record.timestamp) for record in world.read_all()] == [
            (b"k", None, NOW_MS),
            (b"other", b"1", NOW_MS),
        ]
        for wait_seconds, expected in ((DAY_MS // 1000 - 60, [b"k", b"other"]), (60, [b"other"])):
            await asyncio.sleep(wait_seconds)
            world.append(keyed(b"other", b"2"))
            world.roll()
            await world.sync()
            assert await world.clean()
            assert [record.key for record in world.read_all()] == expected
        # Nothing of the key is left but the offsets it had.
        assert world.log.end_offset == 5

    simulate(test, replace(CONFIG, delete_retention_ms=DAY_MS))


def test_a_horizon_that_is_set_is_never_moved() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", None, compression=Compression.ZSTD))
        horizons = []
        for _ in range(3):
            world.append(keyed(b"x", b"1"))
            world.roll()
            await world.sync()
            assert await world.clean()
            horizons.append(headers(world)[0].delete_horizon_ms)
            await asyncio.sleep(100)
        assert horizons[0] is not None
        assert horizons == [horizons[0]] * 3

    simulate(test, replace(CONFIG, delete_retention_ms=DAY_MS))


def test_records_without_a_key_go_as_in_kafka() -> None:
    async def test(world: World) -> None:
        world.append(Batch([NewRecord(b"1"), NewRecord(b"2", b"k"), NewRecord(b"3")]))
        world.append(keyed(None, b"4"))
        world.append(keyed(b"l", b"5"))
        world.roll()
        await world.sync()
        assert await world.cleaner.clean_dirtiest()
        assert [(record.offset, record.key) for record in world.read_all()] == [(1, b"k"), (4, b"l")]

    simulate(test)


def test_the_last_batch_of_each_producer_stays_and_an_emptied_one_has_no_codec() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"1", producer=1, compression=Compression.GZIP))
        world.append(keyed(b"k", b"2", producer=2, compression=Compression.LZ4))
        world.append(keyed(b"k", b"3"))
        world.append(keyed(b"k", b"4"))
        world.roll()
        await world.sync()
        assert await world.clean()
        found = [(one.base_offset, one.producer_id, one.base_sequence, one.record_count) for one in headers(world)]
        assert found == [(0, 1, 0, 0), (1, 2, 0, 0), (3, -1, -1, 1)]
        assert [header.compression for header in headers(world)] == [0, 0, 0]

    simulate(test)


def test_a_batch_keeps_its_last_offset_and_so_its_sequence_numbers() -> None:
    async def test(world: World) -> None:
        world.append(Batch([NewRecord(b"1", b"a"), NewRecord(b"2", b"b"), NewRecord(b"3", b"c")], producer=1))
        world.append(Batch([NewRecord(b"4", b"c"), NewRecord(b"5", b"a")]))
        world.roll()
        await world.sync()
        assert await world.clean()
        first, _ = headers(world)
        assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
        assert (first.base_sequence, first.last_sequence) == (0, 2)

    simulate(test)


def test_the_time_that_the_broker_stamped_stays_even_beside_a_horizon() -> None:
    async def test(world: World) -> None:
        world.append(Batch([NewRecord(b"1", b"a"), NewRecord(None, b"b"), NewRecord(b"2", b"a")]))
        world.roll()
        await world.sync()
        before = [record.timestamp for record in world.read_all()]
        assert await world.cleaner.clean_dirtiest()
        (header,) = headers(world)
        assert header.attributes & DELETE_HORIZON_BIT
        assert [record.timestamp for record in world.read_all()] == before[1:]

    simulate(test, replace(CONFIG, log_append_time=True))


def test_small_segments_become_one_and_the_index_finds_everything() -> None:
    async def test(world: World) -> None:
        for number in range(200):
            world.append(keyed(b"%d" % (number % 50), b"%d" % number, NOW_MS + number))
        world.roll()
        count = world.log.segments.count
        await world.sync()
        assert await world.clean()
        world.append(keyed(b"0", b"newest", NOW_MS + 200))
        world.roll()
        await world.sync()
        assert await world.clean()  # sizes are those before a cleaning: only now it is known how little is left
        assert world.log.segments.count < count / 2
        assert len(world.read_all()) == 50
        await asyncio.sleep(5)
        names = world.disk.list(f"/data/{NAME}")
        assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]
        check(world)

    simulate(test)


def test_a_reader_goes_on_with_the_file_it_has() -> None:
    async def test(world: World) -> None:
        for number in range(20):
            world.append(keyed(b"k", b"%d" % number))
        world.roll()
        await world.sync()
        part = world.log.read(0, 1 << 20, world.log.end_offset)
        assert part is not None
        before = part.file.read(part.position, part.size)
        assert await world.clean()
        assert part.file.read(part.position, part.size) == before
        await asyncio.sleep(5)  # the file has lost its name by now
        assert part.file.read(part.position, part.size) == before
        warmed = await world.log.warm(part)
        assert warmed == part

    simulate(test)


# --- when


def test_a_log_is_left_alone_until_enough_of_it_is_dirty_or_some_of_it_has_waited_too_long() -> None:
    async def test(world: World) -> None:
        now = world.clock.wall_ms()
        for number in range(10):
            world.append(keyed(b"%d" % number, b"x" * 100, now))
        world.roll()
        await world.sync()
        assert await world.clean()
        world.append(keyed(b"0", b"y" * 100, now))
        world.roll()
        await world.sync()
        assert not await world.clean()
        assert 0 < world.cleaner.max_dirty_percent < 50
        world.reconfigure(replace(world.config, max_compaction_lag_ms=60_000))
        assert not await world.clean()
        await asyncio.sleep(61)
        assert await world.clean()

    simulate(test, replace(CONFIG, min_cleanable_ratio=0.5))


def test_young_records_are_not_compacted() -> None:
    async def test(world: World) -> None:
        now = world.clock.wall_ms()
        world.append(keyed(b"k", b"old", now - 60_000))
        world.append(keyed(b"k", b"older", now - 90_000))
        world.roll()
        world.append(keyed(b"k", b"young", now))
        world.roll()
        await world.sync()
        assert await world.clean()
        assert [record.value for record in world.read_all()] == [b"older", b"young"]
        assert not await world.clean()
        await asyncio.sleep(31)
        assert await world.clean()
        assert [record.value for record in world.read_all()] == [b"young"]

    simulate(test, replace(CONFIG, min_compaction_lag_ms=30_000))


def test_the_newest_segment_is_closed_when_it_has_had_its_time() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"1"))
        world.append(keyed(b"k", b"2"))
        await world.sync()
        assert not await world.clean()
        await asyncio.sleep(59)
        assert not await world.clean()
        await asyncio.sleep(2)
        assert await world.clean()
        assert [record.value for record in world.read_all()] == [b"2"]
        assert world.log.segments.count == 2
        assert not await world.clean()
        assert world.log.segments.count == 2  # an empty one has no age

    simulate(test, replace(CONFIG, segment_ms=60_000))


def test_what_is_not_synced_is_not_compacted() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"1"))
        world.append(keyed(b"k", b"2"))
        world.roll()
        assert not await world.clean()
        await world.sync()
        assert await world.clean()

    simulate(test)


def test_a_compacted_log_loses_nothing_to_age_and_one_that_is_deleted_too_does() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"1"))
        world.append(keyed(b"k", b"2"))
        world.roll()
        world.append(keyed(b"l", b"3"))
        world.roll()
        await world.sync()
        assert await world.clean()
        await asyncio.sleep(100)
        assert await world.remove_expired() == []
        assert world.log.start_offset == 0
        world.reconfigure(replace(world.config, delete_expired=True))
        assert await world.remove_expired() != []
        assert world.log.start_offset == world.log.end_offset == 3

    simulate(test, replace(CONFIG, retention_ms=50_000))


def test_a_segment_that_compaction_left_without_records_does_not_hold_up_retention() -> None:
    async def test(world: World) -> None:
        for number in range(12):
            world.append(keyed(b"k", b"x" * 100, NOW_MS + number))
        world.roll()
        await world.sync()
        assert await world.clean()
        assert [segment.max_timestamp >= 0 for segment in world.log.segments.sealed] == [False, False, True]
        await asyncio.sleep(100)
        await world.remove_expired()
        assert world.log.start_offset == 12

    simulate(test, replace(CONFIG, retention_ms=50_000, delete_expired=True, segment_bytes=700))


def test_records_that_were_deleted_stay_so() -> None:
    async def test(world: World) -> None:
        for number in range(8):
            world.append(keyed(b"%d" % number, b"1"))
        world.roll()
        await world.sync()
        world.log.advance_start(3)
        assert await world.clean()
        assert world.log.start_offset == 3
        assert [record.offset for record in world.read_all()] == [3, 4, 5, 6, 7]

    simulate(test)


# --- damage


@pytest.mark.parametrize("place", ["dirty", "clean"])
def test_a_corrupt_batch_makes_the_log_uncleanable_and_shortens_nothing(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        for number in range(20):
            world.append(keyed(b"k%d" % number, b"1"))
        world.roll()
        await world.sync()
        if place == "clean":
            assert await world.clean()
            world.append(keyed(b"k1", b"2"))
            world.roll()
            await world.sync()
        victim = world.log.segments.sealed[0]
        content = world.disk._find(victim.log.path).content  # type: ignore[union-attr]
        content[100] ^= 0xFF
        before = {name: world.disk.read_file(f"/data/{NAME}/{name}") for name in names(world)}
        assert not await world.cleaner.clean_dirtiest()
        assert list(world.cleaner.uncleanable) == [NAME]
        assert {name: world.disk.read_file(f"/data/{NAME}/{name}") for name in names(world)} == before
        assert victim.corrupt_position is not None
        assert f"{NAME}: stopped compacting: {victim.log.path}, position" in caplog.text
        assert not await world.cleaner.clean_dirtiest()
        assert caplog.text.count("stopped compacting") == 1

    simulate(test)


def names(world: World) -> list[str]:
    return [name for name in world.disk.list(f"/data/{NAME}") if name.endswith((".log", ".index", ".cleaned"))]


def test_records_that_make_no_sense_leave_the_log_as_it_is_and_readable() -> None:
    async def test(world: World) -> None:
        data = build_batch([NewRecord(b"value", b"key")])
        body = bytearray(data[61:])
        body[4] = 0x7E  # a key longer than its record
        data[61:] = body
        from tailrace.records.batch import replace_records

        broken = replace_records(data, 0, bytes(data[61:]))
        world.log.append(memoryview(broken), read_header(broken), 0)
        world.append(keyed(b"k", b"1"))
        world.roll()
        await world.sync()
        assert not await world.cleaner.clean_dirtiest()
        assert list(world.cleaner.uncleanable) == [NAME]
        assert world.log.segments.sealed[0].corrupt_position is None

    simulate(test)


def test_a_helper_that_dies_is_tried_again_and_given_up_after_three_times() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"1"))
        world.append(keyed(b"k", b"2"))
        world.roll()
        await world.sync()
        world.helper.kill_after(4)
        assert not await world.clean()
        assert names(world) == [name for name in names(world) if not name.endswith(".cleaned")]
        assert await world.clean()
        world.append(keyed(b"k", b"3"))
        world.roll()
        await world.sync()
        for _ in range(3):
            world.helper.kill_after(1)
            assert not await world.cleaner.clean_dirtiest()
        assert list(world.cleaner.uncleanable) == [NAME]
        assert [record.value for record in world.read_all()] == [b"2", b"3"]

    simulate(test)


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    async def test(world: World) -> None:
        for number in range(30):
            world.append(keyed(b"%d" % (number % 20), b"x" * 100))
        world.roll()
        await world.sync()
        world.disk.capacity_bytes = world.disk.used_bytes + 300
        assert not await world.clean()
        assert len(world.read_all()) == 30
        world.disk.capacity_bytes = None
        assert await world.clean()
        assert len(world.read_all()) == 20

    simulate(test)


# --- grouping


def test_groups_are_bounded_by_size_index_and_offsets() -> None:
    def bases(segments: list[SegmentRange]) -> list[list[int]]:
        return [[one.base_offset for one in group] for group in group_segments(segments, 100, 10)]

    def of(*parts: tuple[int, int, int, int]) -> list[SegmentRange]:
        return [SegmentRange(*part) for part in parts]

    assert bases([]) == []
    assert bases(of((0, 5, 60, 1), (5, 9, 40, 1), (9, 12, 1, 1))) == [[0, 5], [9]]
    assert bases(of((0, 5, 500, 1), (5, 9, 40, 1))) == [[0], [5]]
    assert bases(of((0, 5, 1, 8), (5, 9, 1, 3))) == [[0], [5]]
    far = 2**31
    assert bases(of((0, 5, 1, 1), (5, far, 1, 1), (far, far + 1, 1, 1))) == [[0, 5], [far]]


# --- transactions


TRANSACTIONAL = 0x10
CONTROL = 0x20


def marker(producer_id: int, kind: int, offset: int) -> bytes:
    record = NewRecord(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind), NOW_MS)
    return bytes(
        build_batch(
            [record],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            attributes=TRANSACTIONAL | CONTROL,
        )
    )


def data(producer_id: int, key: bytes, offset: int) -> bytes:
    return bytes(
        build_batch(
            [NewRecord(b"%d" % offset, key, NOW_MS)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
    )


def clean_files(directory: Path, end: int, now_ms: int) -> list[tuple[int, bool, int]]:
    """Clean one segment in place; each batch that is left by its first offset, whether a marker, and its records."""
    disk = SystemDisk()
    path = directory / "00000000000000000000.log"
    segments = [SegmentRange(0, end, path.stat().st_size)]
    built = build_offset_map(disk, str(directory), segments, [0], 0, 1 << 20, 0.9, bytes(16))
    assert isinstance(built, MapBuilt)
    rules = Rules(now_ms, 1000, 4096, end, {})
    cleaned = clean_segments(disk, str(directory), segments, rules, CleanedTransactions.of(built.aborted))
    assert isinstance(cleaned, Cleaned)
    for kind in (".log", ".txnindex"):
        name = f"00000000000000000000{kind}"
        (directory / name).unlink(missing_ok=True)
        if (directory / f"{name}.cleaned").exists():
            (directory / f"{name}.cleaned").rename(directory / name)
    content = path.read_bytes()
    return [(header.base_offset, header.is_control, header.record_count) for _, header in iterate_batches(content)]


ABORT, COMMIT = 0, 1


def test_aborted_records_go_at_once_and_their_marker_when_it_has_had_its_time(tmp_path: Path) -> None:
    log = data(5, b"k", 0) + data(6, b"k", 1) + marker(5, ABORT, 2) + marker(6, COMMIT, 3) + data(7, b"end", 4)
    (tmp_path / "00000000000000000000.log").write_bytes(log)
    aborted = [AbortedTransaction(5, 0, 2, 2)]
    (tmp_path / "00000000000000000000.txnindex").write_bytes(render_aborted(aborted))
    # The record goes, but it was there: its marker stays, and so does what the index says of it.
    assert clean_files(tmp_path, 5, NOW_MS) == [(1, False, 1), (2, True, 1), (3, True, 1), (4, False, 1)]
    assert read_aborted(SystemDisk(), [str(tmp_path / "00000000000000000000.txnindex")]) == aborted
    # Now nothing of it is left: the marker gets a horizon, and goes behind it.
    assert clean_files(tmp_path, 5, NOW_MS) == [(1, False, 1), (2, True, 1), (3, True, 1), (4, False, 1)]
    assert not (tmp_path / "00000000000000000000.txnindex").exists()
    assert clean_files(tmp_path, 5, NOW_MS + 999) == [(1, False, 1), (2, True, 1), (3, True, 1), (4, False, 1)]
    assert clean_files(tmp_path, 5, NOW_MS + 1000) == [(1, False, 1), (3, True, 1), (4, False, 1)]
    # The commit marker stays with the record it commits.
    assert clean_files(tmp_path, 5, NOW_MS + 9000) == [(1, False, 1), (3, True, 1), (4, False, 1)]


def test_what_an_aborted_transaction_wrote_supersedes_nothing(tmp_path: Path) -> None:
    log = data(6, b"k", 0) + marker(6, COMMIT, 1) + data(5, b"k", 2) + marker(5, ABORT, 3) + data(7, b"end", 4)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(log)
    (tmp_path / "00000000000000000000.txnindex").write_bytes(render_aborted([AbortedTransaction(5, 2, 3, 3)]))
    clean_files(tmp_path, 5, NOW_MS)
    content = path.read_bytes()
    values = [
        record.value
        for position, header in iterate_batches(content)
        if not header.is_control
        for record in iterate_records(content, header, position)
    ]
    assert values == [b"0", b"4"]


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    first, second = data(1, b"a", 0), bytearray(data(1, b"b", 1))
    second[-1] ^= 1
    (tmp_path / "00000000000000000000.log").write_bytes(first + second)
    segments = [SegmentRange(0, 2, 2 * len(first))]
    found = build_offset_map(SystemDisk(), str(tmp_path), segments, [0], 0, 1 << 20, 0.9, bytes(16))
    assert found == Damage(0, len(first), "the CRC of the batch does not match", False)


def test_a_cleaning_stops_at_the_first_open_transaction() -> None:
    async def test(world: World) -> None:
        world.append(keyed(b"k", b"before"))
        write(world.log, 7, key=b"k", value=b"open")
        world.append(keyed(b"k", b"after"))
        world.roll()
        await world.sync()
        await world.clean()
        assert [record.value for record in world.read_all() if record.key == b"k"] == [b"before", b"open", b"after"]
        end(world.log, 7, commit=False)
        world.roll()
        await world.sync()
        assert await world.clean()
        assert [record.value for record in world.read_all() if record.key == b"k"] == [b"after"]
        assert read_committed(world.log) == [2]

    simulate(test)
