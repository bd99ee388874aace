"""What becomes of leadership while this broker's lease in the metadata store is over.

Without a lease another may lead, and this broker would be the last to know. But mostly the store is away for all, and
then nobody else does: followers go on to fetch, in the epoch that they know. So a partition that followers still fetch
is served as ever; one that none of them has fetched for a while counts as led elsewhere, until one fetches again or the
lease is back. Owns when that is looked at; what it means for clients is the partition's.

A broker that was suspended or stopped wakes up with a lease that is over and without having noticed. It does not know
whether it leads anything before it has waited for as long as its followers take to fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.partitions import Partitions
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.replication")

_LOOK_SECONDS = 0.5
#: While the lease is over, followers' fetches tell of all their partitions so often.
VISIT_SECONDS = 1.0
#: Partitions that are looked at before others are served.
_AT_ONCE = 500


class LeaseWatch:
    """Looks after one broker's partitions while it does not reach the store."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        partitions: Partitions,
        tasks: Tasks,
        lease_end: Callable[[], float],
    ) -> None:
        self._config = config
        self._clock = clock
        self._partitions = partitions
        self._tasks = tasks
        self._lease_end = lease_end
        #: The lease after whose end all partitions were looked at.
        self._settled_lease: float | None = None
        partitions.is_unsettled = self.is_unsettled

    def is_unsettled(self) -> bool:
        """Whether the lease is over, and it is not known yet which partitions followers still fetch."""
        return not self._partitions.holds_lease() and self._settled_lease != self._lease_end()

    def start(self) -> None:
        """Look from now on."""
        self._tasks.spawn(self._run(), "lease")

    async def _run(self) -> None:
        over_since: float | None = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._partitions.holds_lease():
                if over_since is not None:
                    await self._trust()
                over_since = None
                continue
            now = self._clock.monotonic()
            over_since = now if over_since is None else over_since
            silence = VISIT_SECONDS + 2 * self._config.get_int("replica.fetch.wait.max.ms") / 1000 + _LOOK_SECONDS
            if now - over_since >= silence:
                await self._doubt(silence)

    async def _doubt(self, silence: float) -> None:
        """Send clients elsewhere that ask for what no follower asks for any more."""
        doubted = 0
        lease = self._lease_end()
        for count, partition in enumerate(self._partitions, 1):
            if self._partitions.holds_lease():
                return
            doubted += partition.leading.doubt(self._clock.monotonic() - silence)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._settled_lease = lease
        if doubted:
            logger.warning(
                "%d partitions are not served: this broker does not reach the metadata store and no follower fetches "
                "them, so another broker may lead them; check the connection to the store",
                doubted,
            )

    async def _trust(self) -> None:
        """Lead again what the store says, which the image showed before the lease was back."""
        for count, partition in enumerate(self._partitions, 1):
            partition.leading.trust()
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
