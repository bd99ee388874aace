"""Retries: how long, and how often.

Owns the loop that every retry of a client goes through. What may be retried is said by the error that is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tailrace.protocol_client.errors import RetriableError, UnreachableClusterError

T = TypeVar("T")

#: Users may set a backoff of 0; brokers are not asked as fast as the processor can.
_SHORTEST_PAUSE_SECONDS = 0.001


def retry(
    look: Callable[[], T],
    patience: Callable[[RetriableError | UnreachableClusterError], float],
    pause: float,
    longest_pause: float = 0.0,
) -> T:
    """Look again until nothing retriable is in the way, or an error has lasted: then that error is raised.

    `patience` says for how many seconds since the first look an error is retried. Pauses double up to the longest one.
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
