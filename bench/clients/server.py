"""What clients know of a server: where it is reached, and what it uses while they work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Handle:
    """Where a running system is reached, and its pid."""

    host: str
    port: int
    pid: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Server(Protocol):
    """A running system, as what it uses is measured."""

    def pids(self) -> list[int]:
        """The processes of the server and all that it started."""

    def cpu_seconds(self) -> float:
        """User and system CPU seconds of all of them."""

    def rss_mb(self) -> float:
        """Resident memory of all of them, in MB."""
