"""The records of the internal topic `__consumer_offsets`, byte for byte as Kafka 4.3 writes and reads them.

Owns one description for each kind of key and value and their two-byte prefix: a key begins with its type, a value with
its version. Keys are never flexible, so that compaction finds the same bytes in every release. Bytes that are not such
a record are a `WireError`. A key of an unknown type decodes to None, because Kafka also keeps share and streams groups
in this topic. This module must not know what the records mean together.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias, overload

from tailrace.errors import ErrorCode, KafkaError, WireError
from tailrace.model import NO_LEADER_EPOCH, NO_TIMESTAMP, Lineage
from tailrace.runtime.disk import Buffer
from tailrace.wire.codec import (
    NEVER,
    Kind,
    Message,
    Struct,
    array,
    byte_string,
    int8,
    int32,
    int64,
    lineage_uuid,
    optional_struct,
    string,
)
from tailrace.wire.primitives import encode_uvarint

_PREFIX = packing.Struct(">h")
#: A record's text has at most 32,767 bytes, and the coordinator makes a classic member's id longer than its client's.
_MOST_TEXT_BYTES = 32_000
# Commit records have their own encoder: they outnumber all others together.
_pack_key_start = packing.Struct(">hh").pack
_pack_length = packing.Struct(">h").pack
_pack_partition = packing.Struct(">i").pack
_pack_value_start = packing.Struct(">hqi").pack
# An empty string, the timestamp, and one tagged field: the topic's id.
_pack_value_without_metadata = packing.Struct(">hqibqbbb16s").pack
_pack_value_end = packing.Struct(">qbbb16s").pack
_pack_value_end_without_id = packing.Struct(">qx").pack
_ID_BYTES = 16
#: The version of a committed offset's value; only an expiry needs an older one.
_COMMITTED_VERSION = 4


class RecordType(IntEnum):
    """The number that a key begins with, for the groups that are known here."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16


# --- offsets and classic groups


class OffsetCommitKey(Message):
    """A partition with a committed offset; the legacy type has the same fields."""

    API_KEY = RecordType.OFFSET_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message):
    """A committed offset. Only version 1 has an expiry, and only version 4 the topic's id."""

    API_KEY = RecordType.OFFSET_COMMIT
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=NO_LEADER_EPOCH)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=NO_TIMESTAMP)
    #: The lineage.
    topic_id: Lineage = lineage_uuid(since=4, tag=0)


class GroupMetadataKey(Message):
    """A classic group."""

    API_KEY = RecordType.GROUP_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group: str = string()


class GroupMetadataMember(Struct):
    """A member of a classic group, with its subscription and assignment as the client encoded them."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_from=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1)
    session_timeout: int = int32()
    subscription: Buffer = byte_string()
    assignment: Buffer = byte_string()


class GroupMetadataValue(Message):
    """One generation of a classic group; a group without members is empty."""

    API_KEY = RecordType.GROUP_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 4
    FLEXIBLE_FROM = 4

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_from=0)
    leader: str | None = string(nullable_from=0)
    current_state_timestamp: int = int64(since=2, default=NO_TIMESTAMP)
    members: list[GroupMetadataMember] = array(GroupMetadataMember)


# --- groups of the newer protocol (KIP-848)


class ConsumerGroupMetadataKey(Message):
    """A group of the newer protocol."""

    API_KEY = RecordType.CONSUMER_GROUP_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()


class ConsumerGroupMetadataValue(Message):
    """The group's epoch, and a hash of the topics it was computed for: another hash requires another assignment."""

    API_KEY = RecordType.CONSUMER_GROUP_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message):
    """The topics that a group saw. Kafka 4.1 only deletes these: the hash of the group replaced them."""

    API_KEY = RecordType.CONSUMER_GROUP_PARTITION_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()


class PartitionMetadata(Struct):
    """The racks of one partition."""

    partition: int = int32()
    racks: list[str] = array(Kind.STRING)


