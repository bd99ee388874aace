"""DescribeConfigs, versions 1 to 4, flexible from 4: the settings of topics and brokers.

Odd: null keys request all settings, an empty list requests none. Version 3 added types and documentation. Resource type
2 is a topic; 4 is a broker, whose name is its id.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int8, int16, int32, string

#: Keys that our brokers answer only when requested by name: a topic's id on the wire, and its lineage.
TOPIC_ID_KEY = "tailrace.topic.id"
LINEAGE_KEY = "tailrace.topic.lineage"


class DescribeConfigsResource(Struct):
    """A topic or broker, and the requested settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(Kind.STRING, nullable_from=0)


class DescribeConfigsRequest(Message):
    """Requests settings."""

    API_KEY = ApiKey.DESCRIBE_CONFIGS
    MIN_VERSION = 1
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Struct):
    """Another key from which a setting takes its value."""

    name: str = string(since=1)
    value: str | None = string(since=1, nullable_from=0)
    source: int = int8(since=1)


class DescribeConfigsResourceResult(Struct):
    """One setting, its value and the source of the value."""

    name: str = string()
    value: str | None = string(nullable_from=0)
    read_only: bool = boolean()
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_from=0)


class DescribeConfigsResult(Struct):
    """The settings of one resource, or the error."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Message):
    """The settings of each resource."""

    API_KEY = ApiKey.DESCRIBE_CONFIGS
    MIN_VERSION = 1
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
