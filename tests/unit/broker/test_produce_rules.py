"""What Produce answers where a topic asks for more than a sound batch: its codec, keys, times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.batch import iterate_batches, replace_records
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import FileRange
from tailrace.runtime.system.clock import SystemClock
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker

NO_KEY = "Compacted topic cannot accept message without key in topic partition orders-0"


def large_batch(seed: int = 1, codec: Compression = Compression.NONE) -> bytes:
    random = Random(seed)
    now = SystemClock().wall_ms()
    return bytes(build_batch([NewRecord(random.randbytes(10_000), b"k", now) for _ in range(10)], compression=codec))


def stored_codecs(broker: TestedBroker, topic: str = "orders") -> list[int]:
    part = broker.broker.partitions.find(topic, 0).reader.read(0, 1 << 30).batches
    assert isinstance(part, FileRange)
    return [header.compression for _, header in iterate_batches(part.file.read(part.position, part.size))]


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_in_the_topics_codec_in_the_order_of_their_requests(tmp_path: Path, codec: str) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", compression_type=codec)
        requests = [produce_request("orders", data=large_batch(number)) for number in range(4)]
        requests.insert(2, produce_request("orders", 3))
        answers = [broker.answer(request, 9) for request in requests]
        for answer in answers:
            assert answer is not None
            if not isinstance(answer, list):
                await answer
        number = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]
        assert stored_codecs(broker) == [number] * 5
        counts = [header.record_count for _, header in batches_of(broker)]
        assert counts == [10, 10, 3, 10, 10]

    with_broker(tmp_path, test)


def batches_of(broker: TestedBroker) -> list[tuple[int, object]]:
    part = broker.broker.partitions.find("orders", 0).reader.read(0, 1 << 30).batches
    assert isinstance(part, FileRange)
    return list(iterate_batches(part.file.read(part.position, part.size)))


def test_the_broker_may_ask_for_a_codec_and_a_topic_for_another(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.create("as-sent", compression_type="producer")
        for topic in ("orders", "as-sent"):
            assert (await broker.produce(topic, data=large_batch())).base_offset == 0
        assert stored_codecs(broker) == [Compression.LZ4]
        assert stored_codecs(broker, "as-sent") == [Compression.NONE]

    with_broker(tmp_path, test, compression_type="lz4")


def test_without_acknowledgement_a_large_batch_is_stored_and_a_bad_one_closes_the_connection(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", compression_type="zstd")
        answer = broker.answer(produce_request("orders", acks=0, data=large_batch()), 9)
        assert isinstance(answer, asyncio.Future)
        assert await answer == []
        assert stored_codecs(broker) == [Compression.ZSTD]
        assert not broker.transport.is_closed
        broken = bytes(replace_records(large_batch(), Compression.GZIP, b"\x01" + bytes(20_000)))
        answer = broker.answer(produce_request("orders", acks=0, data=broken), 9)
        assert isinstance(answer, asyncio.Future)
        await answer
        assert broker.transport.is_closed

    with_broker(tmp_path, test)


def test_a_request_given_up_by_its_client_is_stored_all_the_same(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", compression_type="zstd")
        answer = broker.answer(produce_request("orders", data=large_batch()), 9)
        assert isinstance(answer, asyncio.Future)
        await asyncio.sleep(0)
        answer.cancel()
        assert (await broker.produce(data=large_batch(2))).base_offset == 10

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("count", [3, 3000])
def test_keyless_records_are_named_as_far_as_the_version_can(tmp_path: Path, version: int, count: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", cleanup_policy="compact")
        now = SystemClock().wall_ms()
        records = [NewRecord(b"value", None if number == 1 else b"k", now) for number in range(count)]
        answer = await broker.produce(data=bytes(build_batch(records)), version=version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        named = [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors]
        assert named == ([(1, NO_KEY)] if version >= 8 else [])
        if version >= 8:
            assert answer.error_message is not None
            assert answer.error_message.startswith("One or more records have been rejected due to 1 record errors")

    with_broker(tmp_path, test)


def test_records_too_far_ahead_are_named(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        now = SystemClock().wall_ms()
        records = [NewRecord(b"value", timestamp=time) for time in (now, now + 7_200_000, now)]
        answer = await broker.produce(data=bytes(build_batch(records)))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
        (error,) = answer.record_errors
        assert error.batch_index == 1
        assert (error.batch_index_error_message or "").startswith(
            f"Timestamp {now + 7_200_000} of message with offset 1"
        )

    with_broker(tmp_path, test)


def test_the_brokers_keys_for_times_hold_for_every_topic(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        now = SystemClock().wall_ms()
        for age, code in ((0, 0), (50_000, 0), (70_000, ErrorCode.INVALID_TIMESTAMP), (-5000, 32)):
            data = bytes(build_batch([NewRecord(b"value", timestamp=now), NewRecord(b"value", timestamp=now - age)]))
            assert (await broker.produce(data=data)).error_code == code, age

    with_broker(
        tmp_path,
        test,
        log_message_timestamp_before_max_ms="60000",
        log_message_timestamp_after_max_ms="4000",
    )


def test_a_producer_may_not_claim_the_brokers_time(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", message_timestamp_type="LogAppendTime")
        batch = build_batch([NewRecord(b"value", timestamp=5)], attributes=0x08)
        assert (await broker.produce(data=bytes(batch))).error_code == ErrorCode.INVALID_TIMESTAMP
        batch = build_batch([NewRecord(b"value", timestamp=5)])
        answer = await broker.produce(data=bytes(batch))
        assert answer.error_code == 0
        assert abs(answer.log_append_time_ms - SystemClock().wall_ms()) < 60_000

    with_broker(tmp_path, test)
