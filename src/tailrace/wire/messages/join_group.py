"""JoinGroup, versions 0 to 9, flexible from 6: a member enters a classic group or its next generation.

Odd: 0 has no rebalance timeout, where the session timeout stands in. From 4 on a member without an id is first
answered MEMBER_ID_REQUIRED with one and joins again; 5 brings static members, 7 the protocol type in the answer
and a null protocol, 8 the reason for joining, 9 an answer that tells the leader to leave the assignment as it
is. Only the leader's answer lists the members.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, byte_string, int16, int32, string


class JoinGroupRequestProtocol(Struct):
    """An assignment strategy that the member can follow, and what it says about itself under it."""

    name: str = string()
    metadata: Buffer = byte_string()


class JoinGroupRequest(Message):
    """Asks to be a member of the next generation."""

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
    """A member as the leader needs to know it."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_from=5, default=None)
    metadata: Buffer = byte_string()


class JoinGroupResponse(Message):
    """The generation that the member is in."""

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
