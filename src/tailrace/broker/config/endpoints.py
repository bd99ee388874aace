"""The addresses on which the broker listens, and those that it advertises to clients.

Invariants: every advertised endpoint belongs to a listener, and clients can connect to its address. This module must
not open sockets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED_PROTOCOLS = ("PLAINTEXT",)

_ENDPOINT = re.compile(r"(?P<name>[^:/\s]+)://(?:\[(?P<ipv6>[\w.%]*:[\w.%:]*)\]|(?P<host>[\w.%-]*)):(?P<port>[0-9]+)")
_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class EndpointError(ValueError):
    """An invalid listener; the message says why, without the key that contains it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named address; port 0 means any free port."""

    listener_name: str
    host: str
    port: int
    security_protocol: str

    @property
    def is_every_interface(self) -> bool:
        """True if listening on this address means listening on every interface."""
        return self.host in _EVERY_INTERFACE

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


def parse_protocol_map(items: Sequence[str]) -> dict[str, str]:
    """Parse `NAME:PROTOCOL` items into a mapping from listener name to security protocol."""
    protocols: dict[str, str] = {}
    for item in items:
        name, colon, protocol = (part.strip().upper() for part in item.partition(":"))
        if not name or not colon or protocol not in SECURITY_PROTOCOLS:
            raise EndpointError(
                f"'{item}' is not NAME:PROTOCOL with one of the protocols {', '.join(SECURITY_PROTOCOLS)}"
            )
        if name in protocols:
            raise EndpointError(f"Listener name {name} is mapped twice")
        protocols[name] = protocol
    return protocols


def parse_endpoints(
    items: Sequence[str], protocols: dict[str, str], left_out: Sequence[str] = ()
) -> tuple[Endpoint, ...]:
    """Parse `NAME://host:port` items, except the listeners named in `left_out`."""
    endpoints: list[Endpoint] = []
    for item in items:
        match = _ENDPOINT.fullmatch(item)
        if match is None:
            raise EndpointError(f"'{item}' is not NAME://host:port (with an IPv6 address in brackets)")
        name = match["name"].upper()
        if name in left_out:
            continue
        port = int(match["port"][:10])
        if port > 65535:
            raise EndpointError(f"The port of '{item}' is above 65535")
        protocol = protocols.get(name)
        if protocol is None:
            raise EndpointError(
                f"No security protocol defined for listener {name}; add it to listener.security.protocol.map"
            )
        if protocol not in SERVED_PROTOCOLS:
            raise EndpointError(
                f"Listener {name} uses {protocol}, which tailrace does not support yet; only PLAINTEXT works"
            )
        if any(other.listener_name == name for other in endpoints):
            raise EndpointError(f"Each listener must have a different name, but {name} appears twice")
        endpoints.append(Endpoint(name, match["ipv6"] or match["host"] or "", port, protocol))
    return tuple(endpoints)


def check_ports_differ(endpoints: Sequence[Endpoint]) -> None:
    """Refuse two listeners on the same port, except an IPv4 and an IPv6 address (KIP-797)."""
    for position, endpoint in enumerate(endpoints):
        for other in endpoints[:position]:
            one_each = (_is_ipv4(endpoint.host) and ":" in other.host) or (
                _is_ipv4(other.host) and ":" in endpoint.host
            )
            if endpoint.port != 0 and endpoint.port == other.port and not one_each:
                raise EndpointError(
                    "Each listener must have a different port unless one has an IPv4 and the other an IPv6 "
                    f"address, but {other.listener_name} and {endpoint.listener_name} share {endpoint.port}"
                )


def check_advertised(advertised: Sequence[Endpoint], listeners: Sequence[Endpoint]) -> None:
    """Refuse advertised endpoints that no listener serves or that no client can connect to."""
    names = [listener.listener_name for listener in listeners]
    for endpoint in advertised:
        if endpoint.is_every_interface:
            raise EndpointError(
                f"{endpoint} is not an address that a client can connect to; give a host name or a routable address"
            )
        if endpoint.listener_name not in names:
            raise EndpointError(f"Listener {endpoint.listener_name} is advertised but not among the listeners")


def advertise(listeners: Sequence[Endpoint], host_name: Callable[[], str]) -> tuple[Endpoint, ...]:
    """Return the endpoints to advertise by default: the listeners, with the host's name for every interface."""
    return tuple(
        replace(listener, host=host_name()) if listener.is_every_interface else listener for listener in listeners
    )


def _is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part[:4]) < 256 for part in parts)
