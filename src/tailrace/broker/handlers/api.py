"""The definition of an API: its request, versions and needs, and the functions that decode, handle and encode.

A handler module ends with its `API`. This module must not know clients or connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.runtime.transport import Part
from tailrace.security.needs import Need
from tailrace.wire.codec import Message

#: Takes the services, the request's context and the decoded request; returns what `Api.encode` takes, now or later, or
#: None if no response is due.
Handler: TypeAlias = Callable[[Services, RequestContext, Any], Any]

#: Takes the version, the decoded request and the error that refuses all of it; returns what `Api.encode` takes.
Refusal: TypeAlias = Callable[[int, Any, KafkaError], Any]

#: Requests without records are small. Decoding one takes many times its size in memory, and blocks all other requests
#: meanwhile.
_CONTROL_REQUEST_MAX_BYTES = 1 << 20


class Encode(Protocol):
    """Encodes a response with the throttle time of its client."""

    def __call__(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]: ...


def encode_message(version: int, response: Message, throttle_ms: int = 0) -> list[Part]:
    """Encode a response by its description, with the throttle time if it has a field for that."""
    if throttle_ms and "throttle_time_ms" in response.FIELDS:
        response.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]
    return response.encode_parts(version)


def refuse_with(response: type[Message]) -> Refusal:
    """Refuse a request with the error code of its response, and with its error message if it has one."""
    make: Callable[..., Message] = response
    has_message = "error_message" in response.FIELDS

    def refuse(version: int, request: Any, error: KafkaError) -> Message:
        if has_message:
            return make(error_code=error.code, error_message=error.message)
        return make(error_code=error.code)

    return refuse


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its request, the advertised versions, and the functions that decode, handle and encode."""

    request: type[Message]
    min_version: int
    max_version: int
    handle: Handler
    summary: str
    max_bytes: int = _CONTROL_REQUEST_MAX_BYTES
    #: The rights that a client needs; `NOTHING` if every client may send it.
    needs: tuple[Need, ...] = field(kw_only=True)
    #: Answers a client without the rights that the whole request needs.
    refuse: Refusal | None = field(default=None, kw_only=True)
    #: The first version that is served; earlier ones are only advertised.
    first_decodable: int = field(init=False)
    #: Functions that decode the request and encode the response, if their descriptions are not used.
    decode_by_hand: Callable[[int, memoryview], Any] | None = None
    encode: Encode = encode_message
    decode: Callable[[int, memoryview], Any] = field(init=False)
    #: The same for requests so large that they could have too many elements.
    decode_bounded: Callable[[int, memoryview], Any] = field(init=False)

    def __post_init__(self) -> None:
        if self.refuse is None and any(need.is_whole for need in self.needs):
            raise TypeError(f"{self.request.__name__} can be refused as a whole, so its Api needs `refuse`")
        object.__setattr__(self, "first_decodable", max(self.min_version, self.request.MIN_VERSION))
        object.__setattr__(self, "decode", self.decode_by_hand or self.request.decode)
        object.__setattr__(self, "decode_bounded", self.decode_by_hand or self.request.decode_bounded)
