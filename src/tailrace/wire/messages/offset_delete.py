"""OffsetDelete, version 0, not flexible: deletes a group's committed offsets.

Odd: the error of the whole request precedes the throttle time. A topic that a member still subscribes to gives
GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import NEVER, Message, Struct, array, int16, int32, string


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset is deleted."""

    partition_index: int = int32()


class OffsetDeleteRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Message):
    """Deletes a group's committed offsets."""

    API_KEY = ApiKey.OFFSET_DELETE
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    """A deleted offset, or the error."""

    partition_index: int = int32()
    error_code: int = int16()


class OffsetDeleteResponseTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Message):
    """The result for each offset."""

    API_KEY = ApiKey.OFFSET_DELETE
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
