"""Checks whether a broker can listen on its ports, and whether clients can reach the addresses it advertises.

Tries a port by binding it without listening, which nobody else notices. Reads from /proc who has a port.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

from tailrace.broker.config.broker_config import Endpoint
from tailrace.cli.checks.finding import Finding, ok, problem, warning

_RESOLVE_SECONDS = 5.0
_LISTENING = "0A"
_LISTEN_HERE = "listen on an address of this machine, or on 0.0.0.0"


@dataclass(frozen=True, slots=True)
class Listening:
    """A process that listens on a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def check_listener(endpoint: Endpoint, broker_pids: Sequence[int]) -> Finding:
    """Check that the port of a listener is free or belongs to the running broker."""
    return _check_port(str(endpoint), endpoint.host, endpoint.port, broker_pids, "listeners, or --port")


def check_metrics_port(host: str, port: int, broker_pids: Sequence[int]) -> list[Finding]:
    """Check the monitoring port in the same way, if it is enabled."""
    shown = f"http://{host}:{port}/metrics"
    return [_check_port(shown, host, port, broker_pids, "metrics.port")] if port >= 0 else []


def _check_port(shown: str, host: str, port: int, broker_pids: Sequence[int], setting: str) -> Finding:
    subject = "port"
    if port == 0:
        return ok(subject, f"{shown}: the broker picks a free port")
    found = _resolve(host or None, port, socket.AI_PASSIVE)
    if isinstance(found, str):
        return problem(subject, f"{shown}: {found}", _LISTEN_HERE)
    error = _bind_error(found[0])
    if error is None:
        return ok(subject, f"{shown} is free")
    if error.errno != errno.EADDRINUSE:
        is_privileged = error.errno == errno.EACCES
        advice = "choose a port of 1024 or above, or grant the process CAP_NET_BIND_SERVICE"
        return problem(subject, f"{shown}: {error.strerror}", advice if is_privileged else _LISTEN_HERE)
    owners = list(listening_on(port))
    ours = [owner for owner in owners if owner.pid in broker_pids]
    if ours:
        return ok(subject, f"{shown}: the running broker listens on it (pid {ours[0].pid})")
    by = ", ".join(str(owner) for owner in owners) or "a process that this user cannot see"
    return problem(subject, f"{shown} is in use by {by}", f"stop it, or choose another port ({setting})")


def check_advertised(endpoint: Endpoint, listeners: Sequence[Endpoint]) -> Finding:
    """Check that an advertised address resolves, and not only to loopback if other machines should reach it."""
    subject = "advertised"
    found = _resolve(endpoint.host, endpoint.port, 0)
    if isinstance(found, str):
        return problem(
            subject,
            f"{endpoint}: {found}; clients could not connect to the address that the broker gives them",
            "set advertised.listeners to a name or address that clients can resolve",
        )
    addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
    text = f"{endpoint} is {', '.join(addresses)}"
    listener = next((other for other in listeners if other.listener_name == endpoint.listener_name), None)
    is_wide_open = listener is not None and listener.is_every_interface
    if is_wide_open and all(ip_address(address.split("%")[0]).is_loopback for address in addresses):
        return warning(
            subject,
            f"{text}: only clients on this machine can reach it, although the broker listens on every interface",
            "set advertised.listeners to a name or address of this machine that others can reach",
        )
    return ok(subject, text)


#: Family, type, protocol, canonical name and socket address, as socket.getaddrinfo returns them.
_Address: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _resolve(host: str | None, port: int, flags: int) -> list[_Address] | str:
    """Return the addresses of a name, or why there are none; a name server that does not answer counts as a refusal."""
    outcome: list[list[_Address] | str] = []

    def ask() -> None:
        try:
            outcome.append(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)))
        except OSError as error:
            outcome.append(f"{host} cannot be resolved ({error.strerror})")
        except UnicodeError:
            outcome.append(f"{host} is not a valid host name")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_RESOLVE_SECONDS)
    return outcome[0] if outcome else f"no name server answered for {host} within {_RESOLVE_SECONDS:.0f} s"


def _bind_error(address: _Address) -> OSError | None:
    family, kind, protocol, _, place = address
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error
    return None


def listening_on(port: int) -> Iterator[Listening]:
    """Yield every process that listens on a port, as far as this user can see."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and not sockets.isdisjoint(_descriptors(entry)):
            yield Listening(int(entry), _process_name(entry))


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(pid: str) -> list[str]:
    """Return what the descriptors of a process point to; nothing if it has ended or belongs to another user."""
    links = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    for name in names:
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:  # closed meanwhile
            continue
    return links


def _process_name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process"
