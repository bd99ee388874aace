"""Batches that have to be prepared before they are appended: in order, once, whatever else happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from tailrace.errors import ErrorCode, KafkaError, RecordsRefusedError, StorageError
from tailrace.records.batch import TRANSACTIONAL_BIT, iterate_batches, read_header, replace_records
from tailrace.records.compression import Compression, compress
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, Record, build_batch, iterate_records
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.storage.log_config import LogConfig
from tailrace.storage.partition_log import Appended
from tailrace.testing.loop import SimLoop
from tests.support.batches.poison import DAMAGES
from tests.unit.replication.reads import read
from tests.unit.replication.test_partition import World
from tests.unit.storage.logs import NOW_MS

LARGE = 50_000


def run(test: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    loop = SimLoop(4)
    loop.run(test(World(loop, LogConfig(index_interval_bytes=0, **settings))))


def batch(
    values: list[bytes],
    *,
    key: bytes | None = b"key",
    codec: Compression = Compression.NONE,
    producer: tuple[int, int] = (-1, -1),
    timestamp: int = NOW_MS,
    transactional: bool = False,
) -> bytearray:
    records = [NewRecord(value, key, timestamp) for value in values]
    producer_id, sequence = producer
    epoch = 0 if producer_id >= 0 else -1
    return build_batch(
        records,
        compression=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )


def sent(world: World, data: bytearray) -> asyncio.Future[Appended]:
    """Append as a handler does it: the bytes are gone when the call returns."""
    given = bytearray(data)
    appended = world.partition.append(memoryview(given), ACKS_ALL)
    given[:] = bytes(len(given))
    if isinstance(appended, Appended):
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_result(appended)
        return future
    return appended


async def refused(world: World, data: bytearray) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await sent(world, data)
    return caught.value


def stored(world: World) -> list[tuple[Compression, list[Record]]]:
    """The codec and the records of each batch in the log."""
    part = read(world.partition, 0, 1 << 30)
    if part is None:
        return []
    data = part.file.read(part.position, part.size)
    return [
        (Compression(header.compression), list(iterate_records(data, header, position)))
        for position, header in iterate_batches(data)
    ]


def random_values(seed: int, size: int) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(size // 10) for _ in range(10)]


@pytest.mark.parametrize("target", Compression)
@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("size", [100, LARGE])
def test_every_batch_is_stored_in_the_topics_codec(target: Compression, source: Compression, size: int) -> None:
    async def test(world: World) -> None:
        values = random_values(size, size)
        appended = await sent(world, batch(values, codec=source))
        assert (appended.base_offset, appended.last_offset) == (0, 9)
        ((codec, records),) = stored(world)
        assert codec is target
        assert [(record.offset, record.value) for record in records] == list(enumerate(values))

    run(test, compression=target)


def test_small_batches_are_appended_at_once_and_large_ones_in_their_turn() -> None:
    async def test(world: World) -> None:
        assert sent(world, batch([b"small"])).done()
        large = sent(world, batch(random_values(1, LARGE)))
        small = sent(world, batch([b"behind the large one"]))
        as_sent = sent(world, batch([b"in the topic's codec already"], codec=Compression.ZSTD))
        assert [future.done() for future in (large, small, as_sent)] == [False] * 3
        assert [(await future).base_offset for future in (large, small, as_sent)] == [1, 11, 12]
        assert sent(world, batch([b"nothing to wait for any more"])).done()

    run(test, compression=Compression.ZSTD)


def test_a_producer_that_pipelines_keeps_its_order_and_a_retry_is_a_duplicate() -> None:
    async def test(world: World) -> None:
        batches = [
            batch(random_values(number, LARGE if number % 3 == 0 else 100), producer=(7, 10 * number))
            for number in range(6)
        ]
        first = [sent(world, data) for data in batches]
        again = [sent(world, data) for data in batches[1:]]
        assert [(await future).base_offset for future in first] == [0, 10, 20, 30, 40, 50]
        assert [await future for future in again] == [
            Appended(10 * number, 10 * number + 9, -1, is_duplicate=True) for number in range(1, 6)
        ]
        assert len(stored(world)) == 6
        gap = await refused(world, batch(random_values(9, LARGE), producer=(7, 70)))
        assert gap.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(test, compression=Compression.LZ4)


def test_a_batch_whose_transaction_ends_while_it_is_prepared_begins_no_other() -> None:
    async def test(world: World) -> None:
        partition = world.partition
        first = sent(world, batch(random_values(1, LARGE), producer=(7, 0), transactional=True))
        assert (await first).base_offset == 0
        other = sent(world, batch(random_values(2, LARGE), producer=(8, 0), transactional=True))
        late = sent(world, batch(random_values(3, LARGE), producer=(7, 10), transactional=True))
        partition.append_marker(Marker(7, 0, is_commit=False, coordinator_epoch=0))
        assert (await other).base_offset == 11
        with pytest.raises(KafkaError) as refusal:
            await late
        assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        partition.append_marker(Marker(8, 0, is_commit=True, coordinator_epoch=0))
        assert partition.last_stable_offset == partition.log.end_offset == 22
        # A coordinator that knows the transaction lets it in.
        assert (
            await sent(world, batch(random_values(3, LARGE), producer=(7, 10), transactional=True))
        ).base_offset == 22

    run(test, compression=Compression.LZ4)


def test_one_refused_batch_costs_no_other() -> None:
    async def test(world: World) -> None:
        broken = replace_records(batch([b"x"]), Compression.GZIP, b"\x01" + bytes(LARGE))
        futures = [sent(world, batch(random_values(1, LARGE))), sent(world, broken), sent(world, batch([b"last"]))]
        await asyncio.wait(futures)
        assert futures[0].result().base_offset == 0
        error = futures[1].exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.INVALID_RECORD
        assert futures[2].result().base_offset == 10

    run(test, compression=Compression.ZSTD)


def test_sizes_are_checked_before_and_after_the_codec_changes() -> None:
    async def test(world: World) -> None:
        grows = batch([bytes(LARGE)], codec=Compression.GZIP)
        assert len(grows) < 1000
        error = await refused(world, grows)
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert "exceeds the maximum configured size of 20000" in str(error)
        error = await refused(world, batch([bytes(LARGE)]))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert (await sent(world, batch([bytes(15_000)], codec=Compression.GZIP))).base_offset == 0
        assert stored(world)[0][0] is Compression.NONE

    run(test, compression=Compression.NONE, max_message_bytes=20_000)


def test_a_bomb_costs_its_sender_the_batch() -> None:
    async def test(world: World) -> None:
        bomb = replace_records(batch([b"x"]), Compression.ZSTD, compress(Compression.ZSTD, bytes(65 << 20)))
        assert len(bomb) < 10_000
        error = await refused(world, bomb)
        assert error.code is ErrorCode.INVALID_RECORD
        assert "more than" in str(error)

    run(test, compression=Compression.LZ4)


def test_the_brokers_time_is_stamped_on_a_batch_in_its_new_codec() -> None:
    async def test(world: World) -> None:
        appended = await sent(world, batch(random_values(3, LARGE), timestamp=5))
        assert appended.append_time_ms == NOW_MS
        ((codec, records),) = stored(world)
        assert codec is Compression.SNAPPY
        assert {record.timestamp for record in records} == {NOW_MS}

    run(test, compression=Compression.SNAPPY, log_append_time=True)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("count", [3, 5000])
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Compression, count: int) -> None:
    async def test(world: World) -> None:
        records = [NewRecord(b"value", None if number in (1, count - 1) else b"k", NOW_MS) for number in range(count)]
        error = await refused(world, build_batch(records, compression=codec))
        assert isinstance(error, RecordsRefusedError)
        assert error.code is ErrorCode.INVALID_RECORD
        why = "Compacted topic cannot accept message without key in topic partition orders-0"
        assert error.record_errors == [(1, why), (count - 1, why)]
        assert stored(world) == []
        with_keys = [NewRecord(b"value", b"k", NOW_MS)] * count
        assert (await sent(world, build_batch(with_keys, compression=codec))).last_offset == count - 1
        assert stored(world)[0][0] is codec

    run(test, compact=True)


def test_while_very_many_records_are_looked_at_others_have_their_turn() -> None:
    async def test(world: World) -> None:
        offload = world.directory.offload
        unpacked = asyncio.Event()

        async def watched(call: Callable[[], Any]) -> Any:
            result = await offload(call)
            unpacked.set()
            return result

        world.directory.offload = watched  # type: ignore[assignment]
        future = sent(world, batch([b""] * 20_000))
        await unpacked.wait()
        turns = 0
        while not future.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 19
        assert (await future).last_offset == 19_999

    run(test, compact=True)


@pytest.mark.parametrize("codec", Compression)
def test_records_out_of_their_time_are_named(codec: Compression) -> None:
    async def test(world: World) -> None:
        times = [NOW_MS, NOW_MS - 1001, -1, NOW_MS + 500, NOW_MS + 501, NOW_MS - 1000]
        records = [NewRecord(b"value", None, time) for time in times]
        error = await refused(world, build_batch(records, compression=codec))
        assert isinstance(error, RecordsRefusedError)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        allowed = f"is out of range. The timestamp should be within [{NOW_MS - 1000}, {NOW_MS + 500}]"
        assert error.record_errors == [
            (1, f"Timestamp {NOW_MS - 1001} of message with offset 1 {allowed}"),
            (4, f"Timestamp {NOW_MS + 501} of message with offset 4 {allowed}"),
        ]
        good = [record for index, record in enumerate(records) if index not in (1, 4)]
        assert (await sent(world, build_batch(good, compression=codec))).last_offset == 3

    run(test, timestamp_before_max_ms=1000, timestamp_after_max_ms=500)


def test_records_too_far_ahead_are_named_on_a_topic_that_asks_for_nothing_special() -> None:
    async def test(world: World) -> None:
        assert not world.partition.log.config.looks_into_batches
        records = [NewRecord(b"value", None, time) for time in (NOW_MS, NOW_MS + 3_600_001)]
        error = await refused(world, build_batch(records))
        assert isinstance(error, RecordsRefusedError)
        assert [index for index, _ in error.record_errors] == [1]

    run(test)


def test_a_header_that_lies_about_its_times_is_refused_without_naming_records() -> None:
    async def test(world: World) -> None:
        data = batch([b"value"])
        data[35:43] = (NOW_MS + 10**9).to_bytes(8, "big")
        lying = replace_records(data, read_header(data).attributes, bytes(data[61:]))
        error = await refused(world, lying)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert not isinstance(error, RecordsRefusedError)

    run(test)


def test_batches_that_wait_when_the_partition_goes_are_told_and_not_appended() -> None:
    async def test(world: World) -> None:
        futures = [sent(world, batch(random_values(number, LARGE))) for number in range(3)]
        await asyncio.sleep(0)
        gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted.")
        world.partition.close(gone)
        await asyncio.wait(futures)
        assert [future.exception() for future in futures] == [gone] * 3
        await asyncio.sleep(1)
        assert world.partition.log.end_offset == 0

    run(test, compression=Compression.ZSTD)


def test_a_disk_that_fails_under_waiting_batches_is_told_to_all_of_them() -> None:
    async def test(world: World) -> None:
        futures = [sent(world, batch(random_values(number, LARGE))) for number in range(3)]
        world.disk.fail(lambda path: path.endswith(".log"), "append", StorageError, times=None)
        await asyncio.wait(futures)
        errors = [future.exception() for future in futures]
        assert all(isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR for error in errors)

    run(test, compression=Compression.ZSTD)


def test_a_batch_is_appended_even_if_its_client_is_gone() -> None:
    async def test(world: World) -> None:
        first, second = (sent(world, batch(random_values(number, LARGE))) for number in range(2))
        waiting = asyncio.get_running_loop().create_task(asyncio.wait([first]))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await second).base_offset == 10
        assert world.partition.log.end_offset == 20

    run(test, compression=Compression.ZSTD)


def test_after_the_topic_is_told_to_keep_batches_as_sent_those_before_still_come_first() -> None:
    async def test(world: World) -> None:
        large = sent(world, batch(random_values(1, LARGE)))
        world.partition.log.config = LogConfig(index_interval_bytes=0)
        small = sent(world, batch([b"behind"]))
        assert not small.done()
        assert ((await large).base_offset, (await small).base_offset) == (0, 10)
        assert stored(world)[1][0] is Compression.NONE

    run(test, compression=Compression.ZSTD)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_topic_that_validates_records_refuses_those_that_nobody_could_decode(damage: str) -> None:
    async def test(world: World) -> None:
        error = await refused(world, bytearray(DAMAGES[damage]()))
        assert error.code is ErrorCode.INVALID_RECORD
        assert stored(world) == []

    run(test, validates_records=True)


def test_a_topic_that_does_not_validate_records_takes_them() -> None:
    async def test(world: World) -> None:
        for damage in DAMAGES.values():
            assert (await sent(world, bytearray(damage()))).base_offset >= 0

    run(test)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [100, LARGE])
def test_a_topic_that_validates_records_stores_sound_ones_as_they_were_sent(codec: Compression, size: int) -> None:
    async def test(world: World) -> None:
        data = batch(random_values(size, size), codec=codec)
        appended = sent(world, data)
        assert appended.done() == (size != LARGE or codec is Compression.NONE)
        await appended
        part = read(world.partition, 0, 1 << 30)
        assert part is not None
        assert part.file.read(part.position, part.size)[21:] == data[21:]

    run(test, validates_records=True)


def test_a_small_batch_of_very_many_headers_waits_for_its_turn() -> None:
    async def test(world: World) -> None:
        headers = tuple(("", None) for _ in range(3000))
        appended = sent(world, build_batch([NewRecord(b"value", None, NOW_MS, headers)]))
        assert not appended.done()
        assert (await appended).base_offset == 0

    run(test, validates_records=True)
