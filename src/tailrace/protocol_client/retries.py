"""Retries: for how long, and how often.

Owns the loop of all retries of a client. The raised error says whether a retry makes sense.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tailrace.protocol_client.errors import RetriableError, UnreachableClusterError

T = TypeVar("T")

#: Users may set a backoff of 0, but brokers must not be asked as fast as the processor can.
_SHORTEST_PAUSE_SECONDS = 0.001


def retry(
    look: Callable[[], T],
    patience: Callable[[RetriableError | UnreachableClusterError], float],
    pause: float,
    longest_pause: float = 0.0,
) -> T:
    """Retry until there is no retriable error, or until one has lasted too long: then raise it.

    `patience` returns for how many seconds since the first attempt an error is retried. Pauses double up to the longest
    one.
    """
    begun = time.monotonic()
    pause = max(pause, _SHORTEST_PAUSE_SECONDS)
    while True:
        try:
            return look()
        except (RetriableError, UnreachableClusterError) as error:
            left = patience(error) - (time.monotonic() - begun)
            if left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = max(pause, min(pause * 2, longest_pause))
