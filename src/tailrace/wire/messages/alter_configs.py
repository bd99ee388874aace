"""AlterConfigs, versions 0 to 2, flexible from 2: replaces all settings of a topic or broker.

Odd: a setting that a request does not name goes back to its default. IncrementalAlterConfigs replaced it for that.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """One setting to have."""

    name: str = string()
    value: str | None = string(nullable_from=0)


class AlterConfigsResource(Struct):
    """A topic or broker, and all settings that it shall have."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message):
    """Asks to replace settings, or whether they could be."""

    API_KEY = ApiKey.ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    """What became of one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message):
    """What became of each resource."""

    API_KEY = ApiKey.ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
