"""ApiVersions, versions 0 to 4, flexible from 3: a client's first request.

Odd: the response header is version 0 in every version, because the client does not know yet what the broker supports. A
broker that gets an unknown version answers in version 0 with UNSUPPORTED_VERSION. Version 4 differs from 3 only in that
a feature's minimum version may be 0.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message):
    """Requests the supported APIs and versions."""

    API_KEY = ApiKey.API_VERSIONS
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 3

    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


class ApiVersion(Struct):
    """The versions of one API that the broker supports."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    """A feature that the broker supports."""

    name: str = string(since=3)
    min_version: int = int16(since=3)
    max_version: int = int16(since=3)


class FinalizedFeatureKey(Struct):
    """A feature level that is finalized for the whole cluster."""

    name: str = string(since=3)
    max_version_level: int = int16(since=3)
    min_version_level: int = int16(since=3)


class ApiVersionsResponse(Message):
    """The APIs that the broker supports."""

    API_KEY = ApiKey.API_VERSIONS
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 3

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)
