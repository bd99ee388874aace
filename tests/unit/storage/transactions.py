"""Transactional batches and markers, and what a reader of committed records gets of a log."""

from __future__ import annotations

from typing import Any

from tailrace.records.batch import TRANSACTIONAL_BIT, iterate_batches, read_header
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.storage.aborted_transactions import AbortedTransaction
from tailrace.storage.partition_log import Appended, PartitionLog
from tests.unit.storage.logs import NOW_MS, append

NO_SEQUENCE = -1


def transactional(
    producer_id: int,
    sequence: int = NO_SEQUENCE,
    *,
    epoch: int = 0,
    count: int = 1,
    value: bytes = b"a value",
    key: bytes | None = None,
    timestamp: int = NOW_MS,
) -> bytearray:
    """A batch in a transaction; without a sequence, as a coordinator writes it for a producer."""
    return build_batch(
        [NewRecord(value, key, timestamp)] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


def end(
    log: PartitionLog,
    producer_id: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
    leader_epoch: int = 0,
) -> Appended:
    """Append the marker that ends a transaction."""
    data = log.new_marker(Marker(producer_id, epoch, commit, coordinator_epoch, version))
    return log.append(data, read_header(data), leader_epoch)


def write(log: PartitionLog, producer_id: int, sequence: int = NO_SEQUENCE, **fields: Any) -> Appended:
    """Append one record in a transaction."""
    return append(log, transactional(producer_id, sequence, **fields))


def stable_end(log: PartitionLog, high_watermark: int | None = None) -> int:
    """The last stable offset of a log."""
    high_watermark = log.end_offset if high_watermark is None else high_watermark
    return min(high_watermark, log.producers.transactions.first_unstable(high_watermark))


def aborted(log: PartitionLog) -> list[AbortedTransaction]:
    """Every aborted transaction in the indexes of a log."""
    return [segment.transaction_index[at] for segment in log.segments for at in range(len(segment.transaction_index))]


def read_committed(log: PartitionLog, max_bytes: int = 1 << 20, start_offset: int | None = None) -> list[int]:
    """The offsets that a client finds which reads committed records, as Kafka's client decides it."""
    offset = log.start_offset if start_offset is None else start_offset
    limit = stable_end(log)
    found = []
    while offset < limit and (part := log.read(offset, max_bytes, limit)) is not None:
        part, transactions = log.transactions.aborted_in(offset, part)
        waiting = list(transactions)
        assert waiting == sorted(waiting, key=lambda each: each.first_offset)
        skipped: set[int] = set()
        data = part.file.read(part.position, part.size)
        for position, header in iterate_batches(data):
            while waiting and waiting[0].first_offset <= header.last_offset:
                skipped.add(waiting.pop(0).producer_id)
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                found += [each.offset for each in iterate_records(data, header, position) if each.offset >= offset]
            next_offset = header.next_offset
        offset = next_offset
    return found
