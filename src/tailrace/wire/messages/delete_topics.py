"""DeleteTopics, versions 1 to 6, flexible from 4: deletes topics.

Odd: up to version 5 the request lists names. In 6 it lists structs with a name or, if that is null, an id, in a
different field. Version 5 added error messages.
"""

from __future__ import annotations

from tailrace.model import TopicId
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int16, int32, string, topic_uuid


class DeleteTopicState(Struct):
    """A topic to delete, by name or by id."""

    name: str | None = string(since=6, nullable_from=6, default=None)
    topic_id: TopicId = topic_uuid(since=6)


class DeleteTopicsRequest(Message):
    """Deletes topics."""

    API_KEY = ApiKey.DELETE_TOPICS
    MIN_VERSION = 1
    MAX_VERSION = 6
    FLEXIBLE_FROM = 4

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(Kind.STRING, until=5)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    """A deleted topic, or the error."""

    name: str | None = string(nullable_from=6)
    topic_id: TopicId = topic_uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable_from=5, default=None)


class DeleteTopicsResponse(Message):
    """The result for each topic."""

    API_KEY = ApiKey.DELETE_TOPICS
    MIN_VERSION = 1
    MAX_VERSION = 6
    FLEXIBLE_FROM = 4

    throttle_time_ms: int = int32(since=1)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
