"""The group coordinator of one broker: the offsets topic, its shards that are led here, and who is asked for a group.

Owns the creation of the offsets topic, which happens when the first client looks for a coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from random import Random
from uuid import UUID

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.partition_view import replica_to_ask
from tailrace.broker.partitions import Partitions
from tailrace.cluster.image import BrokerEndpoint, ClusterImage, TopicImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.patience import RETRY_SECONDS
from tailrace.cluster.store import Unavailable
from tailrace.coordinator.shards import Shards, partition_for
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.counters import GroupCounters
from tailrace.groups.newcomers import Newcomers
from tailrace.groups.settings import GroupSettings
from tailrace.groups.shard import GroupShard
from tailrace.model import OFFSETS_TOPIC
from tailrace.replication.partition import Partition
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.groups")

_MINUTE_MS = 60_000


class GroupCoordinator:
    """Finds the shard of a group, and who has it if this broker has not."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
        metadata: ClusterMetadata,
        partitions: Partitions,
        broker_id: int,
        tasks: Tasks,
    ) -> None:
        self._config = config
        self._random = random
        self._metadata = metadata
        self._partitions = partitions
        self._broker_id = broker_id
        self._settings = self._read_settings()
        self.counters = GroupCounters()
        newcomers = Newcomers()
        self._shards: Shards[GroupShard] = Shards(
            clock,
            tasks,
            lambda operations: GroupShard(
                operations,
                self.settings,
                self._current_image,
                self._catch_up,
                clock,
                self.new_member_id,
                self.counters,
                newcomers,
            ),
        )
        self._tasks = tasks
        # Who waits for the image to show what the store has, and whether that is being done.
        self._behind: list[Callable[[], None]] = []
        self._is_catching_up = False

    def __iter__(self) -> Iterator[GroupShard]:
        return iter(self._shards)

    @property
    def is_loading(self) -> bool:
        return self._shards.is_loading

    def settings(self) -> GroupSettings:
        """The group settings in force; read anew with every image, which brings what was changed at run time."""
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

    def _current_image(self) -> ClusterImage:
        return self._metadata.image

    def new_member_id(self) -> str:
        """An id that no other member has."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    # --- finding

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group, or why this broker cannot be asked for it."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return self._shards.find(partition_for(group_id, len(topic.partitions)))

    async def locate(self, group_id: str, listener: str) -> tuple[int, BrokerEndpoint]:
        """The broker that coordinates a group, and its address for clients of a listener."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC) or await self._create_topic()
        number = partition_for(group_id, len(topic.partitions))
        state, brokers = topic.partitions[number], self._metadata.image.brokers
        is_cut_off = self._partitions.is_cut_off(topic, number)
        broker = brokers.get(replica_to_ask(state, brokers) if is_cut_off else state.leader)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is None or endpoint is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        return broker.broker_id, endpoint

    async def _create_topic(self) -> TopicImage:
        config = self._config
        brokers = len(self._metadata.image.brokers)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        }
        try:
            planned = self._metadata.plan_topic(
                OFFSETS_TOPIC,
                config.get_int("offsets.topic.num.partitions"),
                # The controller makes it more when there are more brokers.
                min(config.get_int("offsets.topic.replication.factor"), max(brokers, 1)),
                {},
                configs,
            )
            await self._metadata.create_topic(planned)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The offsets topic is being created.")
        return topic

    # --- following the image

    def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Load the shards that this broker leads now, drop those that it does not, forget deleted topics."""
        self._settings = self._read_settings()
        topic, earlier = after.topics.get(OFFSETS_TOPIC), before.topics.get(OFFSETS_TOPIC)
        if topic is not earlier:
            self._follow_leaders(topic, earlier)
        if before.topics is after.topics:
            return
        if any(one.topic_id not in after.topics_by_id for one in before.topics.values()):
            for shard in self._shards:
                shard.topics_deleted()

    def _catch_up(self, then: Callable[[], None]) -> None:
        """Call back when the image shows all that the store has now; one look at the store serves many shards."""
        self._behind.append(then)
        if not self._is_catching_up:
            self._is_catching_up = True
            self._tasks.spawn(self._catch_up_with_store(), "look for the topics of committed offsets")

    async def _catch_up_with_store(self) -> None:
        try:
            while self._behind:
                waiting, self._behind = self._behind, []
                while True:
                    try:
                        await self._metadata.refresh()
                        break
                    except Unavailable as error:
                        logger.debug("the topics of committed offsets could not be asked for: %s", error)
                        await asyncio.sleep(RETRY_SECONDS)
                await self._metadata.settle()
                for then in waiting:
                    then()
        finally:
            self._is_catching_up = False

    def _follow_leaders(self, topic: TopicImage | None, earlier: TopicImage | None) -> None:
        numbers = len(topic.partitions) if topic is not None else 0
        for number in range(max(numbers, len(earlier.partitions) if earlier is not None else 0)):
            leads = topic is not None and number < numbers and topic.partitions[number].leader == self._broker_id
            if not leads:
                self._shards.resign(number)
                continue
            try:
                self._shards.lead(self._partitions.find(OFFSETS_TOPIC, number))
            except KafkaError as error:
                self._shards.resign(number)
                logger.error("%s-%d is not coordinated here: %s", OFFSETS_TOPIC, number, error)

    def reopened(self, partition: Partition) -> None:
        """A partition that could not be opened with the others now was."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        name, number = partition.partition
        if name == OFFSETS_TOPIC and topic is not None and topic.partitions[number].leader == self._broker_id:
            self._shards.lead(partition)

    def close(self) -> None:
        """The broker stops: whoever waits looks for another coordinator."""
        self._shards.close()
