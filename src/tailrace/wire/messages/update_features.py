"""UpdateFeatures, versions 0 to 2, all flexible: the levels that the whole cluster agrees on.

Odd: version 0 has a flag for downgrades where later ones have three kinds of change; version 2 has no answer for each
feature, because either all of a request is done or nothing.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Struct):
    """The level that one feature is to have."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(since=1, default=1)


class UpdateFeaturesRequest(Message):
    """Asks for other levels, or only whether they could be."""

    API_KEY = ApiKey.UPDATE_FEATURES
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    timeout_ms: int = int32(default=60_000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdatableFeatureResult(Struct):
    """What became of one feature."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)


class UpdateFeaturesResponse(Message):
    """What became of the request."""

    API_KEY = ApiKey.UPDATE_FEATURES
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1)
