"""ConsumerGroupHeartbeat 0 to 1: a member of the newer protocol joins, stays or leaves, and is told what it owns.

Odd: in version 0 the coordinator gives a newcomer its id, from 1 on the member chooses it. Groups know topics by their
lineages: a member keeps what it owns when the id of a topic changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import ClusterImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.assignment import Assignment, of_pairs
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.groups.consumer_group import JOINING, LEAVING_FOR_A_WHILE
from tailrace.security.needs import each, whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.consumer_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_OWN_ID_FROM = 1
_UNCHANGED = -1


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]:
    try:
        names = request.subscribed_topic_names
        for name in names or ():
            access.require_topic(services, context, Operation.DESCRIBE, name)
        _check(context.version, request)
        call = HeartbeatCall(
            member_id=request.member_id or services.groups.new_member_id(),
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=None if names is None else frozenset(names),
            regex=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=_owned(services.metadata.image, request),
            client_id=context.client_id or "",
            client_host=context.host,
        )
        result = services.groups.shard(request.group_id).consumer_heartbeat(request.group_id, call)
    except KafkaError as error:
        return _refusal(error)
    return _wait(services, result) if isinstance(result, asyncio.Future) else _response(services.metadata.image, result)


async def _wait(services: Services, result: asyncio.Future[HeartbeatResult]) -> ConsumerGroupHeartbeatResponse:
    try:
        return _response(services.metadata.image, await asyncio.shield(result))
    except KafkaError as error:
        return _refusal(error)


def _check(version: int, request: ConsumerGroupHeartbeatRequest) -> None:
    """Refuse what no member may say, in Kafka's words."""
    problem = None
    if not request.group_id:
        problem = "GroupId can't be empty."
    elif not request.member_id and (version >= _OWN_ID_FROM or request.member_epoch != JOINING):
        problem = "MemberId can't be empty."
    elif request.instance_id == "":
        problem = "InstanceId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif request.member_epoch == JOINING:
        if request.rebalance_timeout_ms == _UNCHANGED:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "TopicPartitions must be empty when (re-)joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif request.member_epoch < LEAVING_FOR_A_WHILE:
        problem = "MemberEpoch is invalid."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _owned(image: ClusterImage, request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return of_pairs(
        (image.lineage_of(item.topic_id), number) for item in request.topic_partitions for number in item.partitions
    )


def _response(image: ClusterImage, result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = AssignmentMessage(
            topic_partitions=[
                TopicPartitions(topic_id=image.topic_id_of(lineage), partitions=sorted(numbers))
                for lineage, numbers in result.assignment.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _refusal(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


API = Api(
    ConsumerGroupHeartbeatRequest,
    0,
    1,
    handle,
    "Join, stay in or leave a group of the newer protocol (KIP-848).",
    needs=(whole(Operation.READ, ResourceType.GROUP), each(Operation.DESCRIBE, ResourceType.TOPIC)),
    refuse=lambda version, request, error: _refusal(error),
)
