"""Writes markers on brokers: on this one by a call, on others by WriteTxnMarkers requests.

One request has several markers, but never two of the same producer, because the response would not tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from tailrace.broker.network.peers import Peers
from tailrace.errors import ErrorCode, code_of
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker
from tailrace.runtime.tasks import Tasks
from tailrace.transactions.delivery import MarkerBatch
from tailrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_VERSION = 2
#: Then markers are sent again, to the leaders at that time. A broker answers earlier, as it does not wait for more than
#: 5 seconds until they are committed, and tells then which ones are.
_SECONDS = 10.0

Results: TypeAlias = Mapping[TopicPartition, ErrorCode]
WriteHere: TypeAlias = Callable[[Marker, Sequence[TopicPartition]], Awaitable[Results]]


class BrokerMarkerCalls:
    """The calls of one broker."""

    def __init__(self, broker_id: int, peers: Peers, tasks: Tasks) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._tasks = tasks
        #: Writes a marker to partitions that this broker leads; set when the broker is assembled.
        self.write_here: WriteHere = _write_nothing

    async def write(self, broker_id: int, batch: MarkerBatch) -> Sequence[Results]:
        """Write markers to partitions that a broker leads; OSError if it does not answer in time."""
        if broker_id == self._broker_id:
            return await self._write_here(batch)
        results: list[Results] = [{} for _ in batch]
        for request in _requests(batch):
            await self._ask(broker_id, [(number, *batch[number]) for number in request], results)
        return results

    async def _write_here(self, batch: MarkerBatch) -> Sequence[Results]:
        tasks = [
            self._tasks.spawn(
                _written(self.write_here(marker, partitions)), f"end a transaction of {marker.producer_id}"
            )
            for marker, partitions in batch
        ]
        done, _ = await asyncio.wait(tasks, timeout=_SECONDS)
        results: list[Results] = []
        for task, (_, partitions) in zip(tasks, batch, strict=True):
            if task in done:
                results.append(task.result())
            else:
                task.cancel()
                results.append(dict.fromkeys(partitions, ErrorCode.REQUEST_TIMED_OUT))
        return results

    async def _ask(
        self,
        broker_id: int,
        markers: Sequence[tuple[int, Marker, Sequence[TopicPartition]]],
        results: list[Results],
    ) -> None:
        request = WriteTxnMarkersRequest(markers=[_to_wire(marker, partitions) for _, marker, partitions in markers])
        response = await self._peers.call(broker_id, request, _VERSION, WriteTxnMarkersResponse, _SECONDS)
        found = {
            result.producer_id: {
                TopicPartition(topic.name, partition.partition_index): code_of(partition.error_code)
                for topic in result.topics
                for partition in topic.partitions
            }
            for result in response.markers
        }
        for number, marker, _ in markers:
            of_marker = results[number] = found.get(marker.producer_id, {})
            if ErrorCode.CLUSTER_AUTHORIZATION_FAILED in of_marker.values():
                # On a new connection, this broker can prove its identity again.
                self._peers.forget(broker_id)


async def _written(results: Awaitable[Results]) -> Results:
    return await results


async def _write_nothing(marker: Marker, partitions: Sequence[TopicPartition]) -> Results:
    return dict.fromkeys(partitions, ErrorCode.BROKER_NOT_AVAILABLE)


def _requests(batch: MarkerBatch) -> list[list[int]]:
    """The markers of each request, by their numbers in the batch."""
    requests: list[dict[int, int]] = []
    for number, (marker, _) in enumerate(batch):
        request = next((each for each in requests if marker.producer_id not in each), None)
        if request is None:
            request = {}
            requests.append(request)
        request[marker.producer_id] = number
    return [list(request.values()) for request in requests]


def _to_wire(marker: Marker, partitions: Sequence[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for name, number in partitions:
        topics.setdefault(name, []).append(number)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.is_commit,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=numbers) for name, numbers in topics.items()],
    )
