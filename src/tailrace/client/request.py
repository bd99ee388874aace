"""Requests to brokers that librdkafka does not support, sent through the protocol client.

Owns the settings of these connections, and the error messages for users.
"""

from __future__ import annotations

from typing import TypeVar

from tailrace.client.connection import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from tailrace.client.errors import ClientError, NoAnswerError, UnreachableError
from tailrace.protocol_client.cluster import first_of
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import (
    ConnectionLostError,
    MalformedAnswerError,
    NoAnswerInTimeError,
    NotABrokerError,
    ProtocolClientError,
    UnreachableClusterError,
)
from tailrace.protocol_client.settings import ClusterSettings, ConnectionSettings, split_addresses
from tailrace.protocol_client.versions import Versions
from tailrace.wire.codec import Message

Response = TypeVar("Response", bound=Message)


def ask(bootstrap: str, request: Message, usable: Versions, kind: type[Response], *, doing: str) -> Response:
    """Send a request once to the first address where a broker responds; ClientError if there is no response."""
    settings = cluster_settings(bootstrap).connection
    try:
        connection = first_of(
            bootstrap, split_addresses(bootstrap), lambda address, _: BrokerConnection(address, settings)
        )
        with connection:
            return connection.ask(request, usable, kind)
    except ProtocolClientError as error:
        raise client_error_of(error, bootstrap, doing) from error


def cluster_settings(bootstrap: str) -> ClusterSettings:
    """Return settings for commands: a cluster that does not respond is an error at once."""
    return ClusterSettings(
        bootstrap,
        ConnectionSettings(
            # The addresses share the time, so that one of a dead machine leaves some to the others.
            connect_timeout_ms=int(CONNECT_TIMEOUT * 1000 / len(bootstrap.split(","))),
            request_timeout_ms=int(REQUEST_TIMEOUT * 1000),
        ),
        api_timeout_ms=int(REQUEST_TIMEOUT * 1000),
        first_contact_ms=0,
    )


def client_error_of(error: ProtocolClientError, bootstrap: str, doing: str) -> ClientError:
    """Return the error to raise for what went wrong while doing something."""
    if isinstance(error, UnreachableClusterError):
        return UnreachableError(str(error))
    if isinstance(error, NoAnswerInTimeError):
        return NoAnswerError(f"the broker at {bootstrap} did not answer in time while {doing}")
    if isinstance(error, ConnectionLostError):
        return NoAnswerError(f"lost the broker at {bootstrap} while {doing}: {error}")
    if isinstance(error, MalformedAnswerError):
        return ClientError(f"the server at {bootstrap} does not answer like a Kafka broker ({error})")
    if isinstance(error, NotABrokerError):
        return ClientError(str(error))
    return ClientError(f"{doing} failed: {error}")
