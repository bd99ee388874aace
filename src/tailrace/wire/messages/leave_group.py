"""LeaveGroup, versions 0 to 5, flexible from 4: members leave, or an administrator removes them.

Odd: up to version 2 one member leaves, named in its own field. From 3 on there is a list, with an error code for each
member; a static member may be named by its instance id with an empty member id. Version 5 adds the reason.
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
    """Removes members from a group."""

    API_KEY = ApiKey.LEAVE_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Struct):
    """A removed member, or the error."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_from=3)
    error_code: int = int16(since=3)


class LeaveGroupResponse(Message):
    """The result for each member."""

    API_KEY = ApiKey.LEAVE_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
