"""API versions: those that a caller can use, those that a broker serves, and the choice between them.

This module must not know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.protocol_client.errors import UnsupportedVersionError
from tailrace.wire.apis import FIRST_OWN_KEY
from tailrace.wire.codec import Message


class Versions(NamedTuple):
    """A range of versions of one API, including both ends."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"version {self.most}" if self.least == self.most else f"versions {self.least} to {self.most}"


def choose_version(kind: type[Message], usable: Versions, served: Mapping[int, Versions], where: str) -> int:
    """Return the newest version that the caller and the broker share; UnsupportedVersionError if there is none."""
    if kind.API_KEY >= FIRST_OWN_KEY:
        return usable.most  # brokers serve tailrace's own APIs without advertising them
    offered = served.get(kind.API_KEY)
    if offered is not None:
        version = min(usable.most, offered.most)
        if version >= max(usable.least, offered.least):
            return version
    name = kind.__name__.removesuffix("Request")
    has = f"{name} in {offered} only" if offered is not None else f"no {name} at all"
    raise UnsupportedVersionError(f"the broker at {where} serves {has}; this client needs {usable}")
