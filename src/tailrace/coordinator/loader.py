"""Loads a shard: replays all records of its partition in order, in slices.

Replay goes to the log end offset, not to the high watermark. A new leader's whole log is the truth, even while
followers have yet to confirm the end of it.
"""

from __future__ import annotations

import asyncio

from tailrace.coordinator.shard import Producer, Shard
from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import BatchHeader, iterate_batches
from tailrace.records.markers import ends_with_commit
from tailrace.records.record import iterate_records
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.runtime.disk import FileRange

_SLICE_BYTES = 256 * 1024


async def load(partition: Partition, epoch: int, shard: Shard) -> int:
    """Replay all records and return their number; other tasks run between slices."""
    count = 0
    offset = partition.log.start_offset
    while True:
        part = partition.reader.read(offset, _SLICE_BYTES, Audience.COORDINATOR, leader_epoch=epoch).batches
        if not isinstance(part, FileRange):
            return count
        if not partition.log.is_warm(part):
            part = await partition.log.warm(part)
        data = part.file.read(part.position, part.size)
        before = offset
        for position, header in iterate_batches(memoryview(data)):
            count += _replay_batch(data, header, position, offset, shard)
            offset = header.next_offset
        if offset == before:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.partition} has no whole batch at {offset}")
        await asyncio.sleep(0)


def _replay_batch(data: bytes, header: BatchHeader, position: int, first_offset: int, shard: Shard) -> int:
    """Replay a batch's records from `first_offset` on; returns their number without markers."""
    producer = None
    if header.producer_id >= 0:
        producer = Producer(header.producer_id, header.producer_epoch, header.is_transactional)
    count = 0
    for record in iterate_records(data, header, position):
        if record.key is None or record.offset < first_offset:
            continue
        if not header.is_control:
            shard.replay(record.key, record.value, record.offset, producer)
            count += 1
        elif producer is not None and (is_commit := ends_with_commit(header, record)) is not None:
            shard.replay_marker(producer, is_commit, record.offset)
    return count
