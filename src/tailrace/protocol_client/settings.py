"""Settings for connections to brokers and for timeouts.

Owns the values, and the syntax of addresses. Settings are plain values: they travel to Spark's workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.protocol_client.security import SecuritySettings

#: A host, without the brackets of IPv6, and a port.
Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What every connection of a client has in common."""

    client_id: str = "tailrace"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    #: The size of the socket's receive buffer; if it is not positive, the operating system chooses.
    receive_buffer_bytes: int = -1
    security: SecuritySettings = field(default_factory=SecuritySettings)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a client finds a cluster, and how long it retries."""

    #: Addresses as the user gave them, separated by commas.
    bootstrap: str
    connection: ConnectionSettings = ConnectionSettings()
    #: How long to retry after the cluster was reached once.
    api_timeout_ms: int = 60_000
    #: A cluster that was never reached is given up sooner: the address is probably wrong.
    first_contact_ms: int = 5_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 100


def split_addresses(bootstrap: str) -> list[Address]:
    """Split addresses separated by commas; ValueError names the first invalid one."""
    return [split_address(address) for address in bootstrap.split(",")]


def split_address(address: str) -> Address:
    """Split `host:port`, with an IPv6 host in brackets; ValueError if it has another form."""
    host, separator, port = address.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or (":" in host and not bracketed):
        raise ValueError(f"'{address}' is not HOST:PORT")
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"'{address}' has no port between 1 and 65535")
    return host.strip("[]"), int(port)


def join_address(address: Address) -> str:
    """Format an address as `split_address` parses it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
