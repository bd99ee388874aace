"""What goes in and out of topics, counted where it happens: plain numbers, shared by the partitions of a topic.

The numbers of a deleted topic go into those of all topics, which therefore never fall.
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
        #: Batches that were refused, and reads of a partition that were.
        self.failed_produces = 0
        self.failed_fetches = 0
        #: Records that retention removed before they were archived, as the topic asks for.
        self.dropped_unarchived = 0

    def add(self, other: TopicTraffic) -> None:
        """Take in what another topic counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The traffic of every topic that this broker has partitions of."""

    def __init__(self) -> None:
        #: Of topics that were deleted, and of requests for topics that never were.
        self.of_no_topic = TopicTraffic()
        self._by_topic: dict[str, TopicTraffic] = {}

    def __iter__(self) -> Iterator[tuple[str, TopicTraffic]]:
        return iter(list(self._by_topic.items()))

    def of(self, topic: str) -> TopicTraffic:
        """The numbers of a topic, which start at zero."""
        traffic = self._by_topic.get(topic)
        if traffic is None:
            traffic = self._by_topic[topic] = TopicTraffic()
        return traffic

    def find(self, topic: str | None) -> TopicTraffic:
        """The numbers of a topic if it is here, or of those that are not."""
        return self.of_no_topic if topic is None else self._by_topic.get(topic, self.of_no_topic)

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        traffic = self._by_topic.pop(topic, None)
        if traffic is not None:
            self.of_no_topic.add(traffic)

    def total(self) -> TopicTraffic:
        """All topics together, those that are gone included."""
        total = TopicTraffic()
        total.add(self.of_no_topic)
        for _, traffic in self:
            total.add(traffic)
        return total
