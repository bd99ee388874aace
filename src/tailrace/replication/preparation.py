"""What has to happen to a produced batch before its log may have it, on topics that ask for more than header and CRC.

Another codec where `compression.type` says so, a key for every record where the topic is compacted, times within their
bounds, records that can be decoded where `tailrace.records.validate` is on. Small batches are done at once; large ones
unpack and pack in a thread (the codecs let others run meanwhile) and have their records looked at in slices, between
which the event loop serves others. It must not know partitions, nor in which order batches are appended.
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

#: A batch of at most this size, and what it may unpack to, is done in the event loop: a thread would cost more.
_SMALL_BYTES = 8 * 1024
_SMALL_UNPACKED_BYTES = 64 * 1024
#: The same for a batch that stays as it is and is not compressed: a copy of its bytes is all that grows with them.
_SMALL_PLAIN_BYTES = 256 * 1024
#: So many records and headers are looked at before others have their turn: about half a millisecond.
_SLICE_RECORDS = 1000


class Prepared(NamedTuple):
    """A batch as its log may have it."""

    data: memoryview | bytearray
    header: BatchHeader


class Offload(Protocol):
    """Runs a call in a thread; `Disk.offload`."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class _Plan(NamedTuple):
    """What is to be done with one batch."""

    partition: TopicPartition
    max_message_bytes: int
    #: The codec to change to, and its level.
    codec: Compression | None
    level: int | None
    needs_keys: bool
    #: Whether every record has to be one that clients can decode.
    validates: bool
    #: Between which times the records have to be, where their headers do not show that they are.
    bounds: tuple[int, int] | None

    @property
    def looks_at_records(self) -> bool:
        return self.needs_keys or self.validates or self.bounds is not None

    def look_at(self, records: bytes, header: BatchHeader) -> RecordScan | RecordValidation:
        """A walk over unpacked records that finds what the topic asks for."""
        if self.validates:
            return RecordValidation(records, header, self.bounds, needs_keys=self.needs_keys)
        return RecordScan(records, header, self.bounds)


def prepare_at_once(log: PartitionLog, data: memoryview, header: BatchHeader) -> Prepared | None:
    """Do what is to be done with a small batch; None where it is too much for the event loop."""
    plan = _plan(log, data, header)
    if plan.codec is None and not plan.looks_at_records:
        return Prepared(data, header)
    is_plain = plan.codec is None and not header.compression
    if len(data) > (_SMALL_PLAIN_BYTES if is_plain else _SMALL_BYTES) or header.record_count > _SLICE_RECORDS:
        return None
    try:
        records = unpack(data, header, _SMALL_UNPACKED_BYTES)
    except KafkaError:
        return None  # too large or not sound: the thread will tell which
    if plan.looks_at_records:
        scan = plan.look_at(bytes(records), header)
        if not scan.advance(_SLICE_RECORDS):
            return None  # very many headers
        _judge(plan, scan)
    return _repacked(plan, data, header, records)


async def prepare(
    log: PartitionLog, offload: Offload, work: LongWork, data: bytearray, header: BatchHeader
) -> Prepared:
    """Do what is to be done with a batch of any size, beside the event loop."""
    plan = _plan(log, data, header)
    if plan.codec is None and not plan.looks_at_records:
        return Prepared(data, header)
    limit = unpacked_limit(plan.max_message_bytes)
    # Counted with what requests hold: a few bytes of many batches may unpack to gigabytes.
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
    """Refuse a batch for what was found in it; a wrong time weighs more than a missing key, as in Kafka."""
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
