"""A session as a ZooKeeper session with its own connection.

ZooKeeper renews a session with any message on its connection. The holder's deadline is counted here, from the moment of
sending a request that the servers' leader has answered. A quarter of the granted time is subtracted, because a server
tells the leader about its sessions only at the leader's next ping, half a tick later, and no session is shorter than
two ticks.

Each session has a node that disappears with it. Every transaction with keys of the session checks that node, because
kazoo silently continues with another session after one expires, and the keys must not end up there.
"""

from __future__ import annotations

import asyncio
import logging

from tailrace.cluster.store import Unavailable
from tailrace.runtime.clock import Clock
from tailrace.stores.sessions import HeldSession
from tailrace.stores.zookeeper_client import Connection
from tailrace.stores.zookeeper_nodes import session_key

logger = logging.getLogger("tailrace.stores")

_SURE_SHARE = 0.75
#: The number of renewals within the granted time, and the share of it after which another server is tried.
_RENEWALS = 5
_ANSWER_SHARE = 0.25


class ZooKeeperSession(HeldSession):
    """A session that is renewed until it is closed or lost."""

    def __init__(self, connection: Connection, clock: Clock, session_id: int, sent_at: float) -> None:
        self._granted_seconds = connection.granted_ms / 1000
        super().__init__(clock, sent_at + self._granted_seconds * _SURE_SHARE)
        self.connection = connection
        #: ZooKeeper's number of the session, the owner of all its nodes.
        self.session_id = session_id
        self._time = clock
        connection.on_change = self._reached
        self._renewing = asyncio.ensure_future(self._renew_until_lost())

    async def close(self) -> None:
        """End the session: its keys are removed at once, or within its time to live if no server is reachable."""
        self.lose()
        self._renewing.cancel()
        await self.connection.stop()

    async def abandon(self) -> None:
        """Stop renewals and let the session expire."""
        self.lose()
        self._renewing.cancel()
        await self.connection.stop(goodbye=False)

    def _reached(self, is_reached: bool) -> None:
        if not is_reached and self.connection.is_expired:
            self.lose()

    async def _renew_until_lost(self) -> None:
        interval = self._granted_seconds / _RENEWALS
        pause = interval
        while not self.is_lost:
            await asyncio.sleep(pause)
            # Count from the request, not from the answer: ZooKeeper may have counted from any moment in between.
            sent_at = self._time.monotonic()
            try:
                await self.connection.run(
                    [lambda client: client.sync_async("/")], self._granted_seconds * _ANSWER_SHARE
                )
            except Unavailable:
                pause = interval / 4
                continue
            self.extend(sent_at + self._granted_seconds * _SURE_SHARE)
            pause = max(sent_at + interval - self._time.monotonic(), 0.0)
        # It may still be alive in ZooKeeper: end it, so that no one has to wait for it to expire.
        await self.connection.stop()


async def open_zookeeper_session(
    connection: Connection, clock: Clock, prefix: str, ttl_ms: int, seconds: float
) -> ZooKeeperSession:
    """Begin a session on its own connection; the directory of session nodes must exist."""
    session_id = await connection.begin_session(seconds)
    node = prefix + session_key(session_id)
    sent_at = clock.monotonic()
    created, found = await connection.run(
        [
            lambda client: client.create_async(node, ephemeral=True),
            lambda client: client.exists_async(node),
        ],
        seconds,
    )
    if found is None or found.ephemeralOwner != session_id:
        raise Unavailable(f"ZooKeeper at {connection.name}: the session ended at once: {created}")
    if connection.granted_ms != ttl_ms:
        logger.info("ZooKeeper granted a session timeout of %d ms instead of %d ms", connection.granted_ms, ttl_ms)
    return ZooKeeperSession(connection, clock, session_id, sent_at)
