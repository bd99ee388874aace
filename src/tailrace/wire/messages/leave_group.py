"""LeaveGroup, versions 0 to 5, flexible from 4: members go, or an administrator removes them.

Odd: up to 2 one member leaves, named in a field of its own; from 3 on there is a list, where a static member may be
named by its instance id with an empty member id, and each has its own error code. 5 brings the reason.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int16, int32, string


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)
    reason: str | None = string(since=5, nullable_from=5, default=None)


class LeaveGroupRequest(Message):
    """Asks to take members out of a group."""

    API_KEY = ApiKey.LEAVE_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Struct):
    """A member that left, or why not."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_from=3)
    error_code: int = int16(since=3)


class LeaveGroupResponse(Message):
    """What became of each member."""

    API_KEY = ApiKey.LEAVE_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
