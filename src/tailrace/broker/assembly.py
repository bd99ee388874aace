"""The wiring of one broker: the only place where its parts are put together, started and stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tailrace.broker.config import BrokerConfig
from tailrace.broker.fetch_sessions import FetchSessions
from tailrace.broker.metadata_cache import MetadataCache
from tailrace.broker.partitions import Partitions
from tailrace.broker.producer_ids import ProducerIds
from tailrace.broker.router import Router
from tailrace.broker.server import Server
from tailrace.broker.services import Services
from tailrace.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import Store
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.broker")


class Broker:
    """A whole broker over the given outside world; the same in production and in a simulation."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, store: Store) -> None:
        self.config = config
        self._runtime = runtime
        self._broker_id = config.get_int("node.id")
        #: Told when a part of the broker failed that it cannot do without.
        self.on_fatal: Callable[[BaseException], None] = _log_fatal
        self.background = Tasks(lambda error: self.on_fatal(error))
        self.requests = Tasks(_already_reported)
        self.metadata = ClusterMetadata(store, runtime.random, self._broker_id, self.background)
        self.partitions = Partitions(config, runtime, self.background)
        self.services = Services(
            self._broker_id,
            config,
            runtime.clock,
            runtime.disk,
            self.metadata,
            self.partitions,
            FetchSessions(config.get_int("max.incremental.fetch.session.cache.slots"), runtime.clock, runtime.random),
            ProducerIds(self.metadata),
            MetadataCache(),
        )
        self.server = Server(config, runtime, Router(self.services, self.requests).answer, self.background)

    async def start(self) -> None:
        """Recover what is on disk, open every log, and only then accept connections."""
        stopped_cleanly = await self.partitions.open()
        has_logs = self.partitions.has_found_logs
        await self.metadata.load(self.config.get_optional_str("cluster.id"), has_logs=has_logs)
        self.partitions.identify(self._broker_id, self.metadata.image.cluster_id)
        if not stopped_cleanly:
            await self.metadata.bump_leader_epochs()
        await self.partitions.apply(ClusterImage("", self._broker_id), self.metadata.image, self._broker_id)
        self.partitions.set_strays_aside()
        self.metadata.on_change = self._image_changed
        self.partitions.start()
        self.server.start()
        bound = {
            endpoint.listener_name: await self.server.listen(endpoint.listener_name, endpoint.host, endpoint.port)
            for endpoint in self.config.listeners
        }
        await self.metadata.register_broker(
            BrokerImage(
                self._broker_id,
                tuple(
                    BrokerEndpoint(
                        endpoint.listener_name, endpoint.host, endpoint.port or bound[endpoint.listener_name]
                    )
                    for endpoint in self.config.advertised_listeners
                ),
                self.config.get_optional_str("broker.rack"),
            )
        )

    async def _image_changed(self, before: ClusterImage) -> None:
        await self.partitions.apply(before, self.metadata.image, self._broker_id)

    async def stop(self) -> None:
        """Answer nobody any more, then sync and close the logs so that the next start is quick."""
        self.server.stop_listening()
        await self.partitions.close()
        await self.server.close()
        await self.requests.cancel()
        await self.background.cancel()


def _log_fatal(error: BaseException) -> None:
    logger.critical("the broker can not go on", exc_info=error)


def _already_reported(error: BaseException) -> None:
    """A request that failed has said so in the logging, and its connection is closed."""
