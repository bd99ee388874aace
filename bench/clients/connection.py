"""Plain connections to a server that speaks the Kafka protocol, for requests that the C clients do not support."""

from __future__ import annotations

from bench.clients.server import Handle
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.settings import ConnectionSettings

_ANSWER_MS = 60_000
SETTINGS = ConnectionSettings("bench", connect_timeout_ms=_ANSWER_MS, request_timeout_ms=_ANSWER_MS)


def connected(handle: Handle) -> BrokerConnection:
    """Return a connection to a server; a context manager."""
    return BrokerConnection((handle.host, handle.port), SETTINGS)
