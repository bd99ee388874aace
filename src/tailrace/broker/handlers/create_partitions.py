"""CreatePartitions 0 to 3: adds partitions to a topic, never removes any; validate-only changes nothing."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.events import log_change
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.cluster.placement import require_few
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import INTERNAL_TOPICS
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    wanted_by_name: dict[str, list[CreatePartitionsTopic]] = {}
    for topic in request.topics:
        wanted_by_name.setdefault(topic.name, []).append(topic)
    results = []
    added = 0
    for name, wanted in wanted_by_name.items():
        result = CreatePartitionsTopicResult(name=name)
        try:
            if len(wanted) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            present = access.find_topic(services, context, Operation.ALTER, name)
            added += max(0, wanted[0].count - (len(present.partitions) if present else 0))
            require_few(added)
            await _add(services, context, present, wanted[0], request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return CreatePartitionsResponse(results=results)


async def _add(
    services: Services,
    context: RequestContext,
    topic: TopicImage | None,
    wanted: CreatePartitionsTopic,
    validate_only: bool,
) -> None:
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if wanted.name in INTERNAL_TOPICS:
        # The number of partitions decides which one a group or transaction belongs to.
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"The number of partitions of the internal topic {wanted.name} cannot change."
        )
    assignments = None
    if wanted.assignments is not None:
        assignments = [assignment.broker_ids for assignment in wanted.assignments]

    def grown(stored: TopicImage) -> TopicImage:
        return services.metadata.plan_partitions(stored, wanted.count, assignments)

    if validate_only:
        grown(topic)
        return
    await services.metadata.alter_topic(topic, grown)
    log_change(
        context,
        "topic %s extended to %d partitions",
        wanted.name,
        wanted.count,
        topic=wanted.name,
        partitions=wanted.count,
    )


API = Api(
    CreatePartitionsRequest,
    0,
    3,
    handle,
    "Add partitions to topics, or only check whether they could be added.",
    needs=(each(Operation.ALTER, ResourceType.TOPIC),),
)
