"""Notifies the service manager of our state, like sd_notify(3): one datagram to the socket that it named.

Does nothing without a service manager.
"""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger("tailrace")

_SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str, status: str) -> bool:
    """Send a state such as READY=1 with a status line; returns whether it was sent."""
    address = os.environ.get(_SOCKET_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    message = f"{state}\nSTATUS={' '.join(status.split())}".encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(message, address)
    except OSError as error:
        logger.warning("Cannot notify the service manager of %s: %s", state, error)
        return False
    return True
