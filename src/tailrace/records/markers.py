"""Transaction markers: control batches that end a producer's transaction in a partition.

A marker is one record. Its key says whether the transaction is committed or aborted, its value which coordinator
decided that.
"""

from __future__ import annotations

import struct

from tailrace.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tailrace.records.record import NewRecord, Record, build_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT = 0
_COMMIT = 1


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


def ends_with_commit(header: BatchHeader, record: Record) -> bool | None:
    """Whether a control record commits or aborts a transaction; None if it is not a producer's marker."""
    if header.producer_id < 0 or record.key is None or len(record.key) < _KEY.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    return kind == _COMMIT if kind in (_ABORT, _COMMIT) else None
