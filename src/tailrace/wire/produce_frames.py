"""A hand-written Produce codec: the request that must be cheapest is decoded and answered without message objects.

It uses the same bytes as `messages.produce`, which describes them and serves as the oracle in tests. Records are views
of the request. Every length is checked against the remaining bytes; malformed input raises `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast
from uuid import UUID

from tailrace.errors import WireError
from tailrace.model import TopicId
from tailrace.wire.primitives import (
    MOST_ELEMENTS,
    encode_uvarint,
    finish_uvarint,
    skip_tagged_fields,
    too_many_elements,
    uuid_from_bytes,
)

Topic: TypeAlias = str | TopicId

_topic_id_from_bytes = cast(Callable[[bytes], TopicId], uuid_from_bytes)

_FLEXIBLE_FROM = 9
_IDS_FROM = 13
_LOG_START_FROM = 5
_MESSAGES_FROM = 8

_unpack_short = struct.Struct(">h").unpack_from
_unpack_int = struct.Struct(">i").unpack_from
_unpack_acks = struct.Struct(">hi").unpack_from
_pack_int = struct.Struct(">i").pack
_pack_end = struct.Struct(">ib").pack
_pack_short = struct.Struct(">h").pack
_pack_v3 = struct.Struct(">ihqq").pack
_pack_v5 = struct.Struct(">ihqqq").pack


class ProduceCall(NamedTuple):
    """A Produce request: the batches to append by partition, and the requested acks."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]]


class ProduceResult:
    """The result for the batch of one partition; mutable until it is sent."""

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "error_code",
        "index",
        "log_start_offset",
        "message",
        "record_errors",
    )

    def __init__(
        self,
        index: int,
        error_code: int,
        base_offset: int,
        append_time_ms: int = -1,
        log_start_offset: int = -1,
        message: str | None = None,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.log_start_offset = log_start_offset
        self.message = message
        #: Records that made their batch fail, as pairs of their index and the reason.
        self.record_errors = record_errors


ProduceResults: TypeAlias = list[tuple[Topic, list[ProduceResult]]]


def decode_produce(version: int, view: memoryview) -> ProduceCall:
    """Decode the body of a Produce request; bytes after it are ignored."""
    try:
        return _decode_flexible(version, view) if version >= _FLEXIBLE_FROM else _decode_plain(view)
    except (struct.error, IndexError):
        raise WireError("a Produce request ends too early") from None
    except UnicodeDecodeError:
        raise WireError("a string is not UTF-8") from None


def _decode_flexible(version: int, view: memoryview) -> ProduceCall:
    end = len(view)
    length = view[0]
    at = 1
    if length > 127:
        length, at = finish_uvarint(view, at, length)
    transactional_id = None
    if length:
        transactional_id = str(view[at : at + length - 1], "utf-8")
        at += length - 1
        if at > end:
            raise WireError("a string runs past the end")
    acks, timeout_ms = _unpack_acks(view, at)
    topic_count = view[at + 6]
    at += 7
    if topic_count > 127:
        topic_count, at = finish_uvarint(view, at, topic_count)
    if topic_count == 0 or topic_count - 1 > end - at:
        raise WireError("an array of topics is null or longer than its request")
    left = MOST_ELEMENTS - topic_count
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count - 1):
        topic: Topic
        if version >= _IDS_FROM:
            if at + 16 > end:
                raise WireError("a topic id runs past the end")
            topic = _topic_id_from_bytes(bytes(view[at : at + 16]))
            at += 16
        else:
            length = view[at]
            at += 1
            if length > 127:
                length, at = finish_uvarint(view, at, length)
            if length == 0 or length - 1 > end - at:
                raise WireError("a topic name is null or runs past the end")
            topic = str(view[at : at + length - 1], "utf-8")
            at += length - 1
        count = view[at]
        at += 1
        if count > 127:
            count, at = finish_uvarint(view, at, count)
        if count == 0 or count - 1 > end - at:
            raise WireError("an array of partitions is null or longer than its request")
        left -= count
        if left < 0:
            raise too_many_elements()
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count - 1):
            (index,) = _unpack_int(view, at)
            length = view[at + 4]
            at += 5
            if length > 127:
                length, at = finish_uvarint(view, at, length)
            records = None
            if length:
                start = at
                at += length - 1
                if at > end:
                    raise WireError("records run past the end")
                records = view[start:at]
            partitions.append((index, records))
            tags = view[at]
            at += 1
            if tags:
                at = skip_tagged_fields(view, at, tags)
        topics.append((topic, partitions))
        tags = view[at]
        at += 1
        if tags:
            at = skip_tagged_fields(view, at, tags)
    tags = view[at]
    if tags:
        skip_tagged_fields(view, at + 1, tags)
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def _decode_plain(view: memoryview) -> ProduceCall:
    end = len(view)
    (length,) = _unpack_short(view, 0)
    at = 2
    transactional_id = None
    if length != -1:
        if not 0 <= length <= end - at:
            raise WireError("a string runs past the end")
        transactional_id = str(view[at : at + length], "utf-8")
        at += length
    acks, timeout_ms = _unpack_acks(view, at)
    (topic_count,) = _unpack_int(view, at + 6)
    at += 10
    if not 0 <= topic_count <= end - at:
        raise WireError("an array of topics is null or longer than its request")
    left = MOST_ELEMENTS - topic_count
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        (length,) = _unpack_short(view, at)
        at += 2
        if not 0 <= length <= end - at:
            raise WireError("a topic name is null or runs past the end")
        topic = str(view[at : at + length], "utf-8")
        at += length
        (count,) = _unpack_int(view, at)
        at += 4
        if not 0 <= count <= end - at:
            raise WireError("an array of partitions is null or longer than its request")
        left -= count
        if left < 0:
            raise too_many_elements()
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            (index,) = _unpack_int(view, at)
            (length,) = _unpack_int(view, at + 4)
            at += 8
            records = None
            if length != -1:
                if not 0 <= length <= end - at:
                    raise WireError("records run past the end")
                records = view[at : at + length]
                at += length
            partitions.append((index, records))
        topics.append((topic, partitions))
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def encode_produce(version: int, results: ProduceResults, throttle_ms: int = 0) -> bytes:
    """Encode the body of a Produce response."""
    if version >= _FLEXIBLE_FROM:
        return _encode_flexible(version, results, throttle_ms)
    return _encode_plain(version, results, throttle_ms)


