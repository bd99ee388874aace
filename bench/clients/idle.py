"""Idle connections to a broker: each asks once for the API versions, as any client does, and then stays silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.clients.connection import connected
from bench.clients.server import Handle


@contextmanager
def idle_connections(handle: Handle, count: int) -> Iterator[None]:
    """Keep this many connections open while the block runs."""
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(connected(handle))
        yield
