"""What a kind of coordinator provides for each partition of its topic: state built only from the partition's records.

`replay` sees the records of the log when a shard is loaded. Afterwards it sees the records of the shard's own
operations, as soon as they are in the log. Nothing here knows what the records mean.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

from tailrace.errors import KafkaError


class Producer(NamedTuple):
    """The producer that wrote a record."""

    producer_id: int
    epoch: int
    #: Whether the record takes effect only once a marker commits the producer's transaction.
    in_transaction: bool


class Shard(Protocol):
    """The state built from one partition's records."""

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Apply one record, in log order; the coordinator's own records have no producer."""
        ...

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        """Apply the end of a producer's transaction."""
        ...

    def begin(self) -> None:
        """Everything is replayed: start timers and whatever else only the coordinator does."""
        ...

    def end(self, reason: KafkaError) -> None:
        """Another broker coordinates from now on: fail every waiting request with `reason`."""
        ...


S = TypeVar("S", bound=Shard)
