"""SyncGroup, versions 0 to 5, flexible from 4: the leader sends the assignment, and every member receives its part.

Odd: version 3 adds static members. From 5 on both sides name the protocol type and the protocol, and a broker refuses
those that are not the group's.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, byte_string, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    """The leader's assignment for one member."""

    member_id: str = string()
    assignment: Buffer = byte_string()


class SyncGroupRequest(Message):
    """Requests the member's assignment; the leader's request has all assignments."""

    API_KEY = ApiKey.SYNC_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)
    protocol_type: str | None = string(since=5, nullable_from=5, default=None)
    protocol_name: str | None = string(since=5, nullable_from=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message):
    """The member's assignment, as the leader wrote it."""

    API_KEY = ApiKey.SYNC_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable_from=5, default=None)
    protocol_name: str | None = string(since=5, nullable_from=5, default=None)
    assignment: Buffer = byte_string()
