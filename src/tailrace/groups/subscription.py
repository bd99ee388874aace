"""What the members of a classic group of type "consumer" send each other: subscriptions and assignments.

The broker passes these bytes on unread, except where it must know which topics a group reads. Owns their format: a
version, then its fields. As in Kafka, a version above the newest known one is read as the newest, because later
versions may only add fields at the end, and bytes after the fields are ignored. Anything else that does not decode is a
`WireError`: clients may send any bytes under this protocol type.
"""

from __future__ import annotations

import struct as packing
from typing import TypeVar

from tailrace.errors import WireError
from tailrace.runtime.disk import Buffer
from tailrace.wire.codec import NEVER, Kind, Message, Struct, array, byte_string, int32, string

#: The protocol type of the groups whose members use this format.
CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION = packing.Struct(">h")
#: The version that a client of Kafka 4.1 writes.
_NEWEST_VERSION = 3


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


class ConsumerProtocolSubscription(Message):
    """What a member subscribes to, and what it owned before; its assignor's user data are opaque."""

    MIN_VERSION = 0
    MAX_VERSION = _NEWEST_VERSION
    FLEXIBLE_FROM = NEVER

    topics: list[str] = array(Kind.STRING)
    user_data: Buffer | None = byte_string(nullable_from=0, default=None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1)
    generation_id: int = int32(since=2, default=-1)
    rack_id: str | None = string(since=3, nullable_from=3, default=None)


class ConsumerProtocolAssignment(Message):
    """The partitions that a member gets."""

    MIN_VERSION = 0
    MAX_VERSION = _NEWEST_VERSION
    FLEXIBLE_FROM = NEVER

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: Buffer | None = byte_string(nullable_from=0, default=None)


_M = TypeVar("_M", ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = _NEWEST_VERSION) -> bytes:
    """Encode a subscription as a member sends it when it joins."""
    return _VERSION.pack(version) + subscription.encode(version)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Decode the subscription that a member sent; user data are a view of `data`."""
    return _decode(ConsumerProtocolSubscription, "subscription", data)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = _NEWEST_VERSION) -> bytes:
    """Encode an assignment as the group's leader sends it."""
    return _VERSION.pack(version) + assignment.encode(version)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Decode the assignment that the leader sent; user data are a view of `data`."""
    return _decode(ConsumerProtocolAssignment, "assignment", data)


def _decode(message: type[_M], name: str, data: Buffer) -> _M:
    view = memoryview(data)
    if len(view) < _VERSION.size:
        raise WireError(f"the {name} of a member ends before its version")
    (version,) = _VERSION.unpack_from(view)
    if version < 0:
        raise WireError(f"Unsupported {name} version: {version}")
    return message.decode(min(version, _NEWEST_VERSION), view[_VERSION.size :])
