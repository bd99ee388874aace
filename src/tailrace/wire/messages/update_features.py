"""UpdateFeatures, versions 0 to 2, all flexible: changes the finalized feature levels of the cluster.

Odd: version 0 has a flag for downgrades, later versions have three kinds of change. Version 2 has no result for each
feature, because a request takes effect as a whole or not at all.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Struct):
    """The new level of one feature."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(since=1, default=1)


class UpdateFeaturesRequest(Message):
    """Changes levels, or only validates the change."""

    API_KEY = ApiKey.UPDATE_FEATURES
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    timeout_ms: int = int32(default=60_000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdatableFeatureResult(Struct):
    """The result for one feature."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)


class UpdateFeaturesResponse(Message):
    """The result of the request."""

    API_KEY = ApiKey.UPDATE_FEATURES
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1)
