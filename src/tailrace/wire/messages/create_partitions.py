"""CreatePartitions, versions 0 to 3, flexible from 2: makes topics have more partitions.

Odd: the count is how many the topic shall have afterwards, the assignments are those of the added ones only, and
null assignments leave the choice to the broker. 3 differs from 2 in what a quota may answer.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Struct):
    """The brokers that shall hold one new partition."""

    broker_ids: list[int] = array(Kind.INT32)


class CreatePartitionsTopic(Struct):
    """A topic and how many partitions it shall have."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable_from=0)


class CreatePartitionsRequest(Message):
    """Asks for more partitions, or whether there could be."""

    API_KEY = ApiKey.CREATE_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 3
    FLEXIBLE_FROM = 2

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    """What became of one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)


class CreatePartitionsResponse(Message):
    """What became of each topic."""

    API_KEY = ApiKey.CREATE_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 3
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
