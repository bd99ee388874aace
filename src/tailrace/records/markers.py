"""Transaction markers: control batches that end a producer's transaction in a partition.

A marker is one record. Its key says whether the transaction is committed or aborted, its value which coordinator
decided that. Stored bytes are untrusted: what cannot be decoded is no marker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.errors import KafkaError
from tailrace.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tailrace.records.record import NewRecord, Record, build_batch, iterate_records
from tailrace.runtime.disk import Buffer

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT = 0
_COMMIT = 1
#: A marker decompresses to a few bytes.
_MOST_MARKER_BYTES = 4096
#: From this version of transactions on, every end of a transaction has a larger epoch (KIP-890).
BUMPS_EPOCH_FROM = 2


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    #: The version of transactions that the coordinator uses for this producer; not stored.
    transaction_version: int = 0


def build_marker(
    producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The batch that commits or aborts a producer's transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT)
    return build_batch(
        [NewRecord(_VALUE.pack(_VERSION, coordinator_epoch), key, timestamp)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
    )


def read_marker(data: Buffer, header: BatchHeader, position: int = 0) -> Marker | None:
    """The marker in a control batch; None if it has none, for example because compaction removed its record."""
    if header.producer_id < 0 or not header.is_control:
        return None
    try:
        record = next(iterate_records(data, header, position, _MOST_MARKER_BYTES), None)
    except KafkaError:
        return None
    if record is None or (is_commit := ends_with_commit(header, record)) is None:
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        return None
    return Marker(header.producer_id, header.producer_epoch, is_commit, _VALUE.unpack_from(record.value)[1])


def ends_with_commit(header: BatchHeader, record: Record) -> bool | None:
    """Whether a control record commits or aborts a transaction; None if it is not a producer's marker."""
    if header.producer_id < 0 or record.key is None or len(record.key) < _KEY.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    return kind == _COMMIT if kind in (_ABORT, _COMMIT) else None
