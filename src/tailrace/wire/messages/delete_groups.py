"""DeleteGroups, versions 0 to 2, flexible from 2: deletes groups without members, with their offsets.

Odd: the field of the request is called groups names.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, string


class DeleteGroupsRequest(Message):
    """Deletes groups."""

    API_KEY = ApiKey.DELETE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    groups_names: list[str] = array(Kind.STRING)


class DeletableGroupResult(Struct):
    """A deleted group, or the error."""

    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message):
    """The result for each group."""

    API_KEY = ApiKey.DELETE_GROUPS
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
