"""The controller: the one broker that sees to it that every partition has a leader while brokers come and go.

Every broker campaigns; the elected one works through what `cluster/controller` plans, in rounds: who is alive is asked
of the store at the start of each, so that late news never makes it act on yesterday's cluster. Everything it writes is
checked against the controller epoch; a refused write or a lost session ends its rule, and it campaigns again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.leading.log_ends import Leaderless
from tailrace.cluster.controller import (
    LogEnd,
    candidates_for,
    failed_over,
    has_dead,
    outsiders_of,
    plan_failover,
    plan_internal_replication,
    with_longest_leaders,
    with_replicas,
    without_the_dead,
)
from tailrace.cluster.election import Election, Fence, FencedError
from tailrace.cluster.image import NO_LEADER, BrokerImage, TopicImage
from tailrace.cluster.keys import TOPIC_NAMES, TOPICS, broker_key
from tailrace.cluster.metadata import ClusterMetadata, Recheck
from tailrace.cluster.placement import Load
from tailrace.cluster.registration import Registration
from tailrace.cluster.store import ABSENT, Check, Store, Unavailable, Write
from tailrace.errors import ConfigError
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.controller")

#: Asks brokers how far their logs of partitions without a leader reach.
AskLogEnds: TypeAlias = Callable[
    [Mapping[int, BrokerImage], Sequence[Leaderless]], Awaitable[Mapping[TopicPartition, Mapping[int, LogEnd]]]
]

_RETRY_SECONDS = 0.5
#: How often all is looked at without an event.
_LOOK_SECONDS = 300.0
#: A transaction has room for so many checks of who is gone, beside the changes.
_MOST_CHECKED = 50


class Controller:
    """One broker's readiness to be the controller, and its work while it is."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        metadata: ClusterMetadata,
        registration: Registration,
        broker_id: int,
        tasks: Tasks,
        ask_log_ends: AskLogEnds,
    ) -> None:
        self._config = config
        self._store = store
        self._metadata = metadata
        self._registration = registration
        self._broker_id = broker_id
        self._tasks = tasks
        self._ask_log_ends = ask_log_ends
        self._election = Election(store, broker_id)
        self._fence: Fence | None = None
        self._news = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []
        #: What the last round has seen to: who was alive, and which topics.
        self._live: tuple[int, ...] = ()
        self._settled: dict[UUID, TopicImage] = {}
        self._is_look_due = False

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._fence is not None

    async def start(self) -> None:
        """Campaign once, so that a broker alone is its own controller before it serves, and from now on."""
        self._metadata.on_news = self._news.set
        self._registration.on_change = self._news.set
        try:
            await self._campaign()
        except Unavailable as error:
            logger.warning("no controller is elected yet: %s", error)
        self._work = [
            self._tasks.spawn(self._run(), "controller"),
            self._tasks.spawn(self._look_now_and_then(), "partitions at large"),
        ]

    async def close(self) -> None:
        """Work no more, and let another broker be elected at once."""
        for task in self._work:
            task.cancel()
        fence, self._fence = self._fence, None
        if fence is not None:
            try:
                await self._election.resign(fence)
            except Unavailable as error:
                logger.warning("another controller is elected only when this broker's session has ended: %s", error)

    # --- being elected

    async def _run(self) -> None:
        is_told = False
        while True:
            try:
                if self._fence is None:
                    await self._wait_for_election()
                await self._rule()
                is_told = False
            except FencedError as error:
                self._step_down(str(error))
            except Unavailable as error:
                if not is_told:
                    logger.error("the metadata store does not answer the controller, which tries on: %s", error)
                is_told = True
                await asyncio.sleep(_RETRY_SECONDS)

    async def _wait_for_election(self) -> None:
        while True:
            self._news.clear()
            # A controller of this broker's own id is one of an earlier session of it, or one that nobody told it of.
            if self._metadata.controller_id in (NO_LEADER, self._broker_id) and await self._campaign():
                return
            await self._news.wait()

    async def _campaign(self) -> bool:
        session = self._registration.session
        if session is None or session.is_lost:
            return False
        self._fence = await self._election.campaign(session)
        if self._fence is None:
            return False
        self._live, self._settled = (), {}
        logger.info(
            "this broker is the controller now, in epoch %d",
            self._fence.epoch,
            extra={"controller_epoch": self._fence.epoch},
        )
        await self._metadata.learn_controller(self._broker_id)
        return True

    def _step_down(self, reason: str) -> None:
        if self._fence is not None:
            logger.warning("this broker is the controller no more: %s", reason)
        self._fence = None

    # --- ruling

    async def _rule(self) -> None:
        """Work until the session is lost; a refused write raises FencedError."""
        fence, session = self._fence, self._registration.session
        if fence is None or session is None:
            return
        await self._wait_for_return()
        await self._load(fence)
        while True:
            self._news.clear()
            if self._metadata.controller_id not in (NO_LEADER, self._broker_id):
                await self._election.renew(fence)  # by the news another rules, which may be old
            is_held = not session.is_lost and session is self._registration.session
            if not is_held or not await self._round(fence):
                self._step_down("its session in the metadata store is over")
                await asyncio.sleep(_RETRY_SECONDS)  # where the store knows that before this broker does
                return
            if not self._news.is_set():
                await self._news.wait()
            # What happens at once is seen to at once: events that belong together come in turns of the loop.
            await asyncio.sleep(0)

    async def _wait_for_return(self) -> None:
        """Take nobody for gone who may only not be back yet.

        When the store was away the sessions of all have ended, while they go on to follow each other. Whoever has been
        registered for less than a session, a broker that was just started too, cannot tell.
        """
        if self._registration.settling_seconds > 0:
            await self._metadata.refresh()
        while (seconds := self._registration.settling_seconds) > 0:
            self._news.clear()
            brokers = await self._metadata.registered_brokers()
            # Where nobody leads one that is not in sync may be the one that has most.
            awaited = {
                member
                for topic in self._metadata.topics
                for state in topic.partitions
                for member in (state.isr if state.leader in brokers else state.replicas)
            }
            if awaited <= brokers.keys():
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return

    async def _load(self, fence: Fence) -> None:
        """Read everything there is to rule over, as it is now."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._metadata.refresh()
        await self._remove_orphans(fence)
        topics = self._metadata.topics
        partitions, seconds = sum(len(topic.partitions) for topic in topics), loop.time() - began
        logger.info(
            "%d topics with %d partitions loaded in %.3f s",
            len(topics),
            partitions,
            seconds,
            extra={"topics": len(topics), "partitions": partitions, "load_seconds": round(seconds, 3)},
        )

    async def _round(self, fence: Fence) -> bool:
        """See to everything that is not as it should be; False where this broker is not alive itself to the store."""
        brokers = await self._metadata.registered_brokers()
        live = tuple(brokers)
        if self._broker_id not in brokers:
            return False
        seen = self._metadata.topics
        # Now and then all are looked at, for what no event tells: a default that was changed, above all.
        topics = seen if live != self._live or self._is_look_due else self._unsettled(seen)
        self._is_look_due = False
        undecided: Sequence[UUID] = ()
        if topics:
            await self._fail_over(fence, topics, live)
            undecided = [*await self._elect(fence, brokers), *await self._shrink(fence, brokers)]
            await self._raise_replication(fence, topics, brokers)
        # What was changed meanwhile, by this round too, is looked at in the next one.
        self._live = live
        self._settled = {topic.topic_id: topic for topic in seen if topic.topic_id not in undecided}
        return True

    def _unsettled(self, topics: Sequence[TopicImage]) -> Sequence[TopicImage]:
        """Those that changed since they were seen to."""
        return [topic for topic in topics if self._settled.get(topic.topic_id) is not topic]

    async def _fail_over(self, fence: Fence, topics: Sequence[TopicImage], live: tuple[int, ...]) -> None:
        planned = plan_failover(topics, live, self._is_unclean)
        if not planned:
            return
        before = {topic.topic_id: topic for topic in topics}
        present = list(live)

        async def still_gone() -> Sequence[Check]:
            # One that is back relies on leading what it led when it had registered again.
            present[:] = dict.fromkeys([*present, *await self._metadata.registered_brokers()])
            leaders = {state.leader for topic in topics for state in topic.partitions if state.leader != NO_LEADER}
            gone = [broker_id for broker_id in sorted(leaders) if broker_id not in present]
            return [Check(broker_key(broker_id), ABSENT) for broker_id in gone[:_MOST_CHECKED]]

        await self._alter(fence, planned, lambda topic: failed_over(topic, present, self._is_unclean), still_gone)
        gone = [broker_id for broker_id in self._live if broker_id not in live]
        back = [broker_id for broker_id in live if broker_id not in self._live]
        moved, lost = _summary(before, planned)
        logger.info(
            "brokers alive %s%s%s: %d partitions have another leader, %d have none",
            list(live),
            f", gone {gone}" if gone else "",
            f", new {back}" if back and self._live else "",
            moved,
            lost,
            extra={"live": list(live), "gone": gone, "moved": moved, "leaderless": lost},
        )

    async def _elect(self, fence: Fence, brokers: Mapping[int, BrokerImage]) -> Sequence[UUID]:
        """Give partitions leaders that several could lead: the one that is furthest; the topics that wait on."""
        leaderless = [
            (topic, number, state)
            for topic in self._metadata.topics
            for number, state in enumerate(topic.partitions)
            if state.leader == NO_LEADER and candidates_for(state, brokers)
        ]
        if not leaderless:
            return ()
        ends = await self._ask_log_ends(
            brokers,
            [
                Leaderless(
                    TopicPartition(topic.name, number),
                    state.leader_epoch,
                    (*candidates_for(state, brokers), *outsiders_of(state, brokers)),
                )
                for topic, number, state in leaderless
            ],
        )
        found: dict[UUID, dict[int, tuple[int, Mapping[int, LogEnd]]]] = {}
        outsiders: dict[int, None] = {}
        for topic, number, state in leaderless:
            answers = ends[TopicPartition(topic.name, number)]
            found.setdefault(topic.topic_id, {})[number] = (state.leader_epoch, answers)
            outsiders.update(dict.fromkeys(outsiders_of(state, answers)))
        await self._lead(fence, brokers, found, tuple(outsiders))
        waiting = [
            topic.topic_id
            for topic in self._metadata.topics
            for number, (leader_epoch, _) in found.get(topic.topic_id, {}).items()
            if (topic.partitions[number].leader, topic.partitions[number].leader_epoch) == (NO_LEADER, leader_epoch)
        ]
        logger.info("%d partitions got leaders, by how far their replicas are", len(leaderless) - len(waiting))
        if waiting:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)
        return waiting

    async def _lead(
        self,
        fence: Fence,
        brokers: Mapping[int, BrokerImage],
        found: Mapping[UUID, Mapping[int, tuple[int, Mapping[int, LogEnd]]]],
        outsiders: Sequence[int],
    ) -> None:
        """Make the longest logs lead, as they were found."""
        live: list[int] = []

        async def unchanged() -> Sequence[Check]:
            # Who is in sync leaves the ISR when it was started again and may have lost what it had; nothing is to be
            # seen of who is not in sync.
            epochs, checks = await self._metadata.broker_epochs(outsiders)
            live[:] = [
                broker_id
                for broker_id, broker in brokers.items()
                if broker_id not in outsiders or epochs.get(broker_id) == broker.epoch
            ]
            return checks

        planned = [topic for topic in self._metadata.topics if topic.topic_id in found]
        await self._alter(
            fence, planned, lambda topic: with_longest_leaders(topic, found[topic.topic_id], live), unchanged
        )

    async def _shrink(self, fence: Fence, brokers: Mapping[int, BrokerImage]) -> Sequence[UUID]:
        """Take who is gone out of the ISRs whose leaders answer; the topics of those that do not."""
        shrinking = [
            (topic, number, state)
            for topic in self._metadata.topics
            for number, state in enumerate(topic.partitions)
            if has_dead(state, brokers)
        ]
        if not shrinking:
            return ()
        ends = await self._ask_log_ends(
            brokers,
            [
                Leaderless(TopicPartition(topic.name, number), state.leader_epoch, (state.leader,))
                for topic, number, state in shrinking
            ],
        )
        confirmed: dict[UUID, dict[int, int]] = {}
        silent: dict[UUID, None] = {}
        for topic, number, state in shrinking:
            if ends[TopicPartition(topic.name, number)]:
                confirmed.setdefault(topic.topic_id, {})[number] = state.leader_epoch
            else:
                silent[topic.topic_id] = None
        planned = [topic for topic in self._metadata.topics if topic.topic_id in confirmed]
        await self._alter(fence, planned, lambda topic: without_the_dead(topic, brokers, confirmed[topic.topic_id]))
        count = sum(len(numbers) for numbers in confirmed.values())
        logger.info(
            "brokers alive %s: %d partitions have a smaller ISR%s",
            list(brokers),
            count,
            f", {len(shrinking) - count} wait for their leaders to answer" if silent else "",
        )
        if silent:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)
        return list(silent)

    def _is_unclean(self, topic: TopicImage) -> bool:
        try:
            return self._config.topic_bool("unclean.leader.election.enable", topic.configs)
        except ConfigError as error:
            logger.error("topic %s gets no unclean leaders: %s", topic.name, error)
            return False

    async def _raise_replication(
        self, fence: Fence, topics: Sequence[TopicImage], brokers: dict[int, BrokerImage]
    ) -> None:
        factor = self._config.get_int("offsets.topic.replication.factor")
        planned = plan_internal_replication(topics, brokers, {OFFSETS_TOPIC: factor})
        if not planned:
            return
        load = Load.of(self._metadata.topics)
        await self._alter(fence, planned, lambda topic: with_replicas(topic, brokers, factor, load))
        for topic in planned:
            logger.info("%s gets more replicas, now that there are %d brokers", topic.name, len(brokers))

    async def _alter(
        self,
        fence: Fence,
        planned: Sequence[TopicImage],
        change: Callable[[TopicImage], TopicImage],
        further_checks: Recheck | None = None,
    ) -> None:
        async def checks() -> Sequence[Check]:
            further = await further_checks() if further_checks is not None else ()
            return [*await self._election.renew(fence), *further]

        first = [fence.check] if further_checks is None else await checks()
        await self._metadata.alter_topics({topic.topic_id: change for topic in planned}, first, checks)

    async def _remove_orphans(self, fence: Fence) -> None:
        """Free names whose topics are not there: a store that was restored or filled by hand may hold some."""
        known = dict.fromkeys(str(topic.topic_id) for topic in self._metadata.topics)
        for entry in await self._store.list(TOPIC_NAMES):
            topic_id = entry.value.decode()
            if topic_id in known:
                continue
            checks = [fence.check, Check(entry.key, entry.version), Check(f"{TOPICS}/{topic_id}", ABSENT)]
            if await self._store.txn(checks, [Write(entry.key, None)]) is not None:
                logger.warning("the name %s is free again: its topic is not there", entry.key.rpartition("/")[2])

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._is_look_due = True
            self._news.set()


def _summary(before: dict[UUID, TopicImage], after: Sequence[TopicImage]) -> tuple[int, int]:
    """How many partitions got another leader, and lost theirs."""
    moved = lost = 0
    for topic in after:
        for old, new in zip(before[topic.topic_id].partitions, topic.partitions, strict=True):
            moved += new.leader not in (old.leader, NO_LEADER)
            lost += new.leader == NO_LEADER != old.leader
    return moved, lost
