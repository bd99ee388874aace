"""Metadata 0 to 13: brokers and topics, by name or id; creates missing topics if the client and the broker allow it.

Odd: a leader that the client cannot reach does not count: LEADER_NOT_AVAILABLE, from version 6 on LISTENER_NOT_FOUND if
it only lacks the listener. If another replica may lead instead of this broker by now, the response names that replica.
Version 0 omits offline replicas. Every broker takes requests for the controller, so without a controller the response
names this broker. The first moments of the very first broker, in which no broker is registered, are waited out: some
clients that receive an empty list of brokers ask again only minutes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

from tailrace.broker import access
from tailrace.broker.handlers import create_topics
from tailrace.broker.handlers.api import Api, encode_message
from tailrace.broker.partition_view import ListenerView
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import INTERNAL_TOPICS, TopicId, topic_name_problem
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.runtime.transport import Part
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.create_topics import CreatableTopic
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_DEFAULT = -1
_FIRST_VERSION_WITH_LISTENER_NOT_FOUND = 6
_FIRST_VERSION_WITH_NULL_NAMES = 12
_FIRST_VERSION_WITH_THROTTLE_TIME = 3
_THROTTLE_TIME_BYTES = 4
#: The interval at which to check whether a broker is registered.
_REGISTRATION_SECONDS = 0.01


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> bytes | Coroutine[Any, Any, bytes | MetadataResponse]:
    names = None if request.topics is None else tuple((topic.name, topic.topic_id) for topic in request.topics)
    asks = (request.include_cluster_authorized_operations, request.include_topic_authorized_operations)
    authorizer = services.authorizer
    rights = None if authorizer is None else authorizer.rights(context.principal, context.host)
    question = (context.version, context.listener, names, asks, rights)
    # Without a lease, leaders may change while the image does not.
    is_sure = services.partitions.holds_lease()
    known = services.metadata_cache.find(services.metadata.image, question) if is_sure else None
    return known if known is not None else _describe(services, context, request, question)


async def _describe(
    services: Services, context: RequestContext, request: MetadataRequest, question: Hashable
) -> bytes | MetadataResponse:
    while not services.metadata.image.brokers:  # noqa: ASYNC110  # for milliseconds, once in a broker's life
        await asyncio.sleep(_REGISTRATION_SECONDS)
    before = services.metadata.image
    # In version 0 an empty list means all topics; later null does.
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    view = ListenerView(before, context.listener, services.partitions.is_cut_off)
    if wants_all:
        topics = [_topic(topic, view, context.version) for topic in access.visible_topics(services, context, before)]
    else:
        topics = []
        # A topic that is named twice is described once.
        named = {(wanted.name, wanted.topic_id): wanted for wanted in request.topics or ()}
        for count, wanted in enumerate(named.values(), 1):
            topics.append(await _find(services, context, request, wanted, view))
            if count % ITEMS_PER_SLICE == 0:
                await asyncio.sleep(0)
            view = _up_to_date(services, context, view)
    image = view.image
    brokers = [
        MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in view.brokers.values()
    ]
    response = MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id if image.controller_id in view.brokers else services.broker_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = access.operations_on_cluster(services, context)
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                topic.topic_authorized_operations = access.authorized_operations(
                    services, context, ResourceType.TOPIC, topic.name
                )
    if image is not before or any(topic.error_code for topic in topics) or not services.partitions.holds_lease():
        return response
    encoded = bytes(response.encode(context.version))
    services.metadata_cache.keep(image, question, encoded)
    return encoded


def _up_to_date(services: Services, context: RequestContext, view: ListenerView) -> ListenerView:
    """Return the listener's current view, which may have changed while a topic was created."""
    image = services.metadata.image
    return view if view.image is image else ListenerView(image, context.listener, services.partitions.is_cut_off)


