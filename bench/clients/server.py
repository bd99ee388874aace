"""What clients know of a server: its address, and its resource usage while they work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Handle:
    """The address of a running system, and its pid."""

    host: str
    port: int
    pid: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Server(Protocol):
    """A running system whose resource usage is measured."""

    def pids(self) -> list[int]:
        """Return the pids of the server and of all its descendants."""

    def cpu_seconds(self) -> float:
        """Return the user and system CPU seconds of all of them."""

    def rss_mb(self) -> float:
        """Return the resident memory of all of them, in MB."""
