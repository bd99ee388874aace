"""What each idempotent producer last wrote to one partition: sequence checks and duplicate detection.

Keeps the last five batches of every producer, as many as a client may have in flight with one leader, and how long the
unbroken run of sequences is that they end: a batch that is in flight with a leader of before may come again after
any number of later ones. Snapshots are Kafka's format, one entry per remembered batch (readers that keep one entry per
producer keep the newest), so that the state after a restart answers retries of these exactly as before it. Everything
else is rebuilt from batch headers. Producers are bounded in number: of too many those go that were silent for longest,
but none that has a transaction open, for what it wrote could never be ended.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import NamedTuple

from crc32c import crc32c

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import BatchHeader, increment_sequence, sequences_between

REMEMBERED_BATCHES = 5
#: Where there are too many, so many more than that go, one in so many: finding the silent ones means looking at all.
_MORE_EVICTED = 16
#: Of so many unknown producers it is remembered what they have to send again.
_MOST_AWAITED = 1000
#: Sequences begin anew after the last: what is further behind than half of them is ahead.
_FAR_BEHIND = 1 << 30

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6


class AppendedBatch(NamedTuple):
    """One batch of a producer that is in the log."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerEntry:
    """One producer id on one partition."""

    epoch: int
    #: The last ones, oldest first; a list, as there may be many producers and a deque takes more than all else here.
    batches: list[AppendedBatch] = field(default_factory=list)
    last_timestamp: int = -1
    #: How many sequences up to the last batch followed each other, so that all of them are in the log, or were.
    run: int = 0
    #: Where the transaction that it has open began.
    transaction_start: int = NO_OFFSET

    def add(self, batch: AppendedBatch) -> None:
        """Remember one more batch."""
        if self.batches and batch.base_sequence != increment_sequence(self.batches[-1].last_sequence, 1):
            # Taken by a leader that had forgotten the producer, or what was between is compacted.
            self.run = 0
        self.run += sequences_between(batch.base_sequence, batch.last_sequence) + 1
        if len(self.batches) == REMEMBERED_BATCHES:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def has_written(self, base_sequence: int, last_sequence: int) -> bool:
        """Whether a batch was written before all that are remembered."""
        first = self.batches[0].base_sequence
        remembered = sequences_between(first, self.batches[-1].last_sequence) + 1
        behind = sequences_between(base_sequence, first)
        return sequences_between(base_sequence, last_sequence) < behind <= min(self.run - remembered, _FAR_BEHIND)

    def below(self, offset: int) -> ProducerEntry:
        """What is remembered of the batches below an offset."""
        kept = [batch for batch in self.batches if batch.last_offset < offset]
        if len(kept) == len(self.batches) or not kept:
            return ProducerEntry(self.epoch, kept, self.last_timestamp, self.run, self.transaction_start)
        cut = sequences_between(kept[-1].last_sequence, self.batches[-1].last_sequence)
        run = max(0, self.run - cut)
        return ProducerEntry(self.epoch, kept, kept[-1].timestamp, run, self.transaction_start)


