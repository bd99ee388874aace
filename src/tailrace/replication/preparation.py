"""Prepares a produced batch for its log, on topics that require more than a valid header and CRC.

Preparation recompresses for `compression.type`, requires keys on compacted topics, checks that times are within bounds,
and decodes every record if `tailrace.records.validate` is on. Small batches are prepared at once. Large ones are
decompressed and compressed in a thread (the codecs release the GIL), and their records are checked in slices between
which the event loop serves others. It knows neither partitions nor the order of appends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.batch import BatchHeader, read_header
from tailrace.records.compression import Compression, most_unpacked
from tailrace.records.recompression import repack, unpack, unpacked_limit
from tailrace.records.record_checks import RecordScan, refuse_keyless, refuse_times
from tailrace.records.record_validation import RecordValidation
from tailrace.runtime.disk import Buffer
from tailrace.runtime.long_work import LongWork
from tailrace.storage.partition_log import PartitionLog

T = TypeVar("T")

#: Batches up to this size, compressed and decompressed, are prepared in the event loop: a thread would cost more.
_SMALL_BYTES = 8 * 1024
_SMALL_UNPACKED_BYTES = 64 * 1024
#: The limit for a batch that is neither compressed nor to be compressed: only copying its bytes costs more with size.
_SMALL_PLAIN_BYTES = 256 * 1024
#: How many records and headers are checked in one slice: about half a millisecond.
_SLICE_RECORDS = 1000


class Prepared(NamedTuple):
    """A batch that is ready for its log."""

    data: memoryview | bytearray
    header: BatchHeader


class Offload(Protocol):
    """Runs a call in a thread; `Disk.offload`."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class _Plan(NamedTuple):
    """The preparation that one batch needs."""

    partition: TopicPartition
    max_message_bytes: int
    #: The codec to recompress with, and its level.
    codec: Compression | None
    level: int | None
    needs_keys: bool
    #: Whether to check that clients can decode every record.
    validates: bool
    #: The allowed range of record times; None if the header shows that all are within it.
    bounds: tuple[int, int] | None

    @property
    def looks_at_records(self) -> bool:
        return self.needs_keys or self.validates or self.bounds is not None

    def look_at(self, records: bytes, header: BatchHeader) -> RecordScan | RecordValidation:
        """A scan of unpacked records that checks what the topic requires."""
        if self.validates:
            return RecordValidation(records, header, self.bounds, needs_keys=self.needs_keys)
        return RecordScan(records, header, self.bounds)


def prepare_at_once(log: PartitionLog, data: memoryview, header: BatchHeader) -> Prepared | None:
    """Prepare a small batch; None if that is too much work for the event loop."""
    plan = _plan(log, data, header)
    if plan.codec is None and not plan.looks_at_records:
        return Prepared(data, header)
    is_plain = plan.codec is None and not header.compression
    if len(data) > (_SMALL_PLAIN_BYTES if is_plain else _SMALL_BYTES) or header.record_count > _SLICE_RECORDS:
        return None
    try:
        records = unpack(data, header, _SMALL_UNPACKED_BYTES)
    except KafkaError:
        return None  # too large or malformed: the thread determines which
    if plan.looks_at_records:
        scan = plan.look_at(bytes(records), header)
        if not scan.advance(_SLICE_RECORDS):
            return None  # very many headers
        _judge(plan, scan)
    return _repacked(plan, data, header, records)


async def prepare(
    log: PartitionLog, offload: Offload, work: LongWork, data: bytearray, header: BatchHeader
) -> Prepared:
    """Prepare a batch of any size, outside the event loop."""
    plan = _plan(log, data, header)
    if plan.codec is None and not plan.looks_at_records:
        return Prepared(data, header)
    limit = unpacked_limit(plan.max_message_bytes)
    # Reserve memory together with requests: a few bytes of many batches may decompress to gigabytes.
    async with work.holding(most_unpacked(header.compression, len(data), limit)) as held:
        records = await offload(lambda: bytes(unpack(data, header, limit)))
        held.shrink(len(records))
        if plan.looks_at_records:
            scan = plan.look_at(records, header)
            while not await work.slice(lambda: scan.advance(_SLICE_RECORDS)):
                pass
            _judge(plan, scan)
        if plan.codec is None:
            return Prepared(data, header)
        return await offload(lambda: _repacked(plan, data, header, records))


def _plan(log: PartitionLog, data: Buffer, header: BatchHeader) -> _Plan:
    config = log.config
    log.require_size(len(data))
    codec = config.compression
    bounds = log.time_bounds()
    if bounds is not None and config.is_backward_unbounded and header.max_timestamp <= bounds[1]:
        bounds = None
    return _Plan(
        log.partition,
        config.max_message_bytes,
        None if codec is None or codec == header.compression else codec,
        config.compression_level,
        config.compact,
        config.validates_records,
        bounds,
    )


def _judge(plan: _Plan, scan: RecordScan | RecordValidation) -> None:
    """Refuse a batch for what the scan found; as in Kafka, an invalid time takes precedence over a missing key."""
    if scan.outside:
        assert plan.bounds is not None
        raise refuse_times(scan.outside, plan.bounds)
    if plan.needs_keys and scan.keyless:
        raise refuse_keyless(plan.partition, scan.keyless)


def _repacked(plan: _Plan, data: memoryview | bytearray, header: BatchHeader, records: Buffer) -> Prepared:
    if plan.codec is None:
        return Prepared(data, header)
    batch = repack(data, header, records, plan.codec, plan.level)
    if len(batch) > plan.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"Message batch size is {len(batch)} bytes in append to partition {plan.partition} which exceeds the "
            f"maximum configured size of {plan.max_message_bytes}.",
        )
    return Prepared(batch, read_header(batch))
