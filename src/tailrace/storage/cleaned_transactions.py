"""What compaction has to know of transactions: whose records go with their abort, and when a marker may go.

The records of an aborted transaction go at once. A marker stays as long as any record of its transaction is in the
log, and then until its delete horizon. Batches are to be shown in the order of the log, whatever segments they are in.
Entries of a transaction index have Kafka's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.records.batch import BatchHeader
from tailrace.records.raw_records import find_records
from tailrace.runtime.disk import Disk

_ENTRY = struct.Struct(">hqqqq")
_ENTRY_VERSION = 0
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
_COMMIT = 1


class AbortedTransaction(NamedTuple):
    """One entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_aborted(disk: Disk, paths: Iterable[str]) -> list[AbortedTransaction]:
    """The aborted transactions that index files tell of, in the order of their first offsets; files may be missing."""
    found = []
    for path in paths:
        content = disk.read_file(path) or b""
        whole = len(content) - len(content) % _ENTRY.size
        found += [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(memoryview(content)[:whole])]
    return sorted(found, key=lambda transaction: (transaction.first_offset, transaction.producer_id))


def render_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """An index file of some transactions."""
    return b"".join(_ENTRY.pack(_ENTRY_VERSION, *transaction) for transaction in transactions)


@dataclass(slots=True)
class CleanedTransactions:
    """The transactions that are open at the point that a cleaning has come to."""

    #: Aborted ones whose first offset is still to come, the next one last.
    _pending: list[AbortedTransaction]
    #: Aborted ones under way by producer, and whether a batch of them was seen.
    _aborted: dict[int, tuple[AbortedTransaction, bool]] = field(default_factory=dict)
    _committed: dict[int, None] = field(default_factory=dict)
    #: Those whose records are gone now but whose marker stays, for the index of the cleaned segment.
    kept: list[AbortedTransaction] = field(default_factory=list)

    @classmethod
    def of(cls, transactions: Iterable[AbortedTransaction]) -> CleanedTransactions:
        """Begin at the first offset of all."""
        return cls(sorted(transactions, key=lambda transaction: transaction.first_offset, reverse=True))

    def take_kept(self) -> list[AbortedTransaction]:
        """The transactions to be named in the index of the segment that was just written."""
        kept, self.kept = self.kept, []
        return sorted(kept, key=lambda transaction: transaction.last_offset)

    def saw_data(self, header: BatchHeader) -> bool:
        """A batch of records was met; whether it is of an aborted transaction."""
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
        """A control batch was met; whether nothing of its transaction is left that needs it."""
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
