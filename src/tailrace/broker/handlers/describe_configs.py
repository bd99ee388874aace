"""DescribeConfigs 1 to 4: topics, this broker, defaults for all brokers, and loggers; with sources and synonyms.

Odd: a client that asks for them by name gets the id of a topic and its lineage, read at the same moment (ADR 22). They
are no settings, so no other request returns them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from tailrace.broker import access, loggers
from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, ConfigKey, ConfigSource, Given
from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.config_changes import ResourceType, broker_number
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import ALL_BROKERS, TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import topic_name_problem
from tailrace.security.needs import each
from tailrace.security.operations import Operation
from tailrace.security.operations import ResourceType as Secured
from tailrace.storage.checkpoints import encode_uuid
from tailrace.wire.messages.describe_configs import (
    LINEAGE_KEY,
    TOPIC_ID_KEY,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

#: Each resource may have a hundred keys.
_RESOURCES_PER_TURN = 20


def handle(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]:
    # A resource that is named twice is described once.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    if len(resources) > _RESOURCES_PER_TURN:
        return _describe_many(services, context, list(resources.values()), request)
    return DescribeConfigsResponse(
        results=[_result(services, context, resource, request) for resource in resources.values()]
    )


async def _describe_many(
    services: Services,
    context: RequestContext,
    resources: Sequence[DescribeConfigsResource],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse:
    results: list[DescribeConfigsResult] = []
    for first in range(0, len(resources), _RESOURCES_PER_TURN):
        some = resources[first : first + _RESOURCES_PER_TURN]
        results += [_result(services, context, resource, request) for resource in some]
        await asyncio.sleep(0)
    return DescribeConfigsResponse(results=results)


def _result(
    services: Services, context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    try:
        access.require_config(
            services, context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
        )
        result.configs = _describe(services, context, resource, request)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _describe(
    services: Services, context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        topic = _find_topic(services, context, name)
        entries = [_topic_entry(services, topic, key, request) for key in _chosen(resource, list(TOPIC_KEYS))]
        return entries + _identity(topic, resource)
    if resource.resource_type == ResourceType.BROKER:
        if name == ALL_BROKERS:
            shared = services.metadata.image.configs_of(ALL_BROKERS)
            known = [key for key in shared if key in BROKER_KEYS]
            return [_shared_entry(services, key, request) for key in _chosen(resource, known)]
        if broker_number(name, "Broker id") != services.broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {services.broker_id} or empty string, but received {name}",
            )
        return [_broker_entry(services, key, request) for key in _chosen(resource, list(BROKER_KEYS))]
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        return _loggers(services, resource)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {_type_name(resource.resource_type)}")


def _find_topic(services: Services, context: RequestContext, name: str) -> TopicImage:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = access.find_topic(services, context, Operation.DESCRIBE_CONFIGS, name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
    return topic


def _type_name(number: int) -> str:
    return ResourceType(number).name if number in ResourceType.__members__.values() else str(number)


def _chosen(resource: DescribeConfigsResource, names: list[str]) -> list[str]:
    if resource.configuration_keys is None:
        return names
    wanted = frozenset(resource.configuration_keys)
    return [name for name in names if name in wanted]


def _topic_entry(
    services: Services, topic: TopicImage, name: str, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    config = services.config
    value = config.topic_value(name, topic.configs)
    return _entry(TOPIC_KEYS[name], value, config.topic_givens(name, topic.configs), request)


def _identity(topic: TopicImage, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    if resource.configuration_keys is None:
        return []
    values = {TOPIC_ID_KEY: encode_uuid(topic.topic_id), LINEAGE_KEY: encode_uuid(topic.lineage)}
    return [
        DescribeConfigsResourceResult(
            name=key, value=values[key], read_only=True, config_source=ConfigSource.DEFAULT, documentation=None
        )
        for key in _chosen(resource, list(values))
    ]


def _broker_entry(services: Services, name: str, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    config = services.config
    return _entry(
        BROKER_KEYS[name],
        Given(name, config.text(name), config.source(name)),
        config.broker_givens(name),
        request,
    )


def _shared_entry(services: Services, name: str, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    """A key that is set for all brokers, with that value, even if another value applies to this broker."""
    shared = ConfigSource.DYNAMIC_DEFAULT_BROKER
    givens = [given for given in services.config.broker_givens(name) if given.source is shared]
    value = next((given for given in givens if given.name == name), Given(name, None, shared))
    return _entry(BROKER_KEYS[name], value, givens, request)


def _loggers(services: Services, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if broker_number(name, "Broker id") != services.broker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {services.broker_id} but received {name}"
        )
    levels = loggers.logger_levels()
    return [
        DescribeConfigsResourceResult(
            name=logger, value=levels[logger], config_source=ConfigSource.BROKER_LOGGER, documentation=None
        )
        for logger in _chosen(resource, list(levels))
    ]


def _entry(
    key: ConfigKey, value: Given, synonyms: list[Given], request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=key.name,
        value=value.value,
        read_only=key.update_mode == "read-only",
        config_source=value.source,
        is_sensitive=key.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=given.name, value=given.value, source=given.source)
            for given in (synonyms if request.include_synonyms else ())
        ],
        config_type=key.type,
        documentation=key.documentation if request.include_documentation else None,
    )


API = Api(
    DescribeConfigsRequest,
    1,
    4,
    handle,
    "Describe the configuration of topics and brokers with its sources, and the levels of loggers.",
    needs=(
        each(Operation.DESCRIBE_CONFIGS, Secured.TOPIC),
        each(Operation.DESCRIBE_CONFIGS, Secured.GROUP),
        each(Operation.DESCRIBE_CONFIGS, Secured.CLUSTER),
    ),
)
