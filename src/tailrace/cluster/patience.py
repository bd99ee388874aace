"""How a broker deals with a store that does not answer: it asks again, for what may safely be done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace.cluster.store import Unavailable

T = TypeVar("T")

ATTEMPTS = 3
RETRY_SECONDS = 0.5


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Do something that may be done twice, again where the store does not say whether it was done, but not for ever."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
    return await work()
