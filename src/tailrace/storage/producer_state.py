"""What each idempotent producer last wrote to one partition: sequence checks and duplicate detection.

Also each producer's open transaction, and the epoch of the coordinator that ended its last one. It keeps the last five
batches of every producer, which is as many as a client may have in flight. It also keeps the length of the unbroken run
of sequences that ends with them, because a batch in flight to a former leader may be sent again after any number of
later ones. Snapshots have Kafka's format with one entry per remembered batch (readers that keep one entry per producer
keep the newest), so a restart does not change the answers to retries. Everything else is rebuilt from batch headers and
markers. The number of producers is bounded: the longest idle are dropped first, but never one with an open transaction,
because its records could then never be committed or aborted. Those do not count: they would displace what is known of
the transactions that have just ended.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from heapq import nsmallest

from crc32c import crc32c

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import TRANSACTIONAL_BIT, BatchHeader, increment_sequence
from tailrace.records.markers import BUMPS_EPOCH_FROM, Marker
from tailrace.storage.aborted_transactions import AbortedTransaction
from tailrace.storage.open_transactions import UNBOUNDED, OpenTransactions
from tailrace.storage.producer_entry import NO_COORDINATOR_EPOCH, AppendedBatch, ProducerEntry, is_before

#: An eviction drops this fraction (1/16) beyond the excess, because finding idle producers means scanning all.
_MORE_EVICTED = 16
#: Maximum number of unknown producers for which the expected next sequence is kept.
_MOST_AWAITED = 1000

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6
_LARGEST_EPOCH = 2**15 - 1


class ProducerState:
    """The producers of one partition log."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        #: What holds back the last stable offset.
        self.transactions = OpenTransactions()
        # The offset of the newest marker; what was open before it is not remembered.
        self._marker_offset = NO_OFFSET
        # By id and epoch: the lowest sequence refused to an unknown producer, which must send it again.
        self._awaited: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def has_markers(self) -> bool:
        """Whether any transaction is known to have ended in the log."""
        return self._marker_offset != NO_OFFSET

    def find(self, producer_id: int) -> ProducerEntry | None:
        """A producer, if it is remembered."""
        return self._producers.get(producer_id)

    def marker_offset(self, producer_id: int) -> int:
        """The offset of a producer's last marker, or a bound above it; NO_OFFSET if there is none."""
        entry = self._producers.get(producer_id)
        return NO_OFFSET if entry is None else entry.changed_offset

    def entries(self) -> list[tuple[int, ProducerEntry]]:
        """Every remembered producer by its id."""
        return list(self._producers.items())

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Refuse a batch that is out of order or fenced; return the earlier append if it is a duplicate.

        If that append is no longer remembered, the result only says that it lies below those that are.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            if header.base_sequence != 0 or self._awaited:
                self._check_first(header)
            return None
        if header.producer_epoch != entry.epoch:
            _require_epoch(entry, header.producer_id, header.producer_epoch)
            if header.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number {header.base_sequence} for the new epoch {header.producer_epoch} "
                    f"of producer {header.producer_id}",
                )
            _require_same_kind(entry, header)
            return None
        if not entry.batches:
            # Only a marker of this epoch is known: as unknown a producer as any, except for its epoch.
            if header.base_sequence != 0 or self._awaited:
                self._check_first(header)
            _require_same_kind(entry, header)
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch
        if header.base_sequence != increment_sequence(entry.batches[-1].last_sequence, 1):
            if entry.has_written(header.base_sequence, last_sequence):
                oldest = entry.batches[0]
                return AppendedBatch(
                    header.base_sequence, last_sequence, NO_OFFSET, oldest.base_offset - 1, oldest.timestamp
                )
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {header.producer_id}: {header.base_sequence} "
                f"(incoming), {entry.batches[-1].last_sequence} (current end)",
            )
        if entry.transaction_start != NO_OFFSET:
            _require_same_kind(entry, header)
        return None

    def check_unsequenced(self, header: BatchHeader) -> None:
        """Refuse a batch without sequence numbers, which a coordinator writes for a producer, if it is fenced."""
        entry = self._producers.get(header.producer_id)
        if entry is not None:
            _require_epoch(entry, header.producer_id, header.producer_epoch)
            _require_same_kind(entry, header)

    def check_marker(self, marker: Marker) -> None:
        """Refuse a marker of an earlier epoch of its producer or of its coordinator.

        A marker may be written again, which ends nothing. But from version 2 of transactions on, a marker in the epoch
        of an open transaction belongs to an earlier one (KIP-1228), unless there is no larger epoch.
        """
        entry = self._producers.get(marker.producer_id)
        if entry is None:
            return
        _require_epoch(entry, marker.producer_id, marker.producer_epoch)
        if (
            marker.transaction_version >= BUMPS_EPOCH_FROM
            and marker.producer_epoch == entry.epoch < _LARGEST_EPOCH
            and entry.transaction_start != NO_OFFSET
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"The marker of producer {marker.producer_id} has epoch {entry.epoch}, as its open transaction has, "
                "so it ends an earlier one",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The coordinator of producer {marker.producer_id} has epoch {marker.coordinator_epoch}, but the log "
                f"has a marker of epoch {entry.coordinator_epoch}",
            )

    def refused(self, header: BatchHeader) -> None:
        """Note a refused batch that an unknown producer will retry, so that its later batches must wait for it."""
        entry = self._producers.get(header.producer_id)
        if header.producer_id < 0 or header.base_sequence < 0 or (entry is not None and entry.batches):
            return
        key, sequence = (header.producer_id, header.producer_epoch), header.base_sequence
        awaited = self._awaited.get(key)
        if awaited is None and len(self._awaited) >= _MOST_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        if awaited is None or is_before(sequence, awaited):
            self._awaited[key] = sequence

    def _check_first(self, header: BatchHeader) -> None:
        """Refuse a batch of an unknown producer that is not the first it has to send.

        Its state may have expired or been removed with its records, so it may start with any sequence (KIP-360). But if
        it starts in the middle, an earlier batch may be in flight to a former leader, and could then never be accepted.
        A producer that is refused once retries in order, starting with its first unacknowledged batch.
        """
        key, sequence = (header.producer_id, header.producer_epoch), header.base_sequence
        awaited = self._awaited.get(key)
        if awaited is None:
            if sequence != 0 and len(self._awaited) < _MOST_AWAITED:
                self._awaited[key] = sequence
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"Producer {header.producer_id} is unknown to this partition and starts with sequence {sequence}: "
                    "retry, starting with its first unacknowledged batch",
                )
        elif sequence != awaited and not is_before(sequence, awaited):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {header.producer_id}: {sequence} (incoming), {awaited} "
                "(refused before, expected next)",
            )

    def update(self, header: BatchHeader, base_offset: int, timestamp: int) -> bool:
        """Note a batch that was appended at an offset; returns whether its producer is new."""
        if self._awaited:
            self._awaited.pop((header.producer_id, header.producer_epoch), None)
        entry = self._producers.get(header.producer_id)
        is_new = entry is None
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._begin_epoch(header.producer_id, header.producer_epoch, entry)
        if header.attributes & TRANSACTIONAL_BIT and entry.transaction_start == NO_OFFSET:
            entry.transaction_start = base_offset
            self.transactions.begin(header.producer_id, base_offset)
        if header.base_sequence < 0:
            if entry.unsequenced_offset == NO_OFFSET:
                entry.changed_offset = base_offset
            entry.unsequenced_offset = base_offset + header.last_offset_delta
            entry.last_timestamp = timestamp
            return is_new
        entry.add(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                timestamp,
            )
        )
        return is_new

    def end_transaction(self, marker: Marker, offset: int, timestamp: int) -> AbortedTransaction | None:
        """Note a marker that was appended at an offset; returns the transaction that it aborts, if any."""
        entry = self._end(marker.producer_id, marker.producer_epoch, offset, timestamp)
        entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = self.transactions.end(marker.producer_id, offset)
        if first_offset is None or marker.is_commit:
            return None
        first_open = self.transactions.first_open
        return AbortedTransaction(
            marker.producer_id, first_offset, offset, offset + 1 if first_open == UNBOUNDED else first_open
        )

    def marker_is_gone(self, header: BatchHeader) -> None:
        """Note a control batch whose record compaction has removed: nothing of its transaction is left."""
        self._end(header.producer_id, header.producer_epoch, header.last_offset, header.max_timestamp)
        self.transactions.end(header.producer_id, header.last_offset)

    def _end(self, producer_id: int, epoch: int, offset: int, timestamp: int) -> ProducerEntry:
        entry = self._producers.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin_epoch(producer_id, epoch, entry)
        entry.transaction_start = NO_OFFSET
        entry.changed_offset = self._marker_offset = offset
        entry.last_timestamp = timestamp
        return entry

    def _begin_epoch(self, producer_id: int, epoch: int, former: ProducerEntry | None) -> ProducerEntry:
        """Sequences restart with an epoch; what concerns transactions stays."""
        entry = self._producers[producer_id] = ProducerEntry(epoch)
        if former is not None:
            entry.transaction_start = former.transaction_start
            entry.coordinator_epoch = former.coordinator_epoch
            entry.changed_offset = former.changed_offset
        return entry

    def below(self, offset: int) -> ProducerState | None:
        """The state as of an earlier log end; None if a producer's batches or markers before it are not remembered."""
        if self._marker_offset >= offset:
            return None
        state = ProducerState()
        state._awaited = self._awaited
        state._marker_offset = self._marker_offset
        for producer_id, entry in self._producers.items():
            kept = entry.below(offset)
            if (entry.batches and not kept.batches) or entry.changed_offset >= offset:
                return None
            state._producers[producer_id] = kept
        state.transactions = self.transactions.below(offset)
        return state

    def before(self, offset: int) -> ProducerState:
        """The state for a log that starts at an offset: the batches below it."""
        state = ProducerState()
        for producer_id, entry in self._producers.items():
            kept = entry.below(offset)
            is_only_ended = not entry.batches and entry.changed_offset < offset
            if kept.batches or is_only_ended or kept.transaction_start != NO_OFFSET:
                state._producers[producer_id] = kept
        state.transactions = self.transactions.below(offset)
        return state

    def all_ended(self) -> ProducerState:
        """The state of a later log end at which no transaction of now is open any more."""
        state = ProducerState()
        for producer_id, entry in self._producers.items():
            state._producers[producer_id] = replace(entry, transaction_start=NO_OFFSET)
        state._marker_offset = self._marker_offset
        return state

    def expire(self, before_ms: int) -> None:
        """Drop producers that wrote nothing since a time."""
        for producer_id in [
            key
            for key, entry in self._producers.items()
            if entry.last_timestamp < before_ms and entry.transaction_start == NO_OFFSET
        ]:
            del self._producers[producer_id]

    def bound(self, most: int) -> bool:
        """Drop the longest idle producers if too many have no open transaction; returns whether there were."""
        excess = len(self._producers) - len(self.transactions) - most
        if excess <= 0:
            return False
        silent = nsmallest(
            excess + most // _MORE_EVICTED,
            [
                # By offset, not by time, which clients and clocks may get wrong.
                (max(entry.last_data_offset, entry.changed_offset), producer_id)
                for producer_id, entry in self._producers.items()
                if entry.transaction_start == NO_OFFSET
            ],
        )
        for _, producer_id in silent:
            del self._producers[producer_id]
        return True

    def snapshot(self) -> bytes:
        """The whole state as a snapshot file."""
        entries = [
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                batch.timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
            for producer_id, entry in self._producers.items()
            for batch in entry.batches or (entry.no_batch(),)
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, content: bytes, end_offset: int = 0) -> ProducerState:
        """Read a snapshot of a log with this end; ValueError if it is damaged or has another version."""
        if len(content) < _SNAPSHOT_HEAD.size:
            raise ValueError("producer snapshot is truncated")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise ValueError(f"producer snapshot has version {version}; expected {_SNAPSHOT_VERSION}")
        if crc32c(memoryview(content)[_CRC_COVERS_FROM:]) != crc:
            raise ValueError("producer snapshot is corrupt (CRC does not match)")
        if len(content) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise ValueError("producer snapshot has the wrong length for its entries")
        state = cls()
        open_transactions: list[tuple[int, int]] = []
        for (
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            delta,
            timestamp,
            coordinator_epoch,
            began,
        ) in _SNAPSHOT_ENTRY.iter_unpack(memoryview(content)[_SNAPSHOT_HEAD.size :]):
            entry = state._producers.get(producer_id)
            if entry is None or entry.epoch != epoch:
                entry = state._producers[producer_id] = ProducerEntry(epoch)
                if began != NO_OFFSET:
                    open_transactions.append((began, producer_id))
            if last_sequence >= 0:
                base_sequence = increment_sequence(last_sequence, -delta)
                entry.add(AppendedBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
            else:
                entry.unsequenced_offset, entry.last_timestamp = last_offset, timestamp
            entry.transaction_start, entry.coordinator_epoch = began, coordinator_epoch
            if coordinator_epoch != NO_COORDINATOR_EPOCH or last_sequence < 0:
                entry.changed_offset = state._marker_offset = end_offset - 1
        for began, producer_id in sorted(open_transactions):
            state.transactions.begin(producer_id, began)
        return state


def _require_epoch(entry: ProducerEntry, producer_id: int, epoch: int) -> None:
    if epoch < entry.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Producer {producer_id} has epoch {epoch}, but the log has epoch {entry.epoch}",
        )


def _require_same_kind(entry: ProducerEntry, header: BatchHeader) -> None:
    """Refuse a batch outside of the transaction that its producer has open."""
    if entry.transaction_start != NO_OFFSET and not header.attributes & TRANSACTIONAL_BIT:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"Expected a transactional batch from producer {header.producer_id}, which has a transaction open since "
            f"offset {entry.transaction_start}",
        )
