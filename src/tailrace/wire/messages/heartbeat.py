"""Heartbeat, versions 0 to 4, flexible from 4: a member of a classic group says that it is alive.

Odd: the answer REBALANCE_IN_PROGRESS is how a member learns that it has to join again. 3 brings static members.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, int16, int32, string


class HeartbeatRequest(Message):
    """Says that a member is alive in a generation."""

    API_KEY = ApiKey.HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)


class HeartbeatResponse(Message):
    """Whether the member may go on."""

    API_KEY = ApiKey.HEARTBEAT
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