class ProducerState:
    """The producers of one partition log."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        # By id and epoch: the lowest sequence that an unknown producer was refused for now.
        self._awaited: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def entries(self) -> list[tuple[int, ProducerEntry]]:
        """Every producer that is remembered, by its id."""
        return list(self._producers.items())

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Refuse a batch that is out of order or fenced; return the earlier append if it is a duplicate.

        Where that is too long ago its offset is not known, only that it lies below those that are.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            if header.base_sequence != 0 or self._awaited:
                self._check_first(header)
            return None
        if header.producer_epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {header.producer_id} has epoch {header.producer_epoch}, the log has seen {entry.epoch}",
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number {header.base_sequence} for the new epoch {header.producer_epoch} "
                    f"of producer {header.producer_id}",
                )
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch
        if entry.batches and header.base_sequence != increment_sequence(entry.batches[-1].last_sequence, 1):
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
        return None

    def refused(self, header: BatchHeader) -> None:
        """A batch was refused that its producer sends again; what it sent right behind must not be taken before."""
        if header.producer_id < 0 or header.producer_id in self._producers:
            return
        key, sequence = (header.producer_id, header.producer_epoch), header.base_sequence
        awaited = self._awaited.get(key)
        if awaited is None and len(self._awaited) >= _MOST_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        if awaited is None or _is_before(sequence, awaited):
            self._awaited[key] = sequence

    def _check_first(self, header: BatchHeader) -> None:
        """Refuse what is not the first that an unknown producer has to send.

        Its state may have expired or been removed with its records, so any sequence may be that (KIP-360). But where
        one begins in the middle, what is before may be in flight with a leader of before, unanswered: that could never
        be taken any more. A producer that is refused once sends again in order, the first without an answer first.
        """
        key, sequence = (header.producer_id, header.producer_epoch), header.base_sequence
        awaited = self._awaited.get(key)
        if awaited is None:
            if sequence != 0 and len(self._awaited) < _MOST_AWAITED:
                self._awaited[key] = sequence
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"Producer {header.producer_id} is not known here and begins with sequence {sequence}: to be sent "
                    "again, after what is not acknowledged of before",
                )
        elif sequence != awaited and not _is_before(sequence, awaited):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {header.producer_id}: {sequence} (incoming), {awaited} "
                "(refused before, to be sent again)",
            )

    def update(self, header: BatchHeader, base_offset: int, timestamp: int) -> bool:
        """A batch of an idempotent producer is in the log at an offset; whether the producer is a new one."""
        if self._awaited:
            self._awaited.pop((header.producer_id, header.producer_epoch), None)
        entry = self._producers.get(header.producer_id)
        is_new = entry is None
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._producers[header.producer_id] = ProducerEntry(header.producer_epoch)
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

    def replay(self, header: BatchHeader, most: int) -> None:
        """Take in a batch found in the log, and remember no more producers than that."""
        if header.producer_id < 0:
            return
        if header.is_control:
            entry = self._producers.get(header.producer_id)
            if entry is not None:
                entry.transaction_start = NO_OFFSET  # a marker ends it
        elif header.base_sequence >= 0 and self.update(header, header.base_offset, header.max_timestamp):
            self.bound(most)

    def below(self, offset: int) -> ProducerState | None:
        """The state as it was at an earlier log end; None where a producer's batches before it are not remembered."""
        state = ProducerState()
        state._awaited = self._awaited
        for producer_id, entry in self._producers.items():
            kept = entry.below(offset)
            if entry.batches and not kept.batches:
                return None
            state._producers[producer_id] = kept
        return state

    def before(self, offset: int) -> ProducerState:
        """What is remembered of the batches below an offset, for a log that begins there."""
        state = ProducerState()
        for producer_id, entry in self._producers.items():
            kept = entry.below(offset)
            if kept.batches:
                state._producers[producer_id] = kept
        return state

    def expire(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since a time."""
        for producer_id in [
            key
            for key, entry in self._producers.items()
            if entry.last_timestamp < before_ms and entry.transaction_start == NO_OFFSET
        ]:
            del self._producers[producer_id]

    def bound(self, most: int) -> bool:
        """Forget those that were silent for longest where there are too many; whether there were."""
        excess = len(self._producers) - most
        if excess <= 0:
            return False
        silent = nsmallest(
            excess + most // _MORE_EVICTED,
            [
                # Not by time, which clients and clocks may get wrong: the log knows in which order they wrote.
                (entry.batches[-1].last_offset if entry.batches else NO_OFFSET, producer_id)
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
                -1,
                entry.transaction_start,
            )
            for producer_id, entry in self._producers.items()
            for batch in entry.batches
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, content: bytes) -> ProducerState:
        """Read a snapshot file; ValueError where it is damaged or of another version."""
        if len(content) < _SNAPSHOT_HEAD.size:
            raise ValueError("producer snapshot is cut short")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise ValueError(f"producer snapshot has version {version}, this software knows {_SNAPSHOT_VERSION}")
        if crc32c(memoryview(content)[_CRC_COVERS_FROM:]) != crc:
            raise ValueError("producer snapshot is corrupt (CRC does not match)")
        if len(content) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise ValueError("producer snapshot has the wrong length for its entries")
        state = cls()
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, began in _SNAPSHOT_ENTRY.iter_unpack(
            memoryview(content)[_SNAPSHOT_HEAD.size :]
        ):
            base_sequence = increment_sequence(last_sequence, -delta)
            entry = state._producers.get(producer_id)
            if entry is None or entry.epoch != epoch:
                entry = state._producers[producer_id] = ProducerEntry(epoch)
            entry.add(AppendedBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
            entry.transaction_start = began
        return state


def _is_before(sequence: int, other: int) -> bool:
    return 0 < sequences_between(sequence, other) <= _FAR_BEHIND
