"""ListGroups, versions 0 to 5, flexible from 3: the groups that a broker coordinates.

Odd: version 4 filters by state and returns it, 5 does the same with the type, such as classic and consumer. An empty
filter matches all. A broker knows only its own groups, so a client asks every broker.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, string


class ListGroupsRequest(Message):
    """Requests the groups of a broker."""

    API_KEY = ApiKey.LIST_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    states_filter: list[str] = array(Kind.STRING, since=4)
    types_filter: list[str] = array(Kind.STRING, since=5)


class ListedGroup(Struct):
    """One group."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class ListGroupsResponse(Message):
    """The groups of this broker."""

    API_KEY = ApiKey.LIST_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 5
    FLEXIBLE_FROM = 3

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
