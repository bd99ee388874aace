"""Writes the markers that end transactions into the partitions that this broker leads.

Markers of the offsets topic go through the shard that owns the partition, because committed offsets take effect with
them. Invariant: a partition counts as ended once its marker is committed; until then its coordinator writes the marker
again, which is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tailrace.broker.services import Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.records.markers import Marker

#: How many markers are appended before other requests run.
_PER_TURN = 50
#: What a coordinator of groups refuses, in the words that a coordinator of transactions knows, as in Kafka.
_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
#: How long a request waits for all of its markers; the coordinator then writes those that are missing again. It sends a
#: broker no other new markers meanwhile, so one partition with a silent replica must not hold up the others for long.
_MOST_SECONDS = 5.0


async def write_markers(
    services: Services, marker: Marker, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Write a marker into partitions, and return the result of each once it is committed or refused."""
    written = MarkerWrites(services, marker)
    await written.append(partitions)
    return await written.results()


class MarkerWrites:
    """One marker on its way into partitions."""

    def __init__(self, services: Services, marker: Marker) -> None:
        self._services = services
        self._marker = marker
        self._results: dict[TopicPartition, ErrorCode] = {}
        self._waiting: dict[TopicPartition, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + _MOST_SECONDS

    async def append(self, partitions: Iterable[TopicPartition]) -> None:
        """Append the marker to partitions; other requests run in between."""
        for number, name in enumerate(partitions, 1):
            try:
                written = _write(self._services, self._marker, name)
            except KafkaError as error:
                self._results[name] = _code_of(error)
            else:
                self._results[name] = ErrorCode.NONE
                if written is not None:
                    self._waiting[name] = written
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)

    async def results(self) -> dict[TopicPartition, ErrorCode]:
        """The result in each partition, once it is certain or the patience is over."""
        if self._waiting:
            await asyncio.wait(self._waiting.values(), timeout=max(0.0, self._deadline - self._loop.time()))
        for name, written in self._waiting.items():
            if not written.done():
                written.cancel()
                self._results[name] = ErrorCode.REQUEST_TIMED_OUT
            elif written.cancelled():
                self._results[name] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif (refusal := written.exception()) is not None:
                self._results[name] = _code_of(refusal)
        return self._results


def _write(services: Services, marker: Marker, name: TopicPartition) -> asyncio.Future[Any] | None:
    """Append a marker; return what to wait for, or None if it is committed."""
    partition = services.partitions.find(*name)
    if name.topic == OFFSETS_TOPIC:
        shard = services.groups.shard_of_partition(name.partition)
        partition.log.producers.check_marker(marker)  # the shard does not know the version of transactions
        return shard.end_transaction(
            marker.producer_id, marker.producer_epoch, marker.is_commit, marker.coordinator_epoch
        )
    last_offset = partition.append_marker(marker).last_offset
    if partition.is_acknowledged(last_offset):
        return None
    return partition.acknowledging.wait_for(last_offset)


def _code_of(refusal: BaseException) -> ErrorCode:
    if not isinstance(refusal, KafkaError):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if refusal.code in _NOT_READY else refusal.code
