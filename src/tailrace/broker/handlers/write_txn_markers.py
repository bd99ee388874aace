"""WriteTxnMarkers 1 to 2: ends transactions in partitions that this broker leads, with a commit or an abort.

Coordinators on other brokers send it. A client may send an abort, because that is how Kafka's tools end a transaction
that its coordinator has forgotten. A commit is the decision of a coordinator alone, so that only a peer that has proved
to be a broker may send one. Odd: the response waits until the markers are committed, and gives up after 30 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tailrace.broker.handlers.api import Api
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.broker.transaction_markers import MarkerWrites
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    is_broker = _is_broker(services, context)
    # All markers are in their logs before any of them is waited for.
    begun = [(wanted, await _begin(services, wanted, is_broker=is_broker)) for wanted in request.markers]
    return WriteTxnMarkersResponse(
        markers=[_result(wanted, None if writes is None else await writes.results()) for wanted, writes in begun]
    )


def _is_broker(services: Services, context: RequestContext) -> bool:
    try:
        require_broker(services, context)
    except KafkaError:
        return False
    return True


async def _begin(services: Services, wanted: WritableTxnMarker, *, is_broker: bool) -> MarkerWrites | None:
    """Append a marker to all its partitions; None if the peer may not send it."""
    if wanted.transaction_result and not is_broker:
        return None
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.transaction_result,
        wanted.coordinator_epoch,
        wanted.transaction_version,
    )
    writes = MarkerWrites(services, marker)
    await writes.append(_partitions_of(wanted))
    await asyncio.sleep(0)  # a request may have very many markers
    return writes


def _partitions_of(wanted: WritableTxnMarker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in wanted.topics for number in topic.partition_indexes]


def _result(
    wanted: WritableTxnMarker,
    results: Mapping[TopicPartition, ErrorCode] | None,
    otherwise: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
) -> WritableTxnMarkerResult:
    codes = results or {}
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                WritableTxnMarkerPartitionResult(
                    partition_index=number, error_code=codes.get(TopicPartition(topic.name, number), otherwise)
                )
                for number in topic.partition_indexes
            ],
        )
        for topic in wanted.topics
    ]
    return WritableTxnMarkerResult(producer_id=wanted.producer_id, topics=topics)


def _refuse(version: int, request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_result(wanted, None, error.code) for wanted in request.markers])


API = Api(
    WriteTxnMarkersRequest,
    1,
    2,
    handle,
    "End transactions in partitions. Brokers send it; clients may send aborts.",
    needs=(whole(Operation.ALTER, ResourceType.CLUSTER).unless(whole(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)),),
    refuse=_refuse,
)
