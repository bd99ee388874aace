"""ProveBroker, version 0, flexible: a connecting broker proves its identity to another one.

Odd: an API of our own, between brokers, with two requests. The first one has the broker's identity and a nonce; its
response has the server's nonce. The second one has only the proof.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, byte_string, int16, int32, int64


class ProveBrokerRequest(Message):
    """Requests a challenge, or answers it."""

    API_KEY = ApiKey.PROVE_BROKER
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    broker_id: int = int32(default=-1)
    broker_epoch: int = int64(default=-1)
    nonce: Buffer = byte_string()
    #: Empty in the first request.
    proof: Buffer = byte_string()


class ProveBrokerResponse(Message):
    """A challenge, or the result of a proof."""

    API_KEY = ApiKey.PROVE_BROKER
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    #: Empty in the response to a proof.
    nonce: Buffer = byte_string()
