"""Counters of the traffic of topics, shared by the partitions of a topic.

The counters of a deleted topic are added to those of no topic, so that totals never decrease.
"""

from __future__ import annotations

from collections.abc import Iterator


class TopicTraffic:
    """The traffic of one topic since the broker started or the topic was created."""

    __slots__ = ("bytes_in", "bytes_out", "dropped_unarchived", "failed_fetches", "failed_produces", "records_in")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        #: Refused batches, and refused reads of a partition.
        self.failed_produces = 0
        self.failed_fetches = 0
        #: Records that retention removed before they were archived, as the topic's configuration allows.
        self.dropped_unarchived = 0

    def add(self, other: TopicTraffic) -> None:
        """Add the counters of another topic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The traffic of every topic with partitions on this broker."""

    def __init__(self) -> None:
        #: Counters of deleted topics, and of requests for topics that do not exist.
        self.of_no_topic = TopicTraffic()
        self._by_topic: dict[str, TopicTraffic] = {}

    def __iter__(self) -> Iterator[tuple[str, TopicTraffic]]:
        return iter(list(self._by_topic.items()))

    def of(self, topic: str) -> TopicTraffic:
        """The counters of a topic, created at zero if missing."""
        traffic = self._by_topic.get(topic)
        if traffic is None:
            traffic = self._by_topic[topic] = TopicTraffic()
        return traffic

    def find(self, topic: str | None) -> TopicTraffic:
        """The counters of a topic on this broker, or else those of no topic."""
        return self.of_no_topic if topic is None else self._by_topic.get(topic, self.of_no_topic)

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        traffic = self._by_topic.pop(topic, None)
        if traffic is not None:
            self.of_no_topic.add(traffic)

    def total(self) -> TopicTraffic:
        """All topics together, including deleted ones."""
        total = TopicTraffic()
        total.add(self.of_no_topic)
        for _, traffic in self:
            total.add(traffic)
        return total
