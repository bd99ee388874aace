"""The helper port: CPU-bound Python work that must not share the broker's interpreter.

Functions are passed by module and name, so they must be importable; arguments and results are bytes and plain values. A
helper may die at any moment. That raises `HelperError` in its pending calls, never in the broker, and leaves it unknown
how far they got. So whatever a function leaves on disk counts only once the call has completed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tailrace.errors import TailraceError
from tailrace.runtime.disk import Buffer, FileRange

T = TypeVar("T")


class HelperError(TailraceError):
    """The helper ended, or could not be started, before a call was answered."""


class Helper(Protocol):
    """Another low-priority interpreter on this machine, started on first use."""

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an importable function in the helper; its exceptions are raised here."""
        ...

    async def run_for_bytes(self, function: Callable[..., Buffer], *arguments: object) -> Buffer | FileRange:
        """The same for large results that are only passed on: they may be returned as a range of a memory file."""
        ...

    async def run_on_disk(
        self, function: Callable[..., T], *arguments: object, bytes_per_second: float | None = None
    ) -> T:
        """The same with the helper's own `Disk` as the first argument, optionally limited to a rate."""
        ...

    def restart(self) -> None:
        """End the process, because its work may never end; pending calls fail, and the next call starts another."""
        ...

    async def close(self) -> None:
        """End the helper; pending calls fail with HelperError."""
        ...
