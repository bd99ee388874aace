"""ProveBroker, version 0, flexible: a broker that has connected to another one proves which broker it is.

Odd: an API of our own, between brokers, and a conversation of two requests. The first one says who asks and has a
nonce; its answer has the server's nonce. The second one has the proof and nothing else.
"""

from __future__ import annotations

from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, byte_string, int16, int32, int64


class ProveBrokerRequest(Message):
    """Asks for a challenge, or answers one."""

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
    """A challenge, or whether the proof was accepted."""

    API_KEY = ApiKey.PROVE_BROKER
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    #: Empty in the answer to a proof.
    nonce: Buffer = byte_string()
