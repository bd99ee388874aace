"""What a kind of coordinator provides for each partition of its topic: state that records make, and nothing else does.

The same `replay` sees the records of the log when a shard is loaded, and those of its own operations as soon as they
are in the log. Nothing here knows what the records mean.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

from tailrace.errors import KafkaError


class Producer(NamedTuple):
    """The producer in whose name a record was written."""

    producer_id: int
    epoch: int
    #: Whether the record counts only once a marker commits the producer's transaction.
    in_transaction: bool


class Shard(Protocol):
    """The state that one partition's records make."""

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Apply one record, in the order of the log; operations of the coordinator itself have no producer."""
        ...

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        """Apply the end of a producer's transaction."""
        ...

    def begin(self) -> None:
        """Start timers and whatever else only the coordinator does: everything was replayed."""
        ...

    def end(self, reason: KafkaError) -> None:
        """Refuse everybody who waits, for a reason: another broker coordinates from now on."""
        ...


S = TypeVar("S", bound=Shard)
