"""CreateTopics, versions 2 to 7, flexible from 5: creates topics.

Odd: from version 4 on, -1 partitions or replicas request the broker's default. Version 5 returns the topic's
configuration; a tagged field has the error if it could not be read. Version 7 returns the topic's id. A null value of a
setting requests its default.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int8, int16, int32, string, topic_uuid


class CreatableReplicaAssignment(Struct):
    """The brokers for one partition."""

    partition_index: int = int32()
    broker_ids: list[int] = array(Kind.INT32)


class CreatableTopicConfig(Struct):
    """One setting of a topic to create."""

    name: str = string()
    value: str | None = string(nullable_from=0)


class CreatableTopic(Struct):
    """A topic to create."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Message):
    """Creates topics, or only validates the request."""

    API_KEY = ApiKey.CREATE_TOPICS
    MIN_VERSION = 2
    MAX_VERSION = 7
    FLEXIBLE_FROM = 5

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(since=1)


class CreatableTopicConfigs(Struct):
    """One setting of a created topic."""

    name: str = string(since=5)
    value: str | None = string(since=5, nullable_from=5)
    read_only: bool = boolean(since=5)
    config_source: int = int8(since=5, default=-1)
    is_sensitive: bool = boolean(since=5)


class CreatableTopicResult(Struct):
    """A created topic, or the error."""

    name: str = string()
    topic_id: TopicId = topic_uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable_from=0)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable_from=5)


class CreateTopicsResponse(Message):
    """The result for each topic."""

    API_KEY = ApiKey.CREATE_TOPICS
    MIN_VERSION = 2
    MAX_VERSION = 7
    FLEXIBLE_FROM = 5

    throttle_time_ms: int = int32(since=2)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
