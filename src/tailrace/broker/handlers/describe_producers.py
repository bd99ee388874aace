"""DescribeProducers 0: the producers that partitions remember, and the transactions that they have open."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.model import NO_SEQUENCE
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(services: Services, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(services, context, topic.name, number) for number in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(services: Services, context: RequestContext, topic: str, number: int) -> PartitionResponse:
    response = PartitionResponse(partition_index=number)
    try:
        partition = access.find_partition(services, context, Operation.READ, topic, number)
        partition.require_served()
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
        return response
    response.active_producers = [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_start,
        )
        for producer_id, entry in partition.log.producers.entries()
    ]
    return response


API = Api(
    DescribeProducersRequest,
    0,
    0,
    handle,
    "List the producers that a partition knows, and their open transactions.",
    needs=(each(Operation.READ, ResourceType.TOPIC),),
)
