"""CreateTopics 2 to 7: each topic is created or refused on its own; validate-only changes nothing."""

from __future__ import annotations

from tailrace.broker.events import log_change
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.errors import ConfigError, ErrorCode, KafkaError
from tailrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_USE_DEFAULT = -1


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    wanted_by_name: dict[str, list[CreatableTopic]] = {}
    for topic in request.topics:
        wanted_by_name.setdefault(topic.name, []).append(topic)
    results = []
    for name, wanted in wanted_by_name.items():
        if len(wanted) > 1:
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic.")
            results.append(_refused(name, refusal))
            continue
        try:
            results.append(await _create(services, context, wanted[0], request.validate_only))
        except KafkaError as error:
            results.append(_refused(name, error))
    return CreateTopicsResponse(topics=results)


async def _create(
    services: Services, context: RequestContext, wanted: CreatableTopic, validate_only: bool
) -> CreatableTopicResult:
    topic = plan(services, wanted)
    if not validate_only:
        await services.metadata.create_topic(topic)
        log_created(context, topic)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(name=name, value=value, config_source=source)
            for name, value, source in services.config.topic_values(topic.configs)
        ],
    )


def plan(services: Services, wanted: CreatableTopic) -> TopicImage:
    """The topic that a request asks for, with the broker's defaults filled in."""
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    if wanted.assignments and (partitions != _USE_DEFAULT or replication_factor != _USE_DEFAULT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set. "
            "Both cannot be used at the same time.",
        )
    # KIP-464 speaks of this from version 4 on; Kafka does it in every version, and kafkajs counts on it in version 3.
    if partitions == _USE_DEFAULT:
        partitions = services.config.get_int("num.partitions")
    if replication_factor == _USE_DEFAULT:
        replication_factor = services.config.get_int("default.replication.factor")
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    try:
        services.config.validate_topic_overrides(configs)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return services.metadata.plan_topic(
        wanted.name,
        partitions,
        replication_factor,
        {entry.partition_index: entry.broker_ids for entry in wanted.assignments},
        configs,
    )


def log_created(context: RequestContext, topic: TopicImage) -> None:
    """Tell the log of a new topic."""
    count = len(topic.partitions)
    log_change(context, "topic %s created with %d partitions", topic.name, count, topic=topic.name, partitions=count)


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=None)