async def _find(
    services: Services,
    context: RequestContext,
    request: MetadataRequest,
    wanted: MetadataRequestTopic,
    view: ListenerView,
) -> MetadataResponseTopic:
    # To name a topic by id, the Java client leaves the name empty; others set it to null.
    if wanted.name is None or wanted.topic_id.int:
        return _find_by_id(services, context, wanted.topic_id, view)
    try:
        topic = access.find_topic(services, context, Operation.DESCRIBE, wanted.name)
    except KafkaError as refusal:
        return MetadataResponseTopic(error_code=refusal.code, name=wanted.name)
    if topic is not None:
        return _topic(topic, view, context.version)
    if topic_name_problem(wanted.name) is not None:
        return MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=wanted.name)
    # Before version 4, a request could not disable auto-creation.
    may_create = context.version < 4 or request.allow_auto_topic_creation
    if not may_create or not services.config.get_bool("auto.create.topics.enable"):
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=wanted.name)
    return await _auto_create(services, context, wanted.name, view)


def _find_by_id(
    services: Services, context: RequestContext, topic_id: TopicId, view: ListenerView
) -> MetadataResponseTopic:
    try:
        topic = access.find_topic(services, context, Operation.DESCRIBE, topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    except KafkaError as refusal:
        name = None if context.version >= _FIRST_VERSION_WITH_NULL_NAMES else ""
        return MetadataResponseTopic(error_code=refusal.code, name=name, topic_id=topic_id)
    return _topic(topic, view, context.version)


async def _auto_create(
    services: Services, context: RequestContext, name: str, view: ListenerView
) -> MetadataResponseTopic:
    try:
        if not access.is_allowed_on_cluster(services, context, Operation.CREATE):
            access.require_topic(services, context, Operation.CREATE, name)
        request = CreatableTopic(name=name, num_partitions=_DEFAULT, replication_factor=_DEFAULT)
        planned = create_topics.plan(services, request)
        await services.metadata.create_topic(planned)
        create_topics.log_created(context, planned)
    except KafkaError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:  # consumers and producers retry only errors about leaders
            return MetadataResponseTopic(error_code=ErrorCode.LEADER_NOT_AVAILABLE, name=name)
        # Another request may have created it meanwhile.
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            return MetadataResponseTopic(error_code=error.code, name=name)
    view = _up_to_date(services, context, view)
    topic = access.find_topic(services, context, Operation.DESCRIBE, name)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.LEADER_NOT_AVAILABLE, name=name)
    return _topic(topic, view, context.version)


def _topic(topic: TopicImage, view: ListenerView, version: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(topic, number, view, version) for number in range(len(topic.partitions))],
    )


def _partition(topic: TopicImage, number: int, view: ListenerView, version: int) -> MetadataResponsePartition:
    state = topic.partitions[number]
    leader_id, error, offline = view.of(topic, number)
    if error is ErrorCode.LISTENER_NOT_FOUND and version < _FIRST_VERSION_WITH_LISTENER_NOT_FOUND:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    partition = MetadataResponsePartition(
        error_code=error,
        partition_index=number,
        leader_id=leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=offline,
    )
    if version == 0 and offline:
        partition.replica_nodes = [replica for replica in state.replicas if replica not in offline]
        partition.isr_nodes = [replica for replica in state.isr if replica not in offline]
        partition.error_code = error or ErrorCode.REPLICA_NOT_AVAILABLE
    return partition


def _encode(version: int, response: MetadataResponse | bytes, throttle_ms: int = 0) -> list[Part]:
    """Encode a response; it may be encoded already, beginning with a throttle time of 0."""
    if isinstance(response, MetadataResponse):
        return encode_message(version, response, throttle_ms)
    if throttle_ms and version >= _FIRST_VERSION_WITH_THROTTLE_TIME:
        return [throttle_ms.to_bytes(_THROTTLE_TIME_BYTES, "big") + response[_THROTTLE_TIME_BYTES:]]
    return [response]


API = Api(
    MetadataRequest,
    0,
    13,
    handle,
    "Describe brokers, topics, partitions and their leaders; may create topics.",
    needs=(
        each(Operation.DESCRIBE, ResourceType.TOPIC),
        each(Operation.CREATE, ResourceType.TOPIC).unless(each(Operation.CREATE, ResourceType.CLUSTER)),
        each(Operation.DESCRIBE, ResourceType.CLUSTER),
    ),
    encode=_encode,
)
