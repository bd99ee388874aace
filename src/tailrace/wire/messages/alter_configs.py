"""AlterConfigs, versions 0 to 2, flexible from 2: replaces all settings of a topic or broker.

Odd: a setting that a request does not name is reset to its default. IncrementalAlterConfigs was introduced because of
that.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """One setting."""

    name: str = string()
    value: str | None = string(nullable_from=0)


class AlterConfigsResource(Struct):
    """A topic or broker, with all of its new settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message):
    """Replaces settings, or only validates the change."""

    API_KEY = ApiKey.ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    """The result for one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message):
    """The result for each resource."""

    API_KEY = ApiKey.ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
