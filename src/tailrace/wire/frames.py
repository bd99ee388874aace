"""Frames and headers: what precedes the body of a request or response.

Owns the length prefix and the header versions. A request header has tagged fields in flexible versions, while its
client id stays a classic string. The header of an ApiVersions response never has tagged fields; the caller must say so.
This module knows no messages.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Mapping
from typing import NamedTuple

from tailrace.errors import WireError
from tailrace.runtime.disk import Buffer
from tailrace.wire.fields import NEVER
from tailrace.wire.primitives import skip_tagged_fields

_LENGTH = packing.Struct(">i")
_REQUEST = packing.Struct(">hhih")
_unpack_request = _REQUEST.unpack_from
_CORRELATION = packing.Struct(">i")


class RequestHeader(NamedTuple):
    """The API and version of a request, and its client."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(body: memoryview, flexible_from: Mapping[int, int]) -> tuple[RequestHeader, int]:
    """Read the header of a frame without its length, given the first flexible version of each API's requests."""
    try:
        api_key, version, correlation_id, length = _unpack_request(body)
    except packing.error:
        raise WireError("a request header ends too early") from None
    position = _REQUEST.size
    client_id = None
    if length >= 0:
        stop = position + length
        if stop > len(body):
            raise WireError("a client id runs past the end")
        try:
            client_id = str(body[position:stop], "utf-8")
        except UnicodeDecodeError:
            raise WireError("a client id is not UTF-8") from None
        position = stop
    elif length != -1:
        raise WireError("a client id has a negative length")
    if version >= flexible_from.get(api_key, NEVER):
        position = _skip_tags(body, position)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def encode_request(header: RequestHeader, flexible: bool, body: Buffer) -> bytes:
    """A whole request as a client sends it, with its length."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    head = _REQUEST.pack(header.api_key, header.api_version, header.correlation_id, length) + client_id
    if flexible:
        head += b"\0"
    return _LENGTH.pack(len(head) + len(body)) + head + body


def decode_response_header(body: memoryview, flexible: bool) -> tuple[int, int]:
    """Read the correlation id of a response frame without its length, and the position of its body."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(body)
    except packing.error:
        raise WireError("a response header ends too early") from None
    return correlation_id, _skip_tags(body, _CORRELATION.size) if flexible else _CORRELATION.size


def _skip_tags(body: memoryview, position: int) -> int:
    if position >= len(body):
        raise WireError("a header ends before its tagged fields")
    count = body[position]
    return skip_tagged_fields(body, position + 1, count) if count else position + 1
