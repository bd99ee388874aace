"""Telling the service manager how far we are, as sd_notify(3) does: one datagram to the socket it named.

Without a service manager there is nobody to tell, and nothing happens.
"""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger("tailrace")

_SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str, status: str) -> bool:
    """Say a state such as READY=1 with a line for people; whether somebody was told."""
    address = os.environ.get(_SOCKET_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # a name that is in no file system
        address = "\0" + address[1:]
    message = f"{state}\nSTATUS={' '.join(status.split())}".encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(message, address)
    except OSError as error:
        logger.warning("the service manager cannot be told %s: %s", state, error)
        return False
    return True
