"""CreatePartitions, versions 0 to 3, flexible from 2: adds partitions to topics.

Odd: the count is the new total number of partitions, while the assignments are only those of the added ones. Null
assignments leave the choice to the broker. Version 3 differs from 2 only in errors about quotas.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Struct):
    """The brokers for one new partition."""

    broker_ids: list[int] = array(Kind.INT32)


class CreatePartitionsTopic(Struct):
    """A topic and its new number of partitions."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable_from=0)


class CreatePartitionsRequest(Message):
    """Adds partitions, or only validates the request."""

    API_KEY = ApiKey.CREATE_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 3
    FLEXIBLE_FROM = 2

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    """The result for one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)


class CreatePartitionsResponse(Message):
    """The result for each topic."""

    API_KEY = ApiKey.CREATE_PARTITIONS
    MIN_VERSION = 0
    MAX_VERSION = 3
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
