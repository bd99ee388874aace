"""What compaction needs to know about transactions: which records are aborted, and when a marker may be removed.

Records of an aborted transaction are removed at once. A marker stays as long as the log has any record of its
transaction, and then until its delete horizon. Batches must be passed in log order, across segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.records.batch import BatchHeader
from tailrace.records.raw_records import find_records
from tailrace.storage.aborted_transactions import AbortedTransaction

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
_COMMIT = 1


@dataclass(slots=True)
class CleanedTransactions:
    """The transactions that are open at the current point of a cleaning."""

    #: Aborted transactions that start later in the log, in reverse order.
    _pending: list[AbortedTransaction]
    #: Open aborted transactions by producer, and whether any of their batches was seen.
    _aborted: dict[int, tuple[AbortedTransaction, bool]] = field(default_factory=dict)
    _committed: dict[int, None] = field(default_factory=dict)
    #: Aborted transactions whose records are removed but whose marker stays, for the cleaned segment's index.
    kept: list[AbortedTransaction] = field(default_factory=list)

    @classmethod
    def of(cls, transactions: Iterable[AbortedTransaction]) -> CleanedTransactions:
        """Start before the first of all transactions."""
        return cls(sorted(transactions, key=lambda transaction: transaction.first_offset, reverse=True))

    def take_kept(self) -> list[AbortedTransaction]:
        """The transactions for the index of the segment just written."""
        kept, self.kept = self.kept, []
        return sorted(kept, key=lambda transaction: transaction.last_offset)

    def saw_data(self, header: BatchHeader) -> bool:
        """Pass a batch of records; returns whether it belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is not None:
            self._aborted[header.producer_id] = (aborted[0], True)
            return True
        self._committed[header.producer_id] = None
        return False

    def saw_control(self, header: BatchHeader, body: bytes) -> bool:
        """Pass a control batch; returns whether no batch of its transaction is left that needs it."""
        self._begin_up_to(header.last_offset)
        record = next(find_records(body, header), None)
        if record is None:
            return True
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            return False
        kind = _CONTROL_KEY.unpack_from(record.key)[1]
        if kind == _ABORT:
            transaction, was_seen = self._aborted.pop(header.producer_id, (None, False))
            if transaction is not None and was_seen:
                self.kept.append(transaction)
                return False
            return True
        if kind == _COMMIT:
            was_seen = header.producer_id in self._committed
            self._committed.pop(header.producer_id, None)
            return not was_seen
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._pending and self._pending[-1].first_offset <= offset:
            transaction = self._pending.pop()
            self._aborted.setdefault(transaction.producer_id, (transaction, False))
