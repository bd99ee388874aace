"""DescribeGroups, versions 0 to 6, flexible from 5: classic groups with their members.

Odd: a member's metadata and assignment, and the protocol, are present only while the group is stable; only clients know
the format of these bytes. Up to version 5 a missing group is reported as Dead without an error, from 6 on with
GROUP_ID_NOT_FOUND and a message.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, byte_string, int16, int32, string
from tailrace.wire.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED


class DescribeGroupsRequest(Message):
    """Requests groups by name."""

    API_KEY = ApiKey.DESCRIBE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 5

    groups: list[str] = array(Kind.STRING)
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Struct):
    """One member."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_from=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: Buffer = byte_string()
    member_assignment: Buffer = byte_string()


class DescribedGroup(Struct):
    """One group, or the error."""

    error_code: int = int16()
    error_message: str | None = string(since=6, nullable_from=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=AUTHORIZED_OPERATIONS_OMITTED)


class DescribeGroupsResponse(Message):
    """The groups."""

    API_KEY = ApiKey.DESCRIBE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 5

    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)
