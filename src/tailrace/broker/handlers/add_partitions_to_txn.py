"""AddPartitionsToTxn 0 to 5: adds partitions to a transaction, or tells whether they are in it.

Odd: up to version 3 a producer names its one transaction, and either all its partitions are added or none. From 4 on
it names several transactions, because brokers send it: they lead the partitions and add or verify them for producers. A
missing partition is TRANSACTION_ABORTABLE, which clients know from version 5 on. A client that sends these versions all
the same, as @platformatic/kafka does, is checked like a producer too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.transaction_errors import producer_error
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import INTERNAL_TOPICS, TopicPartition
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import CLUSTER_NAME, Operation, ResourceType
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_FENCED_FROM = 2
_BATCHED_FROM = 4
_ABORTABLE_FROM = 5
#: How many transactions are decided, each with a write, before other requests run.
_PER_TURN = 20

#: The result for each partition.
_CodeOf: TypeAlias = Callable[[TopicPartition], ErrorCode]


async def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.version >= _BATCHED_FROM:
        return await _for_several(services, context, request.transactions)
    topics = request.v3_and_below_topics
    try:
        code_of = await _for_producer(services, context, request)
    except KafkaError as error:
        code = producer_error(error.code, context.version >= _FENCED_FROM)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, lambda _: code))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, code_of))


# --- from producers


async def _for_producer(services: Services, context: RequestContext, request: AddPartitionsToTxnRequest) -> _CodeOf:
    """Add the partitions of a producer; refuses all of them if one cannot be added."""
    shard = access.find_transactional_id(services, context, Operation.WRITE, request.v3_and_below_transactional_id)
    partitions = _partitions(request.v3_and_below_topics)
    problems = await _problems(services, context, partitions)
    if problems:
        return lambda partition: problems.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
    who = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    if len(partitions) >= ITEMS_PER_SLICE:
        shard = access.find_transactional_id(services, context, Operation.WRITE, request.v3_and_below_transactional_id)
    added = shard.add_partitions(request.v3_and_below_transactional_id, who, partitions)
    if isinstance(added, Awaitable):
        await added
    return lambda _: ErrorCode.NONE


async def _problems(
    services: Services, context: RequestContext, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """The partitions that a producer cannot add, and why."""
    problems: dict[TopicPartition, ErrorCode] = {}
    for count, partition in enumerate(partitions, 1):
        code = _problem(services, context, partition)
        if code is not ErrorCode.NONE:
            problems[partition] = code
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return problems


def _problem(services: Services, context: RequestContext, partition: TopicPartition) -> ErrorCode:
    """Why a producer cannot add a partition."""
    try:
        topic = access.find_topic(services, context, Operation.WRITE, partition.topic)
    except KafkaError as error:
        return error.code
    if partition.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION  # AddOffsetsToTxn adds what producers may write there
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


# --- from brokers


async def _for_several(
    services: Services, context: RequestContext, transactions: Sequence[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    try:
        access.require(services, context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as error:
        return AddPartitionsToTxnResponse(error_code=error.code)
    is_broker = _is_broker(services, context)
    operation = None if is_broker else Operation.WRITE
    # All are decided before the first one is waited for, so that they are committed together.
    under_way = []
    for count, wanted in enumerate(transactions, 1):
        problems = {} if is_broker else await _problems(services, context, _partitions(wanted.topics))
        under_way.append(_begin(services, context, wanted, operation, problems))
        if count % _PER_TURN == 0:
            await asyncio.sleep(0)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=wanted.transactional_id,
                topic_results=_results(wanted.topics, await _settled(begun)),
            )
            for wanted, begun in zip(transactions, under_way, strict=True)
        ]
    )


def _is_broker(services: Services, context: RequestContext) -> bool:
    try:
        require_broker(services, context)
    except KafkaError:
        return False
    return True


class _Begun(NamedTuple):
    """What was decided for one transaction, perhaps before it is committed, and how to answer it."""

    decided: Any
    code_of: Callable[[Any], _CodeOf]


def _begin(
    services: Services,
    context: RequestContext,
    wanted: AddPartitionsToTxnTransaction,
    operation: Operation | None,
    problems: Mapping[TopicPartition, ErrorCode],
) -> _Begun:
    """Add or verify the partitions of one transaction, if none of them has a problem."""
    name, partitions = wanted.transactional_id, _partitions(wanted.topics)
    who = ProducerIdentity(wanted.producer_id, wanted.producer_epoch)
    try:
        shard = access.find_transactional_id(services, context, operation, name)
        if problems:
            return _Begun(None, lambda _: lambda partition: problems.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED))
        if not wanted.verify_only:
            return _Begun(shard.add_partitions(name, who, partitions), lambda _: lambda _: ErrorCode.NONE)
        missing = ErrorCode.TRANSACTION_ABORTABLE if context.version >= _ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
        return _Begun(
            shard.verify_partitions(name, who, partitions),
            lambda found: lambda partition: ErrorCode.NONE if found[partition] else missing,
        )
    except KafkaError as error:
        return _Begun(error.code, lambda code: lambda _: code)


async def _settled(begun: _Begun) -> _CodeOf:
    try:
        decided = await begun.decided if isinstance(begun.decided, Awaitable) else begun.decided
    except KafkaError as error:
        code = error.code
        return lambda _: code
    return begun.code_of(decided)


# --- both


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _results(topics: Sequence[AddPartitionsToTxnTopic], code_of: _CodeOf) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=code_of(TopicPartition(topic.name, number))
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


API = Api(
    AddPartitionsToTxnRequest,
    0,
    5,
    handle,
    "Add partitions to transactions; from version 4 on for brokers, which add them for producers.",
    needs=(
        each(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        each(Operation.WRITE, ResourceType.TOPIC),
        each(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)
