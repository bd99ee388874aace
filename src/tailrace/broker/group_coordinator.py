"""The group coordinator of one broker: the coordinator kind for groups, connected to the broker's configuration."""

from __future__ import annotations

from random import Random
from uuid import UUID

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.cluster.catching_up import CatchingUp
from tailrace.cluster.image import BrokerEndpoint, ClusterImage
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.kind import Host, Kind, TopicSettings
from tailrace.coordinator.operations import Operations
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.counters import GroupCounters
from tailrace.groups.newcomers import Newcomers
from tailrace.groups.settings import GroupSettings
from tailrace.groups.shard import GroupShard
from tailrace.model import OFFSETS_TOPIC

_MINUTE_MS = 60_000


class GroupCoordinator(Coordinator[GroupShard]):
    """Coordinates the groups whose partitions of the offsets topic this broker leads."""

    def __init__(self, config: BrokerConfig, random: Random, host: Host) -> None:
        self._config = config
        self._random = random
        self._settings = self._read_settings()
        self.counters = GroupCounters()
        self._newcomers = Newcomers()
        self._catching_up = CatchingUp(host.metadata, host.tasks)
        super().__init__(Kind(OFFSETS_TOPIC, "offsets topic", self._topic_settings, self._make), host)

    def _make(self, operations: Operations) -> GroupShard:
        return GroupShard(
            operations,
            self.settings,
            lambda: self._metadata.image,
            self._catching_up.call_when_current,
            self._host.clock,
            self.new_member_id,
            self.counters,
            self._newcomers,
        )

    def _topic_settings(self) -> TopicSettings:
        config = self._config
        return TopicSettings(
            config.get_int("offsets.topic.num.partitions"),
            config.get_int("offsets.topic.replication.factor"),
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
            },
        )

    def settings(self) -> GroupSettings:
        """Return the current group settings; every new image re-reads them, as it brings changes made at run time."""
        return self._settings

    def _read_settings(self) -> GroupSettings:
        config = self._config
        return GroupSettings(
            min_session_timeout_ms=config.get_int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.get_int("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
            max_size=config.get_int("group.max.size"),
            offset_metadata_max_bytes=config.get_int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.get_int("offsets.retention.minutes") * _MINUTE_MS,
            offsets_retention_check_ms=config.get_int("offsets.retention.check.interval.ms"),
            consumer_session_timeout_ms=config.get_int("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.get_int("group.consumer.heartbeat.interval.ms"),
            consumer_max_size=config.get_int("group.consumer.max.size"),
            consumer_assignors=config.get_list("group.consumer.assignors"),
            may_upgrade=config.get_str("group.consumer.migration.policy") in ("bidirectional", "upgrade"),
            may_downgrade=config.get_str("group.consumer.migration.policy") in ("bidirectional", "downgrade"),
        )

    def new_member_id(self) -> str:
        """Return a unique member id."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    async def locate(self, key: str, listener: str) -> tuple[int, BrokerEndpoint]:
        """Return the broker that coordinates a group, and its endpoint for clients of a listener."""
        if not key:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return await super().locate(key, listener)

    def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Apply the image: settings, the shards that this broker leads, and the removal of deleted topics' offsets."""
        self._settings = self._read_settings()
        super().apply(before, after)
        if before.topics is after.topics:
            return
        if any(one.lineage not in after.topics_by_lineage for one in before.topics.values()):
            for shard in self:
                shard.topics_deleted()
