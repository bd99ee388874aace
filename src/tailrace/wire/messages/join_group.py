"""JoinGroup, versions 0 to 9, flexible from 6: a member joins a classic group, or its next generation.

Odd: version 0 has no rebalance timeout, so the session timeout is used instead. From 4 on a member without an id first
gets MEMBER_ID_REQUIRED with an id, and joins again. Version 5 adds static members, 7 the protocol type in the response
and a null protocol, 8 the reason for joining, 9 a response that tells the leader to keep the assignment. Only the
leader's response lists the members.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, byte_string, int16, int32, string


class JoinGroupRequestProtocol(Struct):
    """An assignment strategy that the member supports, with its metadata."""

    name: str = string()
    metadata: Buffer = byte_string()


class JoinGroupRequest(Message):
    """Joins the next generation."""

    API_KEY = ApiKey.JOIN_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 9
    FLEXIBLE_FROM = 6

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_from=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable_from=8, default=None)


class JoinGroupResponseMember(Struct):
    """A member, as the leader needs to know it."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_from=5, default=None)
    metadata: Buffer = byte_string()


class JoinGroupResponse(Message):
    """The member's generation."""

    API_KEY = ApiKey.JOIN_GROUP
    MIN_VERSION = 0
    MAX_VERSION = 9
    FLEXIBLE_FROM = 6

    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable_from=7, default=None)
    protocol_name: str | None = string(nullable_from=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
