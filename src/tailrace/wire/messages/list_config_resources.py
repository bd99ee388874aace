"""ListConfigResources, versions 0 and 1, flexible from 0: the resources that can have their own settings.

Odd: version 0 supports only client metrics and was called ListClientMetricsResources. Version 1 has types; an empty
list requests all.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int8, int16, int32, string

#: The only type in version 0.
CLIENT_METRICS = 16


class ListConfigResourcesRequest(Message):
    """Requests the resources of some types."""

    API_KEY = ApiKey.LIST_CONFIG_RESOURCES
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    resource_types: list[int] = array(Kind.INT8, since=1)


class ConfigResource(Struct):
    """One resource."""

    resource_name: str = string()
    resource_type: int = int8(since=1, default=CLIENT_METRICS)


class ListConfigResourcesResponse(Message):
    """The resources."""

    API_KEY = ApiKey.LIST_CONFIG_RESOURCES
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
