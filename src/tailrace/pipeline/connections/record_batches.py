"""Record batches for a broker: numbered, compressed, with their CRC; and split in two if one is too large.

A batch keeps its sequence numbers, however often it is sent. This module must not know partitions or connections.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tailrace.pipeline.arrow.record_encoding import batch_header
from tailrace.pipeline.connections.leaders import ProducerIdentity
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.records.batch import HEADER_BYTES, increment_sequence, read_header
from tailrace.records.compression import compress
from tailrace.records.record import NewRecord, build_batch, iterate_records


@dataclass(slots=True, eq=False)
class Batch:
    """One batch and its state."""

    header: bytes
    section: memoryview | bytes
    count: int
    queued_at: float = field(default_factory=time.monotonic)
    is_acknowledged: bool = False
    #: Whether the broker may already have it.
    is_repeated: bool = False

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return len(self.header) + len(self.section)


def new_batch(
    section: memoryview,
    count: int,
    times_ms: tuple[int, int],
    identity: ProducerIdentity,
    sequence: int,
    settings: WriteSettings,
) -> Batch:
    """Make a batch of encoded records; the first time is the base of their time deltas, the second the latest time."""
    packed = compress(settings.compression, section, settings.compression_level) if settings.compression else section
    header = batch_header(
        packed,
        count,
        attributes=settings.compression,
        timestamp_ms=times_ms[0],
        max_timestamp_ms=times_ms[1],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
    )
    return Batch(header, packed, count)


def halves(batch: Batch, identity: ProducerIdentity, settings: WriteSettings) -> tuple[Batch, Batch]:
    """Return the same records in two batches, with the same sequence numbers."""
    data = batch.header + bytes(batch.section)
    header = read_header(data)
    records = list(iterate_records(data, header))
    middle = len(records) // 2
    made = []
    for first, part in ((0, records[:middle]), (middle, records[middle:])):
        sequence = header.base_sequence
        encoded = build_batch(
            [NewRecord(each.value, each.key, each.timestamp, each.headers) for each in part],
            compression=settings.compression,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence if sequence < 0 else increment_sequence(sequence, first),
        )
        view = memoryview(encoded)
        made.append(Batch(bytes(view[:HEADER_BYTES]), view[HEADER_BYTES:], len(part), batch.queued_at))
    return made[0], made[1]
