"""The transaction coordinator of one broker: the kind for transactions, connected to the broker's configuration.

Transactions are served once `transaction.version` is finalized at level 1 or 2, which every broker must support: a
broker of an earlier release would lead partitions without being able to end transactions in them.
"""

from __future__ import annotations

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.producer_ids import ProducerIds
from tailrace.cluster.catching_up import CatchingUp
from tailrace.cluster.features import TRANSACTION_VERSION, TRANSACTIONS_LEVEL
from tailrace.cluster.image import BrokerEndpoint, ClusterImage
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.kind import Host, Kind, TopicSettings
from tailrace.coordinator.operations import Operations
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TRANSACTIONS_TOPIC
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.delivery import Delivery, MarkerCalls
from tailrace.transactions.settings import TransactionSettings
from tailrace.transactions.shard import TransactionShard


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Coordinates the transactional ids whose partitions of the transaction topic this broker leads."""

    def __init__(self, config: BrokerConfig, producer_ids: ProducerIds, calls: MarkerCalls, host: Host) -> None:
        self._config = config
        self._producer_ids = producer_ids
        self._settings = self._read_settings(host.metadata.image)
        self.counters = TransactionCounters()
        catching_up = CatchingUp(host.metadata, host.tasks)
        self._delivery = Delivery(
            calls, lambda: host.metadata.image, catching_up.call_when_current, host.tasks, self.counters
        )
        super().__init__(Kind(TRANSACTIONS_TOPIC, "transaction topic", self._topic_settings, self._make), host)

    def _make(self, operations: Operations) -> TransactionShard:
        return TransactionShard(
            operations, self.settings, self._delivery, self._producer_ids.take, self._host.clock, self.counters
        )

    def _topic_settings(self) -> TopicSettings:
        config = self._config
        return TopicSettings(
            config.get_int("transaction.state.log.num.partitions"),
            config.get_int("transaction.state.log.replication.factor"),
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
                "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )

    def settings(self) -> TransactionSettings:
        """Return the current settings; every new image re-reads them, as it brings changes made at run time."""
        return self._settings

    def _read_settings(self, image: ClusterImage) -> TransactionSettings:
        config = self._config
        return TransactionSettings(
            is_enabled=image.features.level(TRANSACTION_VERSION) >= TRANSACTIONS_LEVEL,
            max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
            id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
            timeout_check_ms=config.get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            expiration_check_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )

    def require_enabled(self) -> None:
        """Refuse new transactions until every broker can end them."""
        if not self._settings.is_enabled:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"Transactions are off: finalize {TRANSACTION_VERSION} when every broker runs this release "
                f"(tailrace cluster features upgrade {TRANSACTION_VERSION}=2).",
            )

    async def locate(self, key: str, listener: str) -> tuple[int, BrokerEndpoint]:
        """Return the broker that coordinates a transactional id, and its endpoint for clients of a listener."""
        self.require_enabled()
        return await super().locate(key, listener)

    def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Apply the image: settings, and the shards that this broker leads."""
        self._settings = self._read_settings(after)
        super().apply(before, after)
