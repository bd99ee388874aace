"""CreateTopics 2 to 7: each topic is created or refused on its own; validate-only changes nothing."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.events import log_change
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.broker.upkeep.archive_access import require_readers
from tailrace.cluster.image import TopicImage
from tailrace.cluster.topic_plans import TopicPlans
from tailrace.errors import ConfigError, ErrorCode, KafkaError
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
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
    plans = services.metadata.plan_topics()
    may_create_all = access.is_allowed_on_cluster(services, context, Operation.CREATE)
    planned: dict[str, TopicImage | KafkaError] = {}
    for name, wanted in wanted_by_name.items():
        try:
            if len(wanted) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic.")
            if not may_create_all:
                access.require_topic(services, context, Operation.CREATE, name)
            planned[name] = plan(services, wanted[0], plans)
        except KafkaError as error:
            planned[name] = error
    if not request.validate_only:
        topics = [topic for topic in planned.values() if isinstance(topic, TopicImage)]
        refusals = await services.metadata.create_topics(topics)
        planned.update(refusals)
        for created in topics:
            if created.name not in refusals:
                log_created(context, created)
    return CreateTopicsResponse(
        topics=[
            _refused(name, topic) if isinstance(topic, KafkaError) else _created(services, context, topic)
            for name, topic in planned.items()
        ]
    )


def _created(services: Services, context: RequestContext, topic: TopicImage) -> CreatableTopicResult:
    try:
        access.require_topic(services, context, Operation.DESCRIBE_CONFIGS, topic.name)
    except KafkaError as refusal:
        return CreatableTopicResult(
            name=topic.name, topic_id=topic.topic_id, topic_config_error_code=refusal.code, configs=None
        )
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


def plan(services: Services, wanted: CreatableTopic, plans: TopicPlans | None = None) -> TopicImage:
    """Return the topic that a request asks for, with the broker's defaults filled in."""
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    services.metadata.require_lease()
    if wanted.assignments and (partitions != _USE_DEFAULT or replication_factor != _USE_DEFAULT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set. "
            "Both cannot be used at the same time.",
        )
    # KIP-464 allows this from version 4 on; Kafka does it in every version, and kafkajs relies on it in version 3.
    if partitions == _USE_DEFAULT:
        partitions = services.config.get_int("num.partitions")
    if replication_factor == _USE_DEFAULT:
        replication_factor = services.config.get_int("default.replication.factor")
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    try:
        services.config.validate_topic_overrides(configs)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if services.config.topic_bool("tailrace.archive.enable", configs):
        require_readers(services.metadata.image.brokers.values())
    return (plans or services.metadata.plan_topics()).plan(
        wanted.name,
        partitions,
        replication_factor,
        {entry.partition_index: entry.broker_ids for entry in wanted.assignments},
        configs,
    )


def log_created(context: RequestContext, topic: TopicImage) -> None:
    """Log the creation of a topic."""
    count = len(topic.partitions)
    log_change(context, "topic %s created with %d partitions", topic.name, count, topic=topic.name, partitions=count)


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=None)


API = Api(
    CreateTopicsRequest,
    2,
    7,
    handle,
    "Create topics, or only check whether they could be created.",
    needs=(
        each(Operation.CREATE, ResourceType.TOPIC).unless(each(Operation.CREATE, ResourceType.CLUSTER)),
        each(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ),
)