class TopicMetadata(Struct):
    """A topic as a group saw it."""

    #: The lineage.
    topic_id: Lineage = lineage_uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message):
    """The topics that a group saw, as releases before 4.1 wrote them."""

    API_KEY = RecordType.CONSUMER_GROUP_PARTITION_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Message):
    """A member: the key of what it says of itself."""

    API_KEY = RecordType.CONSUMER_GROUP_MEMBER_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    """An assignment strategy of a member that speaks the classic protocol, and its subscription under it."""

    name: str = string()
    metadata: Buffer = byte_string()


class ClassicMemberMetadata(Struct):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message):
    """A member's properties and subscription."""

    API_KEY = RecordType.CONSUMER_GROUP_MEMBER_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    instance_id: str | None = string(nullable_from=0)
    rack_id: str | None = string(nullable_from=0)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(Kind.STRING)
    subscribed_topic_regex: str | None = string(nullable_from=0)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable_from=0)
    classic_member_metadata: ClassicMemberMetadata | None = optional_struct(
        ClassicMemberMetadata, tag=0, nullable_from=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """The target assignment of a group."""

    API_KEY = RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The group epoch of the target assignment; written after all of its members."""

    API_KEY = RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    assignment_epoch: int = int32()
    #: When the assignment was made; written by Kafka from 4.3 on (KIP-1263), not here.
    assignment_timestamp: int = int64(tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message):
    """A member's part of the target assignment."""

    API_KEY = RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Struct):
    """Partitions of one topic."""

    #: The lineage.
    topic_id: Lineage = lineage_uuid()
    partitions: list[int] = array(Kind.INT32)


class ConsumerGroupTargetAssignmentMemberValue(Message):
    """The partitions of a member's target assignment."""

    API_KEY = RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class OwnedTopicPartitions(Struct):
    """Partitions of one topic that a member owns or has to revoke."""

    #: The lineage.
    topic_id: Lineage = lineage_uuid()
    partitions: list[int] = array(Kind.INT32)
    #: In which epoch the member got each of them; written by Kafka from 4.3 on, not here. Kafka's schema says that the
    #: default is null, but its code takes it to be empty.
    assignment_epochs: list[int] | None = array(Kind.INT32, tag=0, nullable_from=0)


class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """What a member owns at present."""

    API_KEY = RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """A member's progress towards its target: its epochs, what it owns, and what it still has to revoke."""

    API_KEY = RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[OwnedTopicPartitions] = array(OwnedTopicPartitions)
    partitions_pending_revocation: list[OwnedTopicPartitions] = array(OwnedTopicPartitions)


class ConsumerGroupRegularExpressionKey(Message):
    """A regular expression that members of a group subscribe to."""

    API_KEY = RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = NEVER

    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message):
    """The topics that the expression matched, in which version of the metadata and when."""

    API_KEY = RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topics: list[str] = array(Kind.STRING)
    version: int = int64()
    timestamp: int = int64()


# --- keys and values as bytes

Key: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

#: The value type of each key type.
VALUE_OF_KEY: Mapping[type[Key], type[Value]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
_KEY_OF_TYPE: Mapping[int, type[Key]] = {
    RecordType.LEGACY_OFFSET_COMMIT: OffsetCommitKey,
    **{key.API_KEY: key for key in VALUE_OF_KEY},
}


def require_storable(group_id: str, *others: str | None) -> None:
    """Refuse a group id, and other texts of a client, that do not fit into a record."""
    if _is_too_long(group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"A group id has at most {_MOST_TEXT_BYTES} bytes.")
    if any(text is not None and _is_too_long(text) for text in others):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Ids, protocols and expressions have at most {_MOST_TEXT_BYTES} bytes."
        )


def _is_too_long(text: str) -> bool:
    # A character has at most four bytes.
    return len(text) > _MOST_TEXT_BYTES // 4 and len(text.encode()) > _MOST_TEXT_BYTES


def encode_key(key: Key) -> bytes:
    """Encode a record's key: its type and its fields."""
    return _PREFIX.pack(key.API_KEY) + key.encode(0)


def encode_value(value: Value) -> bytes:
    """Encode a record's value in the version that Kafka 4.3 writes."""
    version = _written_version(value)
    return _PREFIX.pack(version) + value.encode(version)


