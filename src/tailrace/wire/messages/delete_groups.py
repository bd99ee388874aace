"""DeleteGroups, versions 0 to 2, flexible from 2: groups without members go, with their offsets.

Odd: the field of the request is called groups names.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, string


class DeleteGroupsRequest(Message):
    """Asks to delete groups."""

    API_KEY = ApiKey.DELETE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    groups_names: list[str] = array(Kind.STRING)


class DeletableGroupResult(Struct):
    """A group that was deleted, or why not."""

    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message):
    """What became of each group."""

    API_KEY = ApiKey.DELETE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
