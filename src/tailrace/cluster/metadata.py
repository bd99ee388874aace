"""The current image and the changes to it: every change is in the store before anybody sees it.

Topics are stored under their ids, so that no key is ever recreated; a key per name makes two creations of one
name conflict in the store itself. A topic or a broker's configuration is changed by a function from what is stored
to what shall be: if somebody else was faster, it is asked again with what that left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tailrace.cluster.image import (
    ALL_BROKERS,
    BrokerImage,
    ClusterImage,
    TopicImage,
    configs_from_bytes,
    configs_to_bytes,
)
from tailrace.cluster.placement import place_replicas, use_assignment, use_further_assignment
from tailrace.cluster.store import ABSENT, Check, Entry, Store, Unavailable, Write
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import topic_name_problem
from tailrace.runtime.tasks import Tasks
from tailrace.storage.checkpoints import encode_uuid

logger = logging.getLogger("tailrace.cluster")

_CLUSTER_ID = "/cluster/id"
_TOPICS = "/topics"
_NAMES = "/topic-names"
_BROKER_CONFIGS = "/configs/brokers"
_FOR_ALL_BROKERS = "default"
_PRODUCER_IDS = "/producer-ids/next"
PRODUCER_ID_BLOCK = 1000
#: Stores limit the size of a transaction.
_TOPICS_PER_TRANSACTION = 50


class ClusterMetadata:
    """What a broker knows of the cluster, kept equal to the store."""

    def __init__(self, store: Store, random: Random, broker_id: int, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._random = random
        self._broker_id = broker_id
        self.image = ClusterImage("", broker_id)
        #: Told after each change with the image before it; by then `image` is the new one.
        self.on_change: Callable[[ClusterImage], Awaitable[None]] = _ignore

    async def load(self, cluster_id: str | None = None, *, has_logs: bool = False) -> None:
        """Read everything from the store; a new store gets the given cluster id, or one of its own."""
        entry = await self._store.get(_CLUSTER_ID)
        if entry is None:
            if has_logs:
                # To an empty image every log is one of a deleted topic, and would be removed.
                raise StorageError(
                    "the metadata store is empty but the log directories hold partitions: bring the store back, or "
                    "move the partition directories away to begin anew"
                )
            chosen = cluster_id or encode_uuid(self.new_id())
            await self._store.txn([Check(_CLUSTER_ID, ABSENT)], [Write(_CLUSTER_ID, chosen.encode())])
            entry = await self._store.get(_CLUSTER_ID)
            assert entry is not None
        if cluster_id is not None and entry.value.decode() != cluster_id:
            raise StorageError(
                f"the metadata belongs to cluster {entry.value.decode()} but cluster.id={cluster_id} is configured: "
                "give this broker its own --data-dir, or take cluster.id out of its configuration"
            )
        topics, _ = await self._store.list(_TOPICS)
        configs, _ = await self._store.list(_BROKER_CONFIGS)
        self.image = replace(
            self.image,
            cluster_id=entry.value.decode(),
            broker_configs=MappingProxyType(
                {_broker_of(config.key): configs_from_bytes(config.value) for config in configs}
            ),
        ).with_topics(*[TopicImage.from_bytes(topic.value) for topic in topics])

    def new_id(self) -> UUID:
        """A random id that Kafka's clients take: version 4, never one of the reserved ones."""
        return UUID(int=self._random.getrandbits(128), version=4)

    async def register_broker(self, broker: BrokerImage) -> None:
        """Make a broker known to clients."""
        await self._replace(
            replace(self.image, brokers=MappingProxyType({**self.image.brokers, broker.broker_id: broker}))
        )

    async def _replace(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        await self.on_change(before)

    # --- topics

    def plan_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]],
        configs: Mapping[str, str],
    ) -> TopicImage:
        """The topic as it would be created, or the reason why not."""
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name in self.image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        collision = name.replace(".", "_")
        for other in self.image.topics:
            if other.replace(".", "_") == collision:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
                )
        brokers = list(self.image.brokers)
        if assignment:
            states = use_assignment(brokers, assignment)
        else:
            states = place_replicas(brokers, partitions, replication_factor)
        return TopicImage(name, self.new_id(), states, MappingProxyType(dict(configs)))

    async def create_topic(self, topic: TopicImage) -> None:
        """Make a planned topic exist: in the store first, then in the image."""
        await self._to_its_end(self._create_topic(topic))

    async def delete_topic(self, topic: TopicImage) -> None:
        """Make a topic cease to exist."""
        await self._to_its_end(self._delete_topic(topic))

    async def _to_its_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Make a change whole even if whoever asked for it goes away: the image must follow the store."""

        async def run() -> KafkaError | None:
            try:
                await change
            except KafkaError as refusal:
                return refusal
            return None

        refusal = await asyncio.shield(self._tasks.spawn(run(), "metadata change"))
        if refusal is not None:
            raise refusal

    async def _create_topic(self, topic: TopicImage) -> None:
        name_key = f"{_NAMES}/{topic.name}"
        topic_key = f"{_TOPICS}/{topic.topic_id}"
        created = await self._txn(
            [Check(name_key, ABSENT), Check(topic_key, ABSENT)],
            [Write(name_key, str(topic.topic_id).encode()), Write(topic_key, topic.to_bytes())],
        )
        if not created:
            await self._learn_of(name_key)
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        await self._replace(self.image.with_topics(topic))

    async def _learn_of(self, name_key: str) -> None:
        """Take a topic into the image that is there although nobody heard that it was created."""
        named = await self._get(name_key)
        entry = await self._get(f"{_TOPICS}/{named.value.decode()}") if named else None
        if entry is not None:
            topic = TopicImage.from_bytes(entry.value)
            if topic.topic_id not in self.image.topics_by_id:
                await self._replace(self.image.with_topics(topic))

    async def _delete_topic(self, topic: TopicImage) -> None:
        topic_key = f"{_TOPICS}/{topic.topic_id}"
        writes = [Write(topic_key, None), Write(f"{_NAMES}/{topic.name}", None)]
        while True:
            entry = await self._get(topic_key)
            if entry is None:
                raise _unknown_topic()
            if await self._txn([Check(topic_key, entry.version)], writes):
                break
        await self._replace(self.image.without_topic(topic))

    def plan_partitions(self, topic: TopicImage, count: int, assignments: Sequence[Sequence[int]] | None) -> TopicImage:
        """The topic with more partitions, or the reason why not."""
        present = len(topic.partitions)
        if count == present:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if count < present:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase.",
            )
        additional = count - present
        if assignments is not None and len(assignments) != additional:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified.",
            )
        brokers = list(self.image.brokers)
        replication_factor = len(topic.partitions[0].replicas)
        if assignments is None:
            states = place_replicas(brokers, additional, replication_factor, first=present)
        else:
            states = use_further_assignment(brokers, assignments, replication_factor)
        return replace(topic, partitions=topic.partitions + states)

    async def alter_topic(self, topic: TopicImage, change: Callable[[TopicImage], TopicImage]) -> None:
        """Make a topic what a function makes of it as it is stored; a KafkaError of the function changes nothing."""
        await self._to_its_end(self._alter_topic(topic.topic_id, change))

    async def _alter_topic(self, topic_id: UUID, change: Callable[[TopicImage], TopicImage]) -> None:
        key = f"{_TOPICS}/{topic_id}"
        while True:
            entry = await self._get(key)
            if entry is None:
                raise _unknown_topic()
            stored = TopicImage.from_bytes(entry.value)
            changed = change(stored)
            if changed == stored or await self._txn([Check(key, entry.version)], [Write(key, changed.to_bytes())]):
                break
        # Not only if something was changed: the image may be behind after a change whose outcome nobody heard of.
        if self.image.topics_by_id.get(topic_id) != changed:
            await self._replace(self.image.with_topics(changed))

    async def bump_leader_epochs(self) -> None:
        """Start new leader epochs everywhere this broker leads: its logs may have lost their ends."""
        entries, _ = await self._store.list(_TOPICS)
        topics = [self._with_next_epochs(TopicImage.from_bytes(entry.value)) for entry in entries]
        for first in range(0, len(topics), _TOPICS_PER_TRANSACTION):
            some = range(first, min(first + _TOPICS_PER_TRANSACTION, len(topics)))
            checks = [Check(entries[index].key, entries[index].version) for index in some]
            writes = [Write(entries[index].key, topics[index].to_bytes()) for index in some]
            if not await self._store.txn(checks, writes):
                raise Unavailable("topics were changed by somebody else")
        await self._replace(self.image.with_topics(*topics))

    def _with_next_epochs(self, topic: TopicImage) -> TopicImage:
        states = [
            replace(state, leader_epoch=state.leader_epoch + 1) if state.leader == self._broker_id else state
            for state in topic.partitions
        ]
        return replace(topic, partitions=tuple(states))

    # --- configuration of brokers

    async def alter_broker_configs(self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Make what is set for a broker, or for `ALL_BROKERS`, what a function makes of it as it is stored."""
        await self._to_its_end(self._alter_broker_configs(broker, change))

    async def _alter_broker_configs(
        self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        key = f"{_BROKER_CONFIGS}/{broker if broker != ALL_BROKERS else _FOR_ALL_BROKERS}"
        while True:
            entry = await self._get(key)
            stored = configs_from_bytes(entry.value) if entry else MappingProxyType({})
            changed = MappingProxyType(dict(change(stored)))
            # Kept even where nothing is set any more: a key that is checked is never made anew.
            check = Check(key, entry.version if entry else ABSENT)
            if changed == stored or await self._txn([check], [Write(key, configs_to_bytes(changed))]):
                break
        if self.image.configs_of(broker) != changed:
            await self._replace(self.image.with_broker_configs(broker, changed))

    # --- the store

    async def _get(self, key: str) -> Entry | None:
        try:
            return await self._store.get(key)
        except Unavailable as error:
            logger.error("metadata cannot be read: %s", error)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    async def _txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        try:
            return await self._store.txn(checks, writes)
        except Unavailable as error:
            logger.error("metadata change failed: %s", error)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    # --- producer ids

    async def claim_producer_ids(self) -> range:
        """A block of producer ids that nobody else has or will ever have."""
        while True:
            entry = await self._get(_PRODUCER_IDS)
            first = int(entry.value) if entry else 0
            version = entry.version if entry else ABSENT
            following = str(first + PRODUCER_ID_BLOCK).encode()
            if await self._txn([Check(_PRODUCER_IDS, version)], [Write(_PRODUCER_IDS, following)]):
                return range(first, first + PRODUCER_ID_BLOCK)


def _broker_of(key: str) -> str:
    name = key.removeprefix(f"{_BROKER_CONFIGS}/")
    return ALL_BROKERS if name == _FOR_ALL_BROKERS else name


def _unknown_topic() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


async def _ignore(before: ClusterImage) -> None:
    """Nobody listens yet."""
