"""The helper port: CPU-bound Python work that must not share the broker's interpreter.

Functions are named by module and name, so only importable ones can run; what goes in and out is bytes and plain
values. A helper may die at any moment: that is a `HelperError` of the calls it had, never of the broker, and
nothing is known of how far they came. So whatever a function leaves on disk is worth something only once it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tailrace.errors import TailraceError
from tailrace.runtime.disk import Buffer, FileRange

T = TypeVar("T")


class HelperError(TailraceError):
    """The helper ended, or could not be started, before a call had its answer."""


class Helper(Protocol):
    """Another interpreter on this machine, of low priority, started when it is first needed."""

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an importable function there; what it raises is raised here."""
        ...

    async def run_for_bytes(self, function: Callable[..., Buffer], *arguments: object) -> Buffer | FileRange:
        """The same for many bytes that are only passed on: they may come back in a file in memory, to be sent from."""
        ...

    async def run_on_disk(
        self, function: Callable[..., T], *arguments: object, bytes_per_second: float | None = None
    ) -> T:
        """The same with the helper's own `Disk` as first argument, which may be slowed down to a rate."""
        ...

    def restart(self) -> None:
        """End the process, for what it does may never end; calls under way fail, and the next one starts another."""
        ...

    async def close(self) -> None:
        """End the helper; calls under way fail with HelperError."""
        ...
