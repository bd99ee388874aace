"""Retries against a store that does not answer, for calls that are safe to repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace.cluster.store import Unavailable

T = TypeVar("T")

ATTEMPTS = 3
RETRY_SECONDS = 0.5


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is safe to repeat, and retry a few times if its outcome is unknown."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
    return await work()
