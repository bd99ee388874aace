"""The image of the cluster, which follows the store: read in full at startup, then updated by watches.

Knowledge of the store is updated at once. The image follows in steps, one after another; a step ends when all listeners
have handled it. A step may contain several changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

from tailrace.cluster.features import SUPPORTED, SupportedFeatures, newest, unsupported_levels
from tailrace.cluster.image import BrokerImage, ClusterImage, TopicImage
from tailrace.cluster.keys import (
    ARCHIVES,
    BROKER_CONFIGS,
    BROKERS,
    CLUSTER_ID,
    CONTROLLERS,
    FEATURES,
    FINALIZED_FEATURES,
    TOPICS,
    broker_of,
    topic_key,
    topic_of,
)
from tailrace.cluster.known import Known
from tailrace.cluster.patience import RETRY_SECONDS, insist
from tailrace.cluster.store import ABSENT, Changes, Check, Entry, Store, Unavailable, Unreadable, Write
from tailrace.errors import StorageError
from tailrace.runtime.tasks import Tasks
from tailrace.storage.checkpoints import encode_uuid

logger = logging.getLogger("tailrace.cluster")

#: How long to wait for the watch to deliver a change that others know of, before reading the store.
_LATE_SECONDS = 0.2


class FollowedImage:
    """What a broker knows of the cluster, and its current image."""

    def __init__(self, store: Store, random: Random, broker_id: int, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._random = random
        self._broker_id = broker_id
        self._known = Known(broker_id)
        self.image = ClusterImage("", self._known.controller_id)
        #: The features that this broker supports.
        self.supported: SupportedFeatures = SUPPORTED
        #: Called after each change with the previous image, when `image` is already the new one. The next step waits.
        self.on_change: Callable[[ClusterImage], Awaitable[None]] = _ignore
        #: Called as soon as something new is known, before the image shows it.
        self.on_news: Callable[[], None] = _no_news
        self._is_stepping = False
        self._is_looking = False
        self._waiting: list[asyncio.Future[None]] = []

    # --- the store

    async def load(self, cluster_id: str | None = None, *, has_logs: bool = False) -> None:
        """Read everything from the store; a new store gets this cluster id, or a random one."""
        await insist(lambda: self._load(cluster_id, has_logs))

    async def _load(self, cluster_id: str | None, has_logs: bool) -> None:
        stored = await self._load_cluster_id(cluster_id, has_logs)
        if cluster_id is not None and stored != cluster_id:
            raise StorageError(
                f"the metadata belongs to cluster {stored} but cluster.id={cluster_id} is configured: "
                "give this broker its own --data-dir, or remove cluster.id from its configuration"
            )
        # Features first: they explain best why a broker of an older release cannot read the rest.
        for entry in await self._store.list(FEATURES):
            self._known.learn_features(entry)
        if (problem := self._unsupported_levels()) is not None:
            raise StorageError(problem)
        for entry in await self._store.list(TOPICS):
            self._known.learn_topic_entry(entry)
        for entry in await self._store.list(ARCHIVES):
            self._known.learn_archive(entry)
        for entry in await self._store.list(BROKER_CONFIGS):
            self._known.learn_configs(entry)
        self._known.learn_brokers(await self._store.list(BROKERS), (), True)
        self._known.learn_controller(await self._store.list(CONTROLLERS))
        self.image = self._known.next_image(replace(self.image, cluster_id=stored))

    async def _load_cluster_id(self, cluster_id: str | None, has_logs: bool) -> str:
        entry = await self._store.get(CLUSTER_ID)
        if entry is None:
            if has_logs:
                # With an empty image every log would belong to a deleted topic, and would be removed.
                raise StorageError(
                    "the metadata store is empty but the log directories hold partitions: restore the store, or "
                    "move the partition directories away to start with an empty cluster"
                )
            chosen = cluster_id or encode_uuid(self.new_id())
            try:
                # Only a new cluster starts at the newest levels by itself.
                features = Write(FINALIZED_FEATURES, newest(self.supported).to_bytes())
                await self._store.txn([Check(CLUSTER_ID, ABSENT)], [Write(CLUSTER_ID, chosen.encode()), features])
            except Unavailable:
                logger.warning("The metadata store did not confirm the cluster id; reading it back")
            entry = await self._store.get(CLUSTER_ID)
            if entry is None:
                raise Unavailable("the metadata store did not accept the cluster id")
        return entry.value.decode()

    async def start(self) -> None:
        """Start to follow the store."""
        self._tasks.spawn(self._follow(TOPICS, self._topics_changed), "watch of topics")
        self._tasks.spawn(self._follow(ARCHIVES, self._archives_changed), "watch of archives")
        self._tasks.spawn(self._follow(BROKERS, self._brokers_changed), "watch of brokers")
        self._tasks.spawn(self._follow(BROKER_CONFIGS, self._configs_changed), "watch of configurations")
        self._tasks.spawn(self._follow(FEATURES, self._features_changed), "watch of features")
        self._tasks.spawn(self._follow(CONTROLLERS, self._controller_changed), "watch of the controller")

    async def _follow(self, directory: str, learn: Callable[[Changes], Awaitable[None]]) -> None:
        async for changes in self._store.watch(directory):
            await learn(changes)
            self._step()

    async def _topics_changed(self, changes: Changes) -> None:
        removed = [Entry(key, b"", ABSENT) for key in changes.removed]
        self._learn_each(lambda entry: self._known.forget_topic(topic_of(entry.key)), removed)
        self._learn_each(self._known.learn_topic_entry, changes.entries)
        if changes.is_complete:
            await self._forget_missing(changes.entries)

    def _learn_each(self, learn: Callable[[Entry], None], entries: Sequence[Entry]) -> None:
        """Learn readable entries and skip others: one bad value must not stop every broker."""
        for entry in entries:
            try:
                learn(entry)
            except Unreadable as error:
                logger.error("Ignored %s: %s; restore it, or run a release that can read it", entry.key, error)

    async def _forget_missing(self, entries: Sequence[Entry]) -> None:
        """Forget topics that were deleted unseen; a topic newer than the entries still exists."""
        for lineage in self._known.topics_not_in(entries):
            while True:
                try:
                    if await self._store.get(topic_key(lineage)) is None:
                        self._known.forget_topic(lineage)
                    break
                except Unavailable:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _archives_changed(self, changes: Changes) -> None:
        # Archives are removed and forgotten together with their topics.
        self._learn_each(self._known.learn_archive, changes.entries)

    async def _brokers_changed(self, changes: Changes) -> None:
        readable: list[Entry] = []

        def check(entry: Entry) -> None:
            broker_of(entry.key)
            BrokerImage.from_bytes(entry.value)
            readable.append(entry)

        self._learn_each(check, changes.entries)
        self._known.learn_brokers(readable, changes.removed, changes.is_complete)

    async def _configs_changed(self, changes: Changes) -> None:
        # The keys of configurations are never removed.
        self._learn_each(self._known.learn_configs, changes.entries)

    async def _features_changed(self, changes: Changes) -> None:
        before = self._known.features
        self._learn_each(self._known.learn_features, changes.entries)
        if self._known.features != before and (problem := self._unsupported_levels()) is not None:
            logger.error("Ignoring metadata that newer releases write: %s", problem)

    def _unsupported_levels(self) -> str | None:
        problem = unsupported_levels(self._known.features, self.supported)
        return problem and f"{problem}; start a newer release of tailrace on this broker"

    async def _controller_changed(self, changes: Changes) -> None:
        try:
            self._known.learn_controller(changes.entries)
        except Unreadable as error:
            logger.error("Cannot read which broker is the controller: %s", error)
        # Even if it has not changed: this broker may have been elected without hearing of it.
        self.on_news()

    async def refresh(self) -> None:
        """Read all topics again, for callers that must not act on stale data."""
        entries = await self._store.list(TOPICS)
        self._learn_each(self._known.learn_topic_entry, entries)
        await self._forget_missing(entries)
        self._step()

    def look_soon(self, is_told: Callable[[], bool]) -> None:
        """A change is known elsewhere but not here: read the store, unless the watch delivers it within a moment."""
        if not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look_soon(is_told), "look for late news")

    async def _look_soon(self, is_told: Callable[[], bool]) -> None:
        try:
            await asyncio.sleep(_LATE_SECONDS)
            if not is_told():
                await self.refresh()
        except Unavailable as error:
            logger.debug("Cannot read late changes from the metadata store: %s", error)
        finally:
            self._is_looking = False

    # --- from what is known to the image

    def _step(self) -> None:
        """Update the image to what is known, after earlier steps."""
        if not self._known.has_changes:
            return
        self.on_news()
        self._begin_stepping()

    def _begin_stepping(self) -> None:
        if not self._is_stepping:
            self._is_stepping = True
            self._tasks.spawn(self._take_steps(), "image changes")

    async def _take_steps(self) -> None:
        told: list[asyncio.Future[None]] = []
        try:
            while self._known.has_changes or self._waiting:
                told, self._waiting = self._waiting, []
                before = self.image
                self.image = self._known.next_image(before)
                if self.image is not before:
                    await self.on_change(before)
                _tell(told)
        except BaseException:
            # The owner of this task reports the failure; waiters must not wait for ever.
            for waiter in (*told, *self._waiting):
                waiter.cancel()
            raise
        finally:
            self._is_stepping = False

    async def settle(self) -> None:
        """Wait until the image shows everything known now, and listeners have handled it."""
        self._step()
        if self._is_stepping:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    # --- brokers

    def new_id(self) -> UUID:
        """A random id that Kafka's clients accept: version 4, never a reserved one."""
        return UUID(int=self._random.getrandbits(128), version=4)

    async def register_broker(self, broker: BrokerImage) -> None:
        """Show this broker in the image as it was registered."""
        self._known.register_own(broker)
        await self.settle()

    async def registered_brokers(self) -> dict[int, BrokerImage]:
        """The brokers registered now, read from the store."""
        entries = await self._store.list(BROKERS)
        return {broker_of(entry.key): BrokerImage.from_bytes(entry.value) for entry in entries}

    def last_registration(self, broker_id: int) -> BrokerImage | None:
        """A broker's current or last registration, even before the image shows it."""
        return self._known.last_registration(broker_id)

    @property
    def controller_id(self) -> int:
        """The controller as far as known, even before the image shows it; -1 if there is none."""
        return self._known.controller_id

    async def learn_controller(self, broker_id: int) -> None:
        """Show a broker that was just elected as the controller."""
        self._known.set_controller(broker_id)
        await self.settle()

    @property
    def topics(self) -> Sequence[TopicImage]:
        """Every known topic, even before the image shows it."""
        return list(self._known.topics.values())


def _tell(waiting: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)


async def _ignore(before: ClusterImage) -> None:
    """Do nothing: no listener is set yet."""


def _no_news() -> None:
    """Do nothing: no listener is set yet."""
