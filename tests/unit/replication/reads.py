"""What a reader gets of a partition's own log."""

from __future__ import annotations

from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.runtime.disk import FileRange


def read(
    partition: Partition, offset: int, max_bytes: int, leader_epoch: int = -1, audience: Audience = Audience.CLIENT
) -> FileRange | None:
    """Batches from an offset on, as a range of a file."""
    part = partition.reader.read(offset, max_bytes, audience, leader_epoch=leader_epoch).batches
    assert part is None or isinstance(part, FileRange)
    return part