def _encode_flexible(version: int, results: ProduceResults, throttle_ms: int) -> bytes:
    out = bytearray()
    _put_length(out, len(results))
    for topic, partitions in results:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            name = topic.encode()
            _put_length(out, len(name))
            out += name
        _put_length(out, len(partitions))
        for result in partitions:
            out += _pack_v5(
                result.index, result.error_code, result.base_offset, result.append_time_ms, result.log_start_offset
            )
            if result.message is None and not result.record_errors:
                out += b"\x01\x00\x00"  # no record errors, no message, no tags
            else:
                _put_length(out, len(result.record_errors))
                for index, why in result.record_errors:
                    out += _pack_int(index)
                    _put_text(out, why)
                    out.append(0)
                _put_text(out, result.message)
                out.append(0)
        out.append(0)
    out += _pack_end(throttle_ms, 0) if throttle_ms else b"\x00\x00\x00\x00\x00"  # and no tags
    return bytes(out)


def _put_length(out: bytearray, length: int) -> None:
    """A compact length: a varint of the length plus one."""
    if length < 127:
        out.append(length + 1)
    else:
        out += encode_uvarint(length + 1)


def _put_text(out: bytearray, text: str | None) -> None:
    """A compact nullable string."""
    if text is None:
        out.append(0)
    else:
        encoded = text.encode()
        _put_length(out, len(encoded))
        out += encoded


def _encode_plain(version: int, results: ProduceResults, throttle_ms: int) -> bytes:
    out = bytearray(_pack_int(len(results)))
    for topic, partitions in results:
        assert isinstance(topic, str)
        name = topic.encode()
        out += _pack_short(len(name))
        out += name
        out += _pack_int(len(partitions))
        for result in partitions:
            if version < _LOG_START_FROM:
                out += _pack_v3(result.index, result.error_code, result.base_offset, result.append_time_ms)
                continue
            out += _pack_v5(
                result.index, result.error_code, result.base_offset, result.append_time_ms, result.log_start_offset
            )
            if version >= _MESSAGES_FROM:
                if result.message is None and not result.record_errors:
                    out += b"\x00\x00\x00\x00\xff\xff"  # no record errors, no message
                else:
                    out += _pack_int(len(result.record_errors))
                    for index, why in result.record_errors:
                        out += _pack_int(index)
                        _put_plain_text(out, why)
                    _put_plain_text(out, result.message)
    out += _pack_int(throttle_ms) if throttle_ms else b"\x00\x00\x00\x00"
    return bytes(out)


def _put_plain_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
    else:
        encoded = text.encode()
        out += _pack_short(len(encoded)) + encoded
