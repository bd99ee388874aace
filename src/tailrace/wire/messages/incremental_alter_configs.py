"""IncrementalAlterConfigs, versions 0 and 1, flexible from 1: changes single settings of a topic or broker.

The operations are 0 to set, 1 to delete, 2 to append to a list and 3 to subtract from it.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """One setting and the operation on it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_from=0)


class AlterConfigsResource(Struct):
    """A topic or broker, and its changes."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Message):
    """Changes settings, or only validates the change."""

    API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 1

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    """The result for one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Message):
    """The result for each resource."""

    API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
    MIN_VERSION = 0
    MAX_VERSION = 1
    FLEXIBLE_FROM = 1

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