def encode_committed(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    lineage: Lineage | None,
) -> tuple[bytes, bytes]:
    """Encode key and value of an offset without an expiry, as `encode_key` and `encode_value` do, but faster."""
    key = _committed_key(group, topic, partition)
    if lineage is not None and not metadata:
        id_bytes = lineage.int.to_bytes(_ID_BYTES, "big")
        return key, _pack_value_without_metadata(
            _COMMITTED_VERSION, offset, leader_epoch, 1, commit_timestamp, 1, 0, _ID_BYTES, id_bytes
        )
    metadata_bytes = metadata.encode()
    start = _pack_value_start(_COMMITTED_VERSION, offset, leader_epoch)
    length = encode_uvarint(len(metadata_bytes) + 1)
    if lineage is None:
        end = _pack_value_end_without_id(commit_timestamp)
    else:
        end = _pack_value_end(commit_timestamp, 1, 0, _ID_BYTES, lineage.bytes)
    return key, b"".join((start, length, metadata_bytes, end))


@lru_cache(maxsize=10_000)
def _committed_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a committed offset; cached, as clients commit the same partitions again and again."""
    group_bytes, topic_bytes = group.encode(), topic.encode()
    return b"".join(
        (
            _pack_key_start(RecordType.OFFSET_COMMIT, len(group_bytes)),
            group_bytes,
            _pack_length(len(topic_bytes)),
            topic_bytes,
            _pack_partition(partition),
        )
    )


def decode_key(data: Buffer) -> Key | None:
    """Decode a record's key; None if its type is unknown here."""
    record_type, body = _split(data)
    key = _KEY_OF_TYPE.get(record_type)
    return None if key is None else key.decode(0, body)


@overload
def decode_value(key: OffsetCommitKey, data: Buffer) -> OffsetCommitValue: ...
@overload
def decode_value(key: GroupMetadataKey, data: Buffer) -> GroupMetadataValue: ...
@overload
def decode_value(key: ConsumerGroupMetadataKey, data: Buffer) -> ConsumerGroupMetadataValue: ...
@overload
def decode_value(key: ConsumerGroupPartitionMetadataKey, data: Buffer) -> ConsumerGroupPartitionMetadataValue: ...
@overload
def decode_value(key: ConsumerGroupMemberMetadataKey, data: Buffer) -> ConsumerGroupMemberMetadataValue: ...
@overload
def decode_value(
    key: ConsumerGroupTargetAssignmentMetadataKey, data: Buffer
) -> ConsumerGroupTargetAssignmentMetadataValue: ...
@overload
def decode_value(
    key: ConsumerGroupTargetAssignmentMemberKey, data: Buffer
) -> ConsumerGroupTargetAssignmentMemberValue: ...
@overload
def decode_value(
    key: ConsumerGroupCurrentMemberAssignmentKey, data: Buffer
) -> ConsumerGroupCurrentMemberAssignmentValue: ...
@overload
def decode_value(key: ConsumerGroupRegularExpressionKey, data: Buffer) -> ConsumerGroupRegularExpressionValue: ...
def decode_value(key: Key, data: Buffer) -> Value:
    """Decode the value of a key, in any known version; opaque bytes in it are views of `data`."""
    value = VALUE_OF_KEY[key.__class__]
    version, body = _split(data)
    if not value.MIN_VERSION <= version <= value.MAX_VERSION:
        raise WireError(
            f"{value.__name__} has version {version}, expected {value.MIN_VERSION} to {value.MAX_VERSION}; a "
            "newer release may have written it"
        )
    return value.decode(version, body)


def _written_version(value: Value) -> int:
    match value:
        case OffsetCommitValue():
            return _COMMITTED_VERSION if value.expire_timestamp == NO_TIMESTAMP else 1
        case GroupMetadataValue():
            # Version 4 would only be the flexible encoding of the same fields.
            return 3
        case _:
            return 0


def _split(data: Buffer) -> tuple[int, memoryview]:
    """Split a key or a value into its leading number and the rest."""
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        raise WireError("a group record ends before its type or version")
    (number,) = _PREFIX.unpack_from(view)
    return number, view[_PREFIX.size :]
