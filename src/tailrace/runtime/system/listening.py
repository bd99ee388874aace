"""The process on this machine that listens on an address, as far as /proc shows it to this user."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address

_LISTENING = "0A"
_LOCAL_ADDRESS, _STATE, _INODE = 1, 3, 9


def listening_process(host: str, port: int) -> int | None:
    """The pid of the listening process; None if it is on another machine, or hidden from this user."""
    inodes = [inode for address in _addresses(host, port) for inode in _listening_inodes(address, port)]
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return None
    for entry in os.listdir("/proc"):
        if entry.isdigit() and any(link in wanted for link in _links(entry)):
            return int(entry)
    return None


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _listening_inodes(address: str, port: int) -> Iterator[str]:
    """The inodes of sockets that accept connections to an address of this machine."""
    packed = ip_address(address).packed
    table = "/proc/net/tcp" if len(packed) == 4 else "/proc/net/tcp6"
    # The kernel writes each word in its own byte order.
    words = [packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4)]
    local, everywhere = f"{''.join(words)}:{port:04X}", f"{'0' * 2 * len(packed)}:{port:04X}"
    try:
        with open(table) as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return
    for row in rows:
        if len(row) > _INODE and row[_STATE] == _LISTENING and row[_LOCAL_ADDRESS] in (local, everywhere):
            yield row[_INODE]


def _links(pid: str) -> Iterator[str]:
    """The targets of a process's descriptors; none if this user may not see them."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
