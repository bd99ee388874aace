"""What a shard does from time to time: abort transactions that take too long, and remove ids that nobody uses.

Works in turns, so that no step of the loop grows with the number of transactional ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from tailrace.coordinator.operations import Operations
from tailrace.coordinator.turns import Turns
from tailrace.errors import KafkaError
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.settings import TransactionSettings

logger = logging.getLogger("tailrace.transactions")

#: How many transactions one turn looks at.
_TOGETHER = 100


class Kept(Protocol):
    """The transactional ids of a shard."""

    def resume(self) -> Iterator[None]: ...

    def due(self) -> Iterator[str]: ...

    def time_out(self, transactional_id: str) -> bool: ...

    def expired(self, most: int) -> list[str]: ...

    def remove(self, transactional_ids: Sequence[str]) -> None: ...


class Upkeep:
    """The upkeep of one shard."""

    def __init__(
        self,
        kept: Kept,
        operations: Operations,
        settings: Callable[[], TransactionSettings],
        loop: asyncio.AbstractEventLoop,
        counters: TransactionCounters,
    ) -> None:
        self._kept = kept
        self._operations = operations
        self._settings = settings
        self._counters = counters
        self._resuming = Turns(loop)
        self._timing = Turns(loop)
        self._expiring = Turns(loop)

    def begin(self) -> None:
        """Begin when the shard is loaded."""
        self._resuming.begin(self._resume)
        self._time_later()
        self._expire_later()

    def end(self) -> None:
        """Stop; the timers end with the shard."""
        for turns in (self._resuming, self._timing, self._expiring):
            turns.end()

    def _resume(self) -> Iterator[None]:
        prepared = self._kept.resume()
        count = 0
        while resumed := len(list(islice(prepared, _TOGETHER))):
            count += resumed
            yield
        if count:
            logger.info("Resumed %d transactions whose outcome was decided before", count)

    def _time_later(self) -> None:
        self._operations.timers.set("timeouts", self._settings().timeout_check_ms, self._check_times)

    def _check_times(self) -> None:
        self._time_later()
        self._timing.begin(self._abort_due)

    def _abort_due(self) -> Iterator[None]:
        due = self._kept.due()
        while some := list(islice(due, _TOGETHER)):
            for transactional_id in some:
                try:
                    if self._kept.time_out(transactional_id):
                        self._counters.timed_out += 1
                        logger.info("Aborted the transaction of %s: it took too long", transactional_id)
                except KafkaError as error:
                    logger.warning(
                        "Cannot abort the transaction of %s, which takes too long: %s; retrying at the next check",
                        transactional_id,
                        error,
                    )
                    return
            yield

    def _expire_later(self) -> None:
        self._operations.timers.set("expiry", self._settings().expiration_check_ms, self._check_expired)

    def _check_expired(self) -> None:
        self._expire_later()
        self._expiring.begin(self._remove_expired)

    def _remove_expired(self) -> Iterator[None]:
        while some := self._kept.expired(_TOGETHER):
            try:
                self._kept.remove(some)
            except KafkaError as error:
                logger.warning("Cannot remove expired transactional ids: %s; retrying at the next check", error)
                return
            self._counters.expired += len(some)
            logger.info("Removed %d transactional ids: nobody has used them for long", len(some))
            yield
