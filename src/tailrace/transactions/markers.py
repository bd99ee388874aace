"""The port that brings the markers of a transaction to the leaders of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker


class MarkerListener(Protocol):
    """Waits for the markers of one transaction."""

    def written(self, partition: TopicPartition) -> None:
        """A partition has its marker, or no longer exists."""
        ...

    def refused(self, partition: TopicPartition, error: ErrorCode) -> None:
        """A partition will never take this marker."""
        ...


class Errand(Protocol):
    """Markers that are on their way."""

    def cancel(self) -> None:
        """Stop sending; what is under way may still arrive, and does no harm."""
        ...


class MarkerSender(Protocol):
    """Sends markers until the leader of each partition has them."""

    def send(self, marker: Marker, partitions: Iterable[TopicPartition], listener: MarkerListener) -> Errand:
        """Send a marker to some partitions, whose leaders may change meanwhile."""
        ...
