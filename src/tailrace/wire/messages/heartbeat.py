"""Heartbeat, versions 0 to 4, flexible from 4: shows that a member of a classic group is alive.

Odd: a member learns from the error REBALANCE_IN_PROGRESS that it must rejoin. Version 3 adds static members.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, int16, int32, string


class HeartbeatRequest(Message):
    """Shows that a member is alive in a generation."""

    API_KEY = ApiKey.HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)


class HeartbeatResponse(Message):
    """Whether the member may continue."""

    API_KEY = ApiKey.HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
