"""Checks a leader's batches before a follower's log takes them, so that nothing unchecked is replicated.

Batches must be whole, of magic 2 and with a valid CRC. Their offsets and leader epochs may only grow. Gaps between them
are allowed only where compaction may have left them: below the leader's committed offset.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.batch import MAGIC, BatchHeader, has_valid_crc, iterate_batches

_MAX_OFFSET = 2**63 - 1


def checked_batches(
    partition: TopicPartition, data: memoryview, end_offset: int, latest_epoch: int, committed_offset: int
) -> list[tuple[int, BatchHeader]]:
    """Every whole batch with its position; the first may start below the log end, which the log checks."""
    batches = []
    next_offset = None
    for position, header in iterate_batches(data):
        problem = _problem(header)
        if problem is None and not has_valid_crc(data, header, position):
            problem = "its CRC does not match"
        if problem is None and header.leader_epoch < latest_epoch:
            problem = f"its leader epoch is {header.leader_epoch}, after {latest_epoch}"
        if problem is None:
            expected = end_offset if next_offset is None else next_offset
            if next_offset is not None and header.base_offset < next_offset:
                problem = f"the previous batch ends at {next_offset}"
            elif header.base_offset > max(expected, committed_offset):
                problem = f"it leaves a gap from {expected} on, above the committed offset {committed_offset}"
        if problem is not None:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Batch {header.base_offset} to {header.last_offset} of {partition} from the leader is bad: {problem}",
            )
        batches.append((position, header))
        next_offset, latest_epoch = header.next_offset, header.leader_epoch
    return batches


def _problem(header: BatchHeader) -> str | None:
    if header.magic != MAGIC:
        return f"its magic is {header.magic}"
    if header.last_offset_delta < 0 or not 0 <= header.base_offset <= _MAX_OFFSET - header.last_offset_delta:
        return f"its last offset delta is {header.last_offset_delta}"
    # Compaction removes records and never adds any.
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"its record count is {header.record_count}"
    return None


def gaps_end(batches: Sequence[tuple[int, BatchHeader]], end_offset: int) -> int:
    """The end of the last gap in batches that follow a log end; -1 if there is none."""
    found, next_offset = -1, end_offset
    for _, header in batches:
        if header.base_offset > next_offset:
            found = header.base_offset
        next_offset = header.next_offset
    return found
