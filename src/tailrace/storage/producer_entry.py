"""What a partition remembers of one producer: its last batches, its open transaction and its last marker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.model import NO_OFFSET, NO_SEQUENCE
from tailrace.records.batch import increment_sequence, sequences_between

REMEMBERED_BATCHES = 5
NO_COORDINATOR_EPOCH = -1
#: Sequences wrap around: a distance of more than half of them counts as ahead.
_FAR_BEHIND = 1 << 30


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
    #: The last batches, oldest first. A list, because a deque would take more memory than everything else here.
    batches: list[AppendedBatch] = field(default_factory=list)
    last_timestamp: int = -1
    #: The length of the unbroken run of sequences up to the last batch; all of these are, or were, in the log.
    run: int = 0
    #: The first offset of its open transaction.
    transaction_start: int = NO_OFFSET
    #: Of the coordinator that wrote its last marker.
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    #: The last offset of its newest batch without sequence numbers, which only coordinators write.
    unsequenced_offset: int = NO_OFFSET
    #: The offset of its last marker, or of the batch without sequence numbers that began its epoch: what it was before
    #: is not known. After a restart, a bound above it.
    changed_offset: int = NO_OFFSET

    @property
    def last_data_offset(self) -> int:
        """The last offset of its newest batch; -1 if none is remembered."""
        return max(self.batches[-1].last_offset, self.unsequenced_offset) if self.batches else self.unsequenced_offset

    def add(self, batch: AppendedBatch) -> None:
        """Append a batch."""
        if self.batches and batch.base_sequence != increment_sequence(self.batches[-1].last_sequence, 1):
            # A leader that had forgotten the producer accepted it, or the batches in between were compacted.
            self.run = 0
        self.run += sequences_between(batch.base_sequence, batch.last_sequence) + 1
        if len(self.batches) == REMEMBERED_BATCHES:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def no_batch(self) -> AppendedBatch:
        """What a snapshot has for a producer without sequence numbers."""
        offset = self.unsequenced_offset
        return AppendedBatch(NO_SEQUENCE, NO_SEQUENCE, offset, offset, self.last_timestamp)

    def has_written(self, base_sequence: int, last_sequence: int) -> bool:
        """Whether a batch was written before all that are remembered."""
        first = self.batches[0].base_sequence
        remembered = sequences_between(first, self.batches[-1].last_sequence) + 1
        behind = sequences_between(base_sequence, first)
        return sequences_between(base_sequence, last_sequence) < behind <= min(self.run - remembered, _FAR_BEHIND)

    def below(self, offset: int) -> ProducerEntry:
        """The entry as of the batches below an offset."""
        kept = [batch for batch in self.batches if batch.last_offset < offset]
        timestamp, run = self.last_timestamp, self.run
        if kept and len(kept) < len(self.batches):
            run = max(0, run - sequences_between(kept[-1].last_sequence, self.batches[-1].last_sequence))
            timestamp = kept[-1].timestamp
        return ProducerEntry(
            self.epoch,
            kept,
            timestamp,
            run,
            self.transaction_start if self.transaction_start < offset else NO_OFFSET,
            self.coordinator_epoch,
            min(self.unsequenced_offset, offset - 1),
            self.changed_offset,
        )


def is_before(sequence: int, other: int) -> bool:
    """Whether a sequence number comes before another one."""
    return 0 < sequences_between(sequence, other) <= _FAR_BEHIND
