"""The wiring of one broker: the only place that creates, starts and stops its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tailrace import __version__
from tailrace.archive.installation import can_read_archives
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.fetching.archive_reads import ArchiveReads
from tailrace.broker.fetching.sessions import FetchSessions
from tailrace.broker.following.fetchers import ReplicaFetchers
from tailrace.broker.group_coordinator import GroupCoordinator
from tailrace.broker.handlers import find_coordinator
from tailrace.broker.leading.controller import Controller
from tailrace.broker.leading.isr_keeper import IsrKeeper
from tailrace.broker.leading.leadership import Leadership
from tailrace.broker.leading.lease_watch import LeaseWatch
from tailrace.broker.leading.log_ends import ask_leaders, ask_log_ends
from tailrace.broker.lifecycle import BrokerState, Lifecycle
from tailrace.broker.marker_calls import BrokerMarkerCalls
from tailrace.broker.metadata_cache import MetadataCache
from tailrace.broker.monitoring.monitoring import Monitoring
from tailrace.broker.monitoring.observed import Observed
from tailrace.broker.network.broker_identity import BrokerIdentity
from tailrace.broker.network.peers import Peers
from tailrace.broker.network.request_memory import RequestMemory
from tailrace.broker.network.router import Router
from tailrace.broker.network.server import Server
from tailrace.broker.partitions import Partitions
from tailrace.broker.producer_ids import ProducerIds
from tailrace.broker.services import Services
from tailrace.broker.transaction_coordinator import TransactionCoordinator
from tailrace.broker.transaction_markers import write_markers
from tailrace.broker.transactional_appends import TransactionalAppends
from tailrace.broker.upkeep.archive_access import ArchiveAccess
from tailrace.broker.upkeep.archive_watch import ArchiveWatch
from tailrace.broker.upkeep.cleaner import Cleaner
from tailrace.broker.upkeep.scrubber import Scrubber
from tailrace.cluster.image import ALL_BROKERS, BrokerEndpoint, BrokerImage, ClusterImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.registration import Registration
from tailrace.cluster.store import Store
from tailrace.coordinator.coordinators import Coordinators
from tailrace.coordinator.kind import Host
from tailrace.runtime import Runtime
from tailrace.runtime.long_work import LongWork
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.broker")


class ProcessIdentity(NamedTuple):
    """The host and process id of a broker, for people."""

    host: str = ""
    pid: int = 0


class Broker:
    """A whole broker over the given environment; the same in production and in a simulation."""

    def __init__(self, config: BrokerConfig, runtime: Runtime, store: Store) -> None:
        self.config = config
        self._runtime = runtime
        self._broker_id = config.get_int("node.id")
        #: Called when an indispensable part of the broker failed.
        self.on_fatal: Callable[[BaseException], None] = _log_fatal
        self.background = Tasks(lambda error: self.on_fatal(error))
        self.requests = Tasks(_already_reported)
        self.metadata = ClusterMetadata(store, runtime.random, self._broker_id, self.background)
        self.registration = Registration(
            store,
            self.metadata,
            runtime.clock,
            runtime.random,
            self._broker_id,
            config.get_int("broker.session.timeout.ms"),
            self.background,
        )
        #: Shown to people and other brokers; set by the code that runs the broker.
        self.process = ProcessIdentity()
        self.identity = BrokerIdentity(
            self._broker_id, lambda: self.registration.epoch, lambda: self.metadata.image.cluster_id, runtime
        )
        self.fetchers = ReplicaFetchers(
            self._broker_id,
            lambda: self.registration.epoch,
            config,
            runtime,
            self.background,
            self.identity,
        )
        self.metadata.holds_lease = self._holds_lease
        self.partitions = Partitions(config, runtime, self.background, self.fetchers, self._holds_lease)
        request_memory = RequestMemory(config.get_int("queued.max.request.bytes"))
        self.partitions.long_work = LongWork(request_memory)
        self.isr_keeper = IsrKeeper(config, runtime.clock, self.metadata, self.partitions, self.background)
        self.lease_watch = LeaseWatch(
            config, runtime.clock, self.partitions, self.background, lambda: self.registration.deadline
        )
        host = Host(self._broker_id, self.metadata, self.partitions, runtime.clock, self.background)
        self.groups = GroupCoordinator(config, runtime.random, host)
        producer_ids = ProducerIds(self.metadata, self.background)
        # Markers wait until they are committed, so they have connections of their own.
        self._marker_peers = self._new_peers("markers")
        self._adding_peers = self._new_peers("transactions")
        marker_calls = BrokerMarkerCalls(self._broker_id, self._marker_peers, self.background)
        self.transactions = TransactionCoordinator(config, producer_ids, marker_calls, host)
        #: All coordinators of this broker.
        self.coordinators = Coordinators()
        self.coordinators.add(self.groups, find_coordinator.GROUP)
        self.coordinators.add(self.transactions, find_coordinator.TRANSACTION)
        self.controller = Controller(
            config,
            store,
            self.metadata,
            self.registration,
            self._broker_id,
            self.background,
            partial(ask_log_ends, runtime, config.get_optional_str("inter.broker.listener.name")),
            self.coordinators.replication_factors,
        )
        self.leadership = Leadership(
            config, runtime, self.metadata, self.partitions, self._broker_id, self.background, self.identity
        )
        self.cleaner = Cleaner(config, runtime, self.partitions, self.background)
        self.scrubber = Scrubber(config, runtime, self.partitions, self.background)
        self.archive_reads = ArchiveReads(runtime.helper, runtime.archive_helper, self.metadata, self.background)
        self.partitions.archive_reader = self.archive_reads
        self.archive_access = ArchiveAccess(
            self.archive_reads, self.metadata, self.partitions, runtime.clock, self.background
        )
        self.archive_watch = ArchiveWatch(config, runtime, self.partitions, self.archive_access, self.background)
        self.services = Services(
            self._broker_id,
            config,
            runtime.clock,
            runtime.disk,
            self.metadata,
            self.partitions,
            FetchSessions(
                config.get_int("max.incremental.fetch.session.cache.slots"),
                runtime.clock,
                runtime.random,
                config.get_int("tailrace.fetch.session.cache.partitions"),
            ),
            producer_ids,
            MetadataCache(),
            self.coordinators,
            self.groups,
            self.transactions,
            TransactionalAppends(self._broker_id, self.transactions, self._adding_peers, self.background),
            self.leadership,
            self.archive_reads,
            self.archive_access,
            self.identity,
            request_memory=request_memory,
        )
        marker_calls.write_here = partial(write_markers, self.services)
        router = Router(self.services, self.requests)
        self.server = Server(config, runtime, router.answer, self.background, self.services.request_memory)
        self.lifecycle = Lifecycle()
        self.observed = Observed(
            self._broker_id,
            self.metadata,
            self.partitions,
            self.server,
            self.services.fetch_sessions,
            self.cleaner,
            self.scrubber,
            self.services.counters,
            self.lifecycle,
            self.groups,
            self.transactions,
            self.archive_reads,
            self.archive_watch,
        )
        self.monitoring = Monitoring(config, runtime, self.observed, self.background, self.requests)

    def _new_peers(self, purpose: str) -> Peers:
        return Peers(
            f"broker-{self._broker_id}-{purpose}",
            self._runtime,
            self.identity,
            lambda: self.metadata.image,
            self.config.get_optional_str("inter.broker.listener.name"),
        )

    async def start(self) -> None:
        """Recover the data on disk, open every log, and only then accept connections."""
        self.lifecycle.state = BrokerState.RECOVERY
        await self.monitoring.start()
        recovery_began = self._runtime.clock.monotonic()
        stopped_cleanly = await self.partitions.open()
        has_logs = self.partitions.has_found_logs
        await self.metadata.load(self.config.get_optional_str("cluster.id"), has_logs=has_logs)
        self.partitions.identify(self._broker_id, self.metadata.image.cluster_id)
        self._take_dynamic_config()
        await self.registration.claim(self.partitions.directory_ids, self.partitions.stopped_in_epoch)
        self.partitions.broker_epoch = self.registration.epoch
        nothing = ClusterImage("", self._broker_id)
        await self.partitions.apply(nothing, self.metadata.image)
        self.lifecycle.stopped_cleanly = stopped_cleanly
        self.lifecycle.recovery_seconds = self._runtime.clock.monotonic() - recovery_began
        self.partitions.set_strays_aside()
        self.coordinators.apply(nothing, self.metadata.image)
        self.metadata.on_change = self._image_changed
        self.partitions.on_reopened = self.coordinators.reopened
        self.partitions.start()
        self.isr_keeper.start()
        self.lease_watch.start()
        await self.metadata.start()
        self.cleaner.start()
        self.scrubber.start()
        self.archive_watch.start()
        self.server.start()
        bound = {
            endpoint.listener_name: await self.server.listen(endpoint.listener_name, endpoint.host, endpoint.port)
            for endpoint in self.config.listeners
        }
        await self.registration.register(
            BrokerImage(
                self._broker_id,
                tuple(
                    BrokerEndpoint(
                        endpoint.listener_name, endpoint.host, endpoint.port or bound[endpoint.listener_name]
                    )
                    for endpoint in self.config.advertised_listeners
                ),
                self.config.get_optional_str("broker.rack"),
                host=self.process.host,
                pid=self.process.pid,
                software_version=__version__,
                started_ms=self._runtime.clock.wall_ms(),
                reads_archives=can_read_archives(),
                features=self.metadata.supported,
                verifier=self.identity.verifier,
            )
        )
        await self.controller.start()
        self.leadership.start()
        self.partitions.on_directory_failed = self.leadership.directory_failed
        self.lifecycle.state = BrokerState.RUNNING

    async def _image_changed(self, before: ClusterImage) -> None:
        if self.metadata.image.broker_configs is not before.broker_configs:
            self._take_dynamic_config()
            await self.partitions.reconfigure()
        await self.partitions.apply(before, self.metadata.image)
        self.coordinators.apply(before, self.metadata.image)

    def _holds_lease(self) -> bool:
        return self._runtime.clock.monotonic() < self.registration.deadline

    def _take_dynamic_config(self) -> None:
        image = self.metadata.image
        problems = self.config.set_dynamic(image.configs_of(ALL_BROKERS), image.configs_of(str(self._broker_id)))
        for problem in problems:
            logger.error("%s", problem)

    async def stop(self) -> None:
        """Hand over leadership, stop serving, then sync and close the logs so that the next start is quick."""
        self.lifecycle.state = BrokerState.SHUTTING_DOWN
        await self.controller.close()
        if self.registration.is_registered and self.config.get_bool("controlled.shutdown.enable"):
            await self.leadership.hand_over_all()
            if self.registration.is_registered:  # otherwise the store does not answer this broker
                listener = self.config.get_optional_str("inter.broker.listener.name")
                await self.registration.hand_over(partial(ask_leaders, self._runtime, listener))
                self.partitions.broker_epoch = self.registration.epoch
        self.fetchers.close()
        self.server.stop_listening()
        self.coordinators.close()
        self._marker_peers.close()
        self._adding_peers.close()
        await self.cleaner.close()
        await self.archive_reads.close()
        await self._runtime.helper.close()
        await self.partitions.close()
        await self.registration.close()
        await self.server.close()
        await self.monitoring.close()
        await self.requests.cancel()
        await self.background.cancel()


def _log_fatal(error: BaseException) -> None:
    logger.critical("the broker cannot continue", exc_info=error)


def _already_reported(error: BaseException) -> None:
    """Ignore the failure of a request: it is already logged, and its connection is closed."""
