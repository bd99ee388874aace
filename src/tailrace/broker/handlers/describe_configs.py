"""DescribeConfigs 1 to 4: topics and this broker, with sources, synonyms and documentation."""

from __future__ import annotations

from tailrace.broker.config import BROKER_KEYS, TOPIC_KEYS
from tailrace.broker.config_types import ConfigKey
from tailrace.broker.handlers.topic_configs import ConfigSource, broker_source, topic_value
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_TOPIC = 2
_BROKER = 4


def handle(services: Services, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    results = []
    # Named twice is answered once.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for resource in resources.values():
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            result.configs = _describe(services, resource, request)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _describe(
    services: Services, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == _TOPIC:
        topic = services.metadata.image.topics.get(resource.resource_name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{resource.resource_name}' does not exist.")
        return [_topic_entry(services, topic, name, request) for name in _chosen(resource, list(TOPIC_KEYS))]
    if resource.resource_type == _BROKER:
        if resource.resource_name not in ("", str(services.broker_id)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {services.broker_id} or an empty string, "
                f"but received {resource.resource_name}",
            )
        if not resource.resource_name:  # cluster-wide defaults set at run time: there are none
            return []
        return [_broker_entry(services, name, request) for name in _chosen(resource, list(BROKER_KEYS))]
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _chosen(resource: DescribeConfigsResource, names: list[str]) -> list[str]:
    wanted = resource.configuration_keys
    return names if wanted is None else [name for name in names if name in wanted]


def _topic_entry(
    services: Services, topic: TopicImage, name: str, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    config = services.config
    value, source = topic_value(config, name, topic.configs)
    synonyms = []
    if request.include_synonyms:
        if source is ConfigSource.TOPIC:
            synonyms.append(DescribeConfigsSynonym(name=name, value=value, source=source))
        default = config.topic_default(name)
        if default.broker_key is not None:
            synonyms.append(
                DescribeConfigsSynonym(
                    name=default.broker_key, value=default.value, source=broker_source(default.source)
                )
            )
    return _entry(TOPIC_KEYS[name], value, source, synonyms, request, read_only=False)


def _broker_entry(services: Services, name: str, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key = BROKER_KEYS[name]
    value = None if key.is_sensitive else services.config.text(name)
    source = broker_source(services.config.source(name))
    synonyms = [DescribeConfigsSynonym(name=name, value=value, source=source)] if request.include_synonyms else []
    return _entry(key, value, source, synonyms, request, read_only=key.update_mode == "read-only")


def _entry(
    key: ConfigKey,
    value: str | None,
    source: ConfigSource,
    synonyms: list[DescribeConfigsSynonym],
    request: DescribeConfigsRequest,
    *,
    read_only: bool,
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=key.name,
        value=value,
        read_only=read_only,
        config_source=source,
        is_sensitive=key.is_sensitive,
        synonyms=synonyms,
        config_type=key.type,
        documentation=key.documentation if request.include_documentation else None,
    )
