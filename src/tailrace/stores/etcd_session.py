"""A session as an etcd lease: renewed three times per time to live, through whichever member answers first."""

from __future__ import annotations

import asyncio
import math

from tailrace.errors import TailraceError
from tailrace.runtime.clock import Clock
from tailrace.stores.etcd_client import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, EtcdClient
from tailrace.stores.etcd_messages import Lease, lease_grant_request, lease_request, read_lease_response, understood
from tailrace.stores.sessions import RENEWALS_PER_TTL, HeldSession

#: etcd counts in whole seconds, and by default grants no less.
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
        """End the session: its keys are removed at once, or within its time to live if etcd is unreachable."""
        self.lose()
        await self.abandon()
        await self._revoke()

    async def abandon(self) -> None:
        """Stop renewals and let the session expire."""
        self._renewing.cancel()
        await asyncio.wait([self._renewing])

    async def _renew_until_lost(self, sent_at: float) -> None:
        interval = self._ttl_seconds / RENEWALS_PER_TTL
        # At once, if the grant took much of its time to live.
        pause = max(sent_at + interval - self._time.monotonic(), 0.0)
        times_gone = 0
        while not self.is_lost:
            await asyncio.sleep(pause)
            # Count from the request, not from the answer: etcd may have counted from any moment in between.
            sent_at = self._time.monotonic()
            try:
                # Ask every member: sessions are lost during elections, whose outcome not all members know at once.
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
                # Believe it only the second time: a newly elected leader may not know the lease yet.
                times_gone += 1
                pause = interval / 4
                if times_gone > 1:
                    self.lose()
        # A late renewal may have kept it alive: end it, so that no one has to wait for it to expire.
        await self._revoke()

    async def _revoke(self) -> None:
        try:
            await self._client.call(LEASE_REVOKE, lease_request(self.lease_id), may_repeat=True)
        except TailraceError:
            pass  # it is gone already, or will expire


async def open_etcd_session(client: EtcdClient, clock: Clock, ttl_ms: int) -> EtcdSession:
    """Open a lease with at least this time to live."""
    sent_at = clock.monotonic()
    ttl_seconds = max(math.ceil(ttl_ms / 1000), MIN_TTL_SECONDS)
    answer = await client.call(LEASE_GRANT, lease_grant_request(ttl_seconds), may_repeat=True)
    return EtcdSession(client, clock, understood(read_lease_response, answer), sent_at)
