"""Brings the markers of all shards on a broker to the leaders of their partitions.

Markers for one broker are sent together, and one call to it is under way at a time: while it lasts, the next markers
gather. Markers that failed before have a call of their own, so that they hold nobody up. Whatever fails is sent again,
to the partition's leader at that time, with longer pauses. A partition that the image does not show is given up only
when the image shows everything in the store: until then it may be the image that is behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from tailrace.cluster.image import NO_LEADER, ClusterImage
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker
from tailrace.runtime.tasks import Tasks
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.markers import MarkerListener

logger = logging.getLogger("tailrace.transactions")

#: A marker and the partitions to write it to.
MarkerBatch: TypeAlias = Sequence[tuple[Marker, Sequence[TopicPartition]]]

#: The most markers in one call, counting each partition.
_TOGETHER = 500
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
#: After this many failures a marker is logged, about once a minute.
_FAILURES_SAID = 60
#: The partition will never take the marker.
_REFUSED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


class MarkerCalls(Protocol):
    """Writes markers on brokers."""

    async def write(self, broker_id: int, batch: MarkerBatch) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        """Write markers to partitions that a broker leads; return the result of each.

        Raises OSError if the broker does not answer in time: then each may be written or not.
        """
        ...


class _Errand:
    """One marker for several partitions."""

    def __init__(self, marker: Marker, listener: MarkerListener) -> None:
        self.marker = marker
        self.listener = listener
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


@dataclass(slots=True, eq=False)
class _Item:
    """One marker for one partition."""

    errand: _Errand
    partition: TopicPartition
    failures: int = 0


class _Lane(NamedTuple):
    """The markers for one broker, new ones or those that have failed before."""

    broker_id: int
    has_failed: bool


class Delivery:
    """The markers on their way from one broker."""

    def __init__(
        self,
        calls: MarkerCalls,
        image: Callable[[], ClusterImage],
        call_when_current: Callable[[Callable[[], None]], None],
        tasks: Tasks,
        counters: TransactionCounters,
    ) -> None:
        self._calls = calls
        self._image = image
        self._call_when_current = call_when_current
        self._tasks = tasks
        self._counters = counters
        self._lanes: dict[_Lane, deque[_Item]] = {}

    def send(self, marker: Marker, partitions: Iterable[TopicPartition], listener: MarkerListener) -> _Errand:
        """Send a marker to some partitions, whose leaders may change meanwhile."""
        errand = _Errand(marker, listener)
        for partition in partitions:
            self._route(_Item(errand, partition))
        return errand

    def _route(self, item: _Item) -> None:
        """Queue a marker for the leader of its partition."""
        if item.errand.is_over:
            return
        leader = self._leader_of(item.partition)
        if leader is None:
            self._call_when_current(lambda: self._image_is_current(item))
        elif leader == NO_LEADER:
            self._again([item])
        else:
            lane = _Lane(leader, item.failures > 0)
            queue = self._lanes.get(lane)
            if queue is None:
                # The task begins in the next iteration of the loop, so that it finds all markers of this one.
                queue = self._lanes[lane] = deque()
                self._tasks.spawn(self._serve(lane, queue), f"send markers to broker {leader}")
            queue.append(item)

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """The leader of a partition; None if the image does not show the partition."""
        topic = self._image().topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[partition.partition].leader

    def _image_is_current(self, item: _Item) -> None:
        if item.errand.is_over:
            return
        if self._leader_of(item.partition) is not None:
            self._route(item)
            return
        logger.info("Sending no marker to %s: it was deleted", item.partition)
        item.errand.listener.written(item.partition)

    async def _serve(self, lane: _Lane, queue: deque[_Item]) -> None:
        """Send what is queued for a broker, until nothing is left."""
        while queue:
            items: list[_Item] = []
            while queue and len(items) < _TOGETHER:
                item = queue.popleft()
                if item.errand.is_over:
                    continue
                if self._leader_of(item.partition) == lane.broker_id:
                    items.append(item)
                else:
                    # It has waited for another call, perhaps to a broker that died meanwhile.
                    self._route(item)
            if items:
                await self._send(lane.broker_id, items)
        del self._lanes[lane]

    async def _send(self, broker_id: int, items: Sequence[_Item]) -> None:
        by_errand: dict[_Errand, dict[TopicPartition, _Item]] = {}
        for item in items:
            by_errand.setdefault(item.errand, {})[item.partition] = item
        batch = [(errand.marker, list(of_errand)) for errand, of_errand in by_errand.items()]
        try:
            results = await self._calls.write(broker_id, batch)
        except OSError as error:
            self._again(items, f"broker {broker_id} does not answer: {error}")
            return
        failed: list[_Item] = []
        last = ErrorCode.NONE
        for of_errand, result in zip(by_errand.values(), results, strict=True):
            for partition, item in of_errand.items():
                code = result.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                if item.errand.is_over:
                    continue
                if code is ErrorCode.NONE:
                    self._counters.markers_written += 1
                    item.errand.listener.written(partition)
                elif code in _REFUSED:
                    item.errand.listener.refused(partition, code)
                else:
                    failed.append(item)
                    last = code
        self._again(failed, f"broker {broker_id} refuses it with {last.name}")

    def _again(self, items: Sequence[_Item], reason: str = "the partition has no leader") -> None:
        """Send markers again after a pause."""
        by_pause: dict[float, list[_Item]] = {}
        for item in items:
            pause_seconds = min(_FIRST_PAUSE_SECONDS * (1 << min(item.failures, 10)), _LONGEST_PAUSE_SECONDS)
            item.failures += 1
            if item.failures % _FAILURES_SAID == 0:
                logger.warning(
                    "A transaction of producer %d cannot end in %s: %s; retrying",
                    item.errand.marker.producer_id,
                    item.partition,
                    reason,
                    extra={"topic": item.partition.topic, "repeats": "marker"},
                )
            by_pause.setdefault(pause_seconds, []).append(item)
        self._counters.markers_retried += len(items)
        loop = asyncio.get_running_loop()
        for pause_seconds, some in by_pause.items():
            loop.call_later(pause_seconds, self._route_all, some)

    def _route_all(self, items: Sequence[_Item]) -> None:
        for item in items:
            self._route(item)
