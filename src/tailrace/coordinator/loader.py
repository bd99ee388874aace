"""Loading a shard: everything that its partition holds, replayed in order, a slice at a time.

That is up to the log end, not the high watermark: a new leader's whole log is the truth, though it takes its followers
some time to confirm the end of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.errors import ErrorCode, KafkaError
from tailrace.records.batch import iterate_batches
from tailrace.records.record import iterate_records
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.runtime.disk import FileRange

_SLICE_BYTES = 256 * 1024
_CONTROL_BIT = 0x20


async def load(partition: Partition, epoch: int, replay: Callable[[bytes, bytes | None], None]) -> int:
    """Replay all records; how many there were. Others have their turn between slices."""
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
            if not header.attributes & _CONTROL_BIT:
                for record in iterate_records(data, header, position):
                    if record.key is not None and record.offset >= offset:
                        replay(record.key, record.value)
                        count += 1
            offset = header.next_offset
        if offset == before:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.partition} has no whole batch at {offset}")
        await asyncio.sleep(0)
