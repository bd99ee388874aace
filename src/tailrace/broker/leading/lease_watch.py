"""What happens to leadership while this broker has no lease in the metadata store.

Without a lease, another broker may lead, and this one would be the last to know. But mostly the store is down for all
brokers, and no other one leads: followers keep fetching in the epoch that they know. So this broker serves a partition
that followers still fetch. A partition that no follower has fetched for a while counts as led elsewhere, until one
fetches again or the lease is back. Owns when this is checked; the partition owns what it means for clients.

A broker that was suspended wakes up without a lease and does not notice. It must first wait as long as its followers
take to fetch before it knows whether it leads anything.
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
#: How often followers' fetches check all their partitions while there is no lease.
VISIT_SECONDS = 1.0
#: The number of partitions to check before other work runs.
_AT_ONCE = 500


class LeaseWatch:
    """Checks one broker's partitions while it cannot reach the store."""

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
        #: The lease after whose end all partitions were checked.
        self._settled_lease: float | None = None
        partitions.is_unsettled = self.is_unsettled

    def is_unsettled(self) -> bool:
        """True if the lease is over and it is not known yet which partitions followers still fetch."""
        return not self._partitions.holds_lease() and self._settled_lease != self._lease_end()

    def start(self) -> None:
        """Check from now on."""
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
        """Stop serving partitions that no follower fetches any more; clients then look for another leader."""
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
                "%d partitions are not served: this broker cannot reach the metadata store and no follower "
                "fetches them, so another broker may lead them; check the connection to the store",
                doubted,
            )

    async def _trust(self) -> None:
        """Lead again according to the store, whose state the image had before the lease was back."""
        for count, partition in enumerate(self._partitions, 1):
            partition.leading.trust()
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
