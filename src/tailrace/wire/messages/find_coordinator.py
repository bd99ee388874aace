"""FindCoordinator, versions 0 to 6, flexible from 3: the broker that coordinates a group or a transaction.

Odd: up to version 3 a request has one key and the response one coordinator; from 4 on both have lists, in other fields.
librdkafka uses lz4 only with brokers that advertise version 0 of this API.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Message):
    """Requests coordinators."""

    API_KEY = ApiKey.FIND_COORDINATOR
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 3

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(Kind.STRING, since=4)


class Coordinator(Struct):
    """The coordinator of one key, or the error."""

    key: str = string(since=4)
    node_id: int = int32(since=4)
    host: str = string(since=4)
    port: int = int32(since=4)
    error_code: int = int16(since=4)
    error_message: str | None = string(since=4, nullable_from=4)


class FindCoordinatorResponse(Message):
    """The coordinators."""

    API_KEY = ApiKey.FIND_COORDINATOR
    MIN_VERSION = 0
    MAX_VERSION = 6
    FLEXIBLE_FROM = 3

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable_from=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)
