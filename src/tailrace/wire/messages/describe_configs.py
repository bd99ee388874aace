"""DescribeConfigs, versions 1 to 4, flexible from 4: the settings of topics and brokers.

Odd: null keys ask for all settings, an empty list for none. Types and documentation came with 3. Resource
types are 2 for a topic and 4 for a broker, whose name is its id.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int8, int16, int32, string

#: What our own brokers say of a topic to those who ask for these keys by name: its id on the wire, and its lineage.
TOPIC_ID_KEY = "tailrace.topic.id"
LINEAGE_KEY = "tailrace.topic.lineage"


class DescribeConfigsResource(Struct):
    """A topic or broker, and which of its settings to tell."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(Kind.STRING, nullable_from=0)


class DescribeConfigsRequest(Message):
    """Asks for settings."""

    API_KEY = ApiKey.DESCRIBE_CONFIGS
    MIN_VERSION = 1
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Struct):
    """Another key that a setting takes its value from."""

    name: str = string(since=1)
    value: str | None = string(since=1, nullable_from=0)
    source: int = int8(since=1)


class DescribeConfigsResourceResult(Struct):
    """One setting, its value and where that comes from."""

    name: str = string()
    value: str | None = string(nullable_from=0)
    read_only: bool = boolean()
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_from=0)


class DescribeConfigsResult(Struct):
    """The settings of one resource, or why they are not told."""

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
