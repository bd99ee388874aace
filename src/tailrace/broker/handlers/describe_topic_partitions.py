"""DescribeTopicPartitions 0: topics sorted by name, as many partitions as fit on a page, and a cursor."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.partition_view import ListenerView
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import INTERNAL_TOPICS, topic_name_problem
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = services.metadata.image
    view = ListenerView(image, context.listener, services.partitions.is_cut_off)

    def operations(name: str) -> int:
        return access.authorized_operations(services, context, ResourceType.TOPIC, name)

    named = [topic.name for topic in request.topics]
    first = request.cursor or Cursor()
    # The cursor's topic must be one of the requested ones. If all topics are requested, it may have been deleted
    # meanwhile.
    if first.partition_index < 0 or (request.cursor is not None and named and first.topic_name not in named):
        return DescribeTopicPartitionsResponse(
            topics=[_unknown(name, ErrorCode.INVALID_REQUEST, operations(name)) for name in named]
        )
    room = max(1, min(request.response_partition_limit, services.config.get_int("max.request.partition.size.limit")))
    response = DescribeTopicPartitionsResponse()
    refused = []
    if not named:
        named = [topic.name for topic in access.visible_topics(services, context, image)]
    for name in sorted(dict.fromkeys(named)):
        if name < first.topic_name:
            continue
        try:
            topic = access.find_topic(services, context, Operation.DESCRIBE, name)
        except KafkaError as refusal:
            refused.append(DescribeTopicPartitionsResponseTopic(name=name, error_code=refusal.code))
            continue
        if room == 0:
            response.next_cursor = Cursor(topic_name=name)
            break
        if topic is None:
            is_legal = topic_name_problem(name) is None
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION
            response.topics.append(_unknown(name, error, operations(name)))
            continue
        start = first.partition_index if name == first.topic_name else 0
        shown = range(start, min(start + room, len(topic.partitions)))
        response.topics.append(_described(topic, shown, view, operations(name)))
        room -= len(shown)
        if shown.stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=shown.stop)
            break
    response.topics += refused
    return response


def _unknown(name: str, error: ErrorCode, operations: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=error, topic_authorized_operations=operations)


def _described(
    topic: TopicImage, shown: range, view: ListenerView, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(topic, number, view) for number in shown],
        topic_authorized_operations=operations,
    )


def _partition(topic: TopicImage, number: int, view: ListenerView) -> DescribeTopicPartitionsResponsePartition:
    state = topic.partitions[number]
    seen = view.of(topic, number)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=number,
        leader_id=seen.leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=seen.offline_replicas,
    )


API = Api(
    DescribeTopicPartitionsRequest,
    0,
    0,
    handle,
    "Describe topics and their partitions, page by page.",
    needs=(each(Operation.DESCRIBE, ResourceType.TOPIC),),
)
