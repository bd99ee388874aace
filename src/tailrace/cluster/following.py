"""The image of the cluster, following the store: read whole at the start, by watches from then on.

What is known of the store is there at once; the image follows it in steps, one after another, each of which is over
when those who listen have done what it asks of them. A step may show several changes.
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

#: What is not told by then of what others know is asked for.
_LATE_SECONDS = 0.2


class FollowedImage:
    """What a broker knows of the cluster, and the image that it goes by."""

    def __init__(self, store: Store, random: Random, broker_id: int, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._random = random
        self._broker_id = broker_id
        self._known = Known(broker_id)
        self.image = ClusterImage("", self._known.controller_id)
        #: The features that this broker supports.
        self.supported: SupportedFeatures = SUPPORTED
        #: Told after each change with the image before it; by then `image` is the new one. The next waits for it.
        self.on_change: Callable[[ClusterImage], Awaitable[None]] = _ignore
        #: Called as soon as something new is known, before the image shows it.
        self.on_news: Callable[[], None] = _no_news
        self._is_stepping = False
        self._is_looking = False
        self._waiting: list[asyncio.Future[None]] = []

    # --- the store

    async def load(self, cluster_id: str | None = None, *, has_logs: bool = False) -> None:
        """Read everything from the store; a new store gets the given cluster id, or one of its own."""
        await insist(lambda: self._load(cluster_id, has_logs))

    async def _load(self, cluster_id: str | None, has_logs: bool) -> None:
        stored = await self._load_cluster_id(cluster_id, has_logs)
        if cluster_id is not None and stored != cluster_id:
            raise StorageError(
                f"the metadata belongs to cluster {stored} but cluster.id={cluster_id} is configured: "
                "give this broker its own --data-dir, or take cluster.id out of its configuration"
            )
        # First: they say best why a broker of an older release cannot read what else there is.
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
                # To an empty image every log is one of a deleted topic, and would be removed.
                raise StorageError(
                    "the metadata store is empty but the log directories hold partitions: bring the store back, or "
                    "move the partition directories away to begin anew"
                )
            chosen = cluster_id or encode_uuid(self.new_id())
            try:
                # Only a new cluster goes by the newest levels without being asked.
                features = Write(FINALIZED_FEATURES, newest(self.supported).to_bytes())
                await self._store.txn([Check(CLUSTER_ID, ABSENT)], [Write(CLUSTER_ID, chosen.encode()), features])
            except Unavailable:
                logger.warning("the store did not say whether it took the cluster's id")
            entry = await self._store.get(CLUSTER_ID)
            if entry is None:
                raise Unavailable("the store does not take the cluster's id")
        return entry.value.decode()

    async def start(self) -> None:
        """Follow the store from now on."""
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
        """Learn what can be read. What cannot is left as it was known before: one value must not end every broker."""
        for entry in entries:
            try:
                learn(entry)
            except Unreadable as error:
                logger.error("ignored %s: %s; restore it, or run a version of tailrace that knows it", entry.key, error)

    async def _forget_missing(self, entries: Sequence[Entry]) -> None:
        """Forget topics that were deleted while nobody looked; one that is newer than the entries is still there."""
        for lineage in self._known.topics_not_in(entries):
            while True:
                try:
                    if await self._store.get(topic_key(lineage)) is None:
                        self._known.forget_topic(lineage)
                    break
                except Unavailable:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _archives_changed(self, changes: Changes) -> None:
        # Removed with their topics, and forgotten with them.
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
        # Their keys are never removed.
        self._learn_each(self._known.learn_configs, changes.entries)

    async def _features_changed(self, changes: Changes) -> None:
        before = self._known.features
        self._learn_each(self._known.learn_features, changes.entries)
        if self._known.features != before and (problem := self._unsupported_levels()) is not None:
            logger.error("Ignoring what newer releases write: %s", problem)

    def _unsupported_levels(self) -> str | None:
        problem = unsupported_levels(self._known.features, self.supported)
        return problem and f"{problem}; start a newer release of tailrace on this broker"

    async def _controller_changed(self, changes: Changes) -> None:
        try:
            self._known.learn_controller(changes.entries)
        except Unreadable as error:
            logger.error("ignored who the controller is: %s", error)
        # Also where it is who it was: this broker itself may have been elected without having heard of it.
        self.on_news()

    async def refresh(self) -> None:
        """Read all topics again, for who must not act on late news."""
        entries = await self._store.list(TOPICS)
        self._learn_each(self._known.learn_topic_entry, entries)
        await self._forget_missing(entries)
        self._step()

    def look_soon(self, is_told: Callable[[], bool]) -> None:
        """Somebody knows what this broker has not heard of: ask the store, unless it is told in a moment."""
        if not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look_soon(is_told), "look for late news")

    async def _look_soon(self, is_told: Callable[[], bool]) -> None:
        try:
            await asyncio.sleep(_LATE_SECONDS)
            if not is_told():
                await self.refresh()
        except Unavailable as error:
            logger.debug("late news could not be asked for: %s", error)
        finally:
            self._is_looking = False

    # --- from what is known to the image

    def _step(self) -> None:
        """Have the image show what is known, after the steps before."""
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
            # The failure is this task's, and its owner's to report; nobody shall wait for what does not come.
            for waiter in (*told, *self._waiting):
                waiter.cancel()
            raise
        finally:
            self._is_stepping = False

    async def settle(self) -> None:
        """Wait until the image shows all that is known now and those who listen were told."""
        self._step()
        if self._is_stepping:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    # --- brokers

    def new_id(self) -> UUID:
        """A random id that Kafka's clients take: version 4, never one of the reserved ones."""
        return UUID(int=self._random.getrandbits(128), version=4)

    async def register_broker(self, broker: BrokerImage) -> None:
        """Show this broker as it was registered."""
        self._known.register_own(broker)
        await self.settle()

    async def registered_brokers(self) -> dict[int, BrokerImage]:
        """Who is registered at this moment, asked of the store."""
        entries = await self._store.list(BROKERS)
        return {broker_of(entry.key): BrokerImage.from_bytes(entry.value) for entry in entries}

    def last_registration(self, broker_id: int) -> BrokerImage | None:
        """How a broker is registered, or was when its session ended, also before the image shows it."""
        return self._known.last_registration(broker_id)

    @property
    def controller_id(self) -> int:
        """Who is the controller as far as is known, also before the image shows it; -1 where nobody is."""
        return self._known.controller_id

    async def learn_controller(self, broker_id: int) -> None:
        """Show a broker as the controller, which it has just become."""
        self._known.set_controller(broker_id)
        await self.settle()

    @property
    def topics(self) -> Sequence[TopicImage]:
        """Every topic as it is known, also before the image shows it."""
        return list(self._known.topics.values())


def _tell(waiting: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)


async def _ignore(before: ClusterImage) -> None:
    """Nobody listens yet."""


def _no_news() -> None:
    """Nobody listens yet."""
