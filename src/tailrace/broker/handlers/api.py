"""What an API is to the broker: its request, its versions, and the functions that decode, answer and encode.

A handler module ends with its `API`. It must not know who asks, nor connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tailrace.broker.services import RequestContext, Services
from tailrace.runtime.transport import Part
from tailrace.wire.codec import Message

#: Takes services, the request's context and the decoded request; gives what `Api.encode` takes, now or later, or None
#: where no answer is due.
Handler: TypeAlias = Callable[[Services, RequestContext, Any], Any]

#: Requests that carry no records are small; decoding one costs many times its size in memory, and time in which
#: nobody else is served.
_CONTROL_REQUEST_MAX_BYTES = 1 << 20


def _encode_message(version: int, message: Message | bytes) -> list[Part]:
    """A handler may give its response encoded already."""
    return [message] if isinstance(message, bytes) else message.encode_parts(version)


@dataclass(frozen=True, slots=True)
class Api:
    """An API that is served: its request, the versions advertised, and the functions that decode, answer and encode."""

    request: type[Message]
    min_version: int
    max_version: int
    handle: Handler
    summary: str
    max_bytes: int = _CONTROL_REQUEST_MAX_BYTES
    #: The first version that is really answered; earlier ones are only advertised.
    first_decodable: int = field(init=False)
    #: How its request is decoded and its response encoded, where not by their descriptions.
    decode_by_hand: Callable[[int, memoryview], Any] | None = None
    encode: Callable[[int, Any], list[Part]] = _encode_message
    decode: Callable[[int, memoryview], Any] = field(init=False)
    #: The same for requests so large that they could have too many elements.
    decode_bounded: Callable[[int, memoryview], Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_decodable", max(self.min_version, self.request.MIN_VERSION))
        object.__setattr__(self, "decode", self.decode_by_hand or self.request.decode)
        object.__setattr__(self, "decode_bounded", self.decode_by_hand or self.request.decode_bounded)
