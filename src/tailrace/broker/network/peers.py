"""Requests to other brokers, over one connection to each that stays open.

A connection is opened by the first request, on which this broker proves who it is. Concurrent requests share it, and
their answers come in order, so slow requests should have `Peers` of their own. A request is never repeated here: the
caller knows whether it may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tailrace.broker.network.broker_identity import BrokerIdentity
from tailrace.broker.network.peer import PeerConnection, peer_endpoint
from tailrace.cluster.image import BrokerImage, ClusterImage
from tailrace.runtime import Runtime
from tailrace.wire.codec import Message

Response = TypeVar("Response", bound=Message)


class _Open(NamedTuple):
    """A connection, and the start of the broker that it leads to."""

    epoch: int
    connection: PeerConnection


class Peers:
    """Connections to the other brokers."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        identity: BrokerIdentity,
        image: Callable[[], ClusterImage],
        listener: str | None,
    ) -> None:
        self._name = name
        self._runtime = runtime
        self._identity = identity
        self._image = image
        self._listener = listener
        self._open: dict[int, _Open] = {}
        self._turns: dict[int, asyncio.Lock] = {}

    async def call(
        self, broker_id: int, request: Message, version: int, response: type[Response], seconds: float
    ) -> Response:
        """Send a request and return its response; OSError if the broker does not answer in time."""
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            raise ConnectionError(f"broker {broker_id} is not registered")
        connection = await self._connection_to(broker, seconds)
        return await connection.call(request, version, response, seconds)

    def forget(self, broker_id: int) -> None:
        """Use a new connection next time, on which this broker proves its identity again."""
        known = self._open.pop(broker_id, None)
        if known is not None:
            known.connection.close()

    async def _connection_to(self, broker: BrokerImage, seconds: float) -> PeerConnection:
        broker_id = broker.broker_id
        # Those who come while a connection is opened use that one.
        async with self._turns.setdefault(broker_id, asyncio.Lock()):
            known = self._open.get(broker_id)
            if known is not None and known.epoch == broker.epoch and known.connection.is_open:
                return known.connection
            self.forget(broker_id)
            connection = await self._connect(broker, seconds)
            self._open[broker_id] = _Open(broker.epoch, connection)
            return connection

    async def _connect(self, broker: BrokerImage, seconds: float) -> PeerConnection:
        endpoint = peer_endpoint(broker, self._listener)
        try:
            connection = await PeerConnection.connect(
                self._runtime.network, endpoint.host, endpoint.port, self._name, seconds
            )
        except TimeoutError:
            raise ConnectionError(f"broker {broker.broker_id} does not accept connections") from None
        try:
            await self._identity.prove_to(broker, connection, seconds)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close all connections; requests without a response fail."""
        for broker_id in list(self._open):
            self.forget(broker_id)
