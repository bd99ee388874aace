"""DeleteTopics 1 to 6: by name, or from version 6 on by name or id. Files are deleted in the background."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.events import log_change
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import ZERO_UUID
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    wanted = request.topics if context.version >= 6 else [DeleteTopicState(name=name) for name in request.topic_names]
    responses = []
    for state in wanted:
        try:
            responses.append(await _delete(services, context, state))
        except KafkaError as error:
            responses.append(
                DeletableTopicResult(
                    name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=error.message
                )
            )
    return DeleteTopicsResponse(responses=responses)


async def _delete(services: Services, context: RequestContext, state: DeleteTopicState) -> DeletableTopicResult:
    if not services.config.get_bool("delete.topic.enable"):
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled (delete.topic.enable=false).")
    if state.name is not None:
        if state.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified.")
        topic = access.find_topic(services, context, Operation.DESCRIBE, state.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{state.name}' does not exist.")
    else:
        topic = access.find_topic(services, context, None, state.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    try:
        access.require_topic(services, context, Operation.DELETE, topic.name)
    except KafkaError:
        if access.is_allowed(services, context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            state.name = topic.name
        raise
    await services.metadata.delete_topic(topic)
    log_change(context, "topic %s deleted", topic.name, topic=topic.name)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


API = Api(
    DeleteTopicsRequest,
    1,
    6,
    handle,
    "Delete topics by name or id.",
    needs=(each(Operation.DELETE, ResourceType.TOPIC), each(Operation.DESCRIBE, ResourceType.TOPIC)),
)
