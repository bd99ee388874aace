"""Idle connections to a broker: each asks once which APIs there are, as any client does, and then says no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.clients.connection import connected
from bench.clients.server import Handle


@contextmanager
def idle_connections(handle: Handle, count: int) -> Iterator[None]:
    """Keep this many connections open for as long as the block runs."""
    with ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(connected(handle))
        yield
