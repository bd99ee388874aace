"""A session as a lease of etcd: renewed three times within its time to live, by whichever member answers first."""

from __future__ import annotations

import asyncio
import math

from tailrace.errors import TailraceError
from tailrace.runtime.clock import Clock
from tailrace.stores.etcd_client import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, EtcdClient
from tailrace.stores.etcd_messages import Lease, lease_grant_request, lease_request, read_lease_response, understood
from tailrace.stores.sessions import RENEWALS_PER_TTL, HeldSession

#: Etcd counts in whole seconds, and with its usual settings it grants no less.
MIN_TTL_SECONDS = 2


class EtcdSession(HeldSession):
    """A lease that is renewed until it is closed or lost."""

    def __init__(self, client: EtcdClient, clock: Clock, lease: Lease, granted_at: float) -> None:
        super().__init__(clock, granted_at + lease.ttl_seconds)
        self._client = client
        self._time = clock
        self._ttl_seconds = lease.ttl_seconds
        self.lease_id = lease.lease_id
        self._renewing = asyncio.ensure_future(self._renew_until_lost(granted_at))

    async def close(self) -> None:
        """End it: its keys are gone at once, or within its time to live where etcd cannot be reached."""
        self.lose()
        await self.abandon()
        await self._revoke()

    async def abandon(self) -> None:
        """Renew it no more, and leave it to its time to live."""
        self._renewing.cancel()
        await asyncio.wait([self._renewing])

    async def _renew_until_lost(self, sent_at: float) -> None:
        interval = self._ttl_seconds / RENEWALS_PER_TTL
        # At once, where much of its life went by until it was granted.
        pause = max(sent_at + interval - self._time.monotonic(), 0.0)
        times_gone = 0
        while not self.is_lost:
            await asyncio.sleep(pause)
            # From here, not from the answer: etcd may have counted from any moment in between.
            sent_at = self._time.monotonic()
            try:
                # Every member: what kills sessions is an election, and not all know of its outcome at once.
                left = max(self.deadline - sent_at, 0.0)
                answer = await self._client.call_anyone(LEASE_KEEP_ALIVE, lease_request(self.lease_id), left)
                lease = read_lease_response(answer)
            except (TailraceError, ValueError):
                pause = interval / 4
                continue
            if lease.ttl_seconds > 0:
                times_gone = 0
                self.extend(sent_at + lease.ttl_seconds)
                pause = max(sent_at + interval - self._time.monotonic(), 0.0)
            else:
                # Not believed at the first time: a leader that was elected just now may not have got to know it yet.
                times_gone += 1
                pause = interval / 4
                if times_gone > 1:
                    self.lose()
        # Where a late renewal has kept it alive, nobody shall wait for its end.
        await self._revoke()

    async def _revoke(self) -> None:
        try:
            await self._client.call(LEASE_REVOKE, lease_request(self.lease_id), may_repeat=True)
        except TailraceError:
            pass  # it is gone already, or it ends by itself


async def open_etcd_session(client: EtcdClient, clock: Clock, ttl_ms: int) -> EtcdSession:
    """A new lease of at least this time to live."""
    sent_at = clock.monotonic()
    ttl_seconds = max(math.ceil(ttl_ms / 1000), MIN_TTL_SECONDS)
    answer = await client.call(LEASE_GRANT, lease_grant_request(ttl_seconds), may_repeat=True)
    return EtcdSession(client, clock, understood(read_lease_response, answer), sent_at)
