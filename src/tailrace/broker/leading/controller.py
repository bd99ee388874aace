"""The controller: the one broker that sees to it that every partition has a leader while brokers come and go.

Every broker campaigns; the elected one works in rounds. At the start of each it asks the store who is alive, so that
late news never makes it act on yesterday's cluster. `cluster/decisions` says what to ask and what to change; the
controller asks it and writes it. Everything it writes is checked against the controller epoch; a refused write or a
lost session ends its rule, and it campaigns again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.leading.log_ends import Leaderless
from tailrace.cluster.decisions import (
    Answers,
    Change,
    Elect,
    FailOver,
    LeadersQuestion,
    LogEndsQuestion,
    PartitionKey,
    Question,
    Shrink,
    Situation,
    decide,
)
from tailrace.cluster.election import Election, Fence, FencedError
from tailrace.cluster.image import NO_LEADER, BrokerImage, TopicImage
from tailrace.cluster.keys import TOPIC_NAMES, TOPICS, broker_key
from tailrace.cluster.leaders import LogEnd
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.registration import Registration
from tailrace.cluster.store import ABSENT, Check, Store, Unavailable, Write
from tailrace.errors import ConfigError
from tailrace.model import Lineage, TopicPartition
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.controller")

#: Asks brokers how far their logs of partitions without a leader reach; for how long, and while they are alive.
AskLogEnds: TypeAlias = Callable[
    [Mapping[int, BrokerImage], Sequence[Leaderless], float, Callable[[int], bool]],
    Awaitable[Mapping[TopicPartition, Mapping[int, LogEnd]]],
]

_RETRY_SECONDS = 0.5
#: How long a leader may take to confirm that it leads; then brokers that are gone stay in its ISR for now.
_LEADERS_SECONDS = 2.0
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
        replication_factors: Callable[[], Mapping[str, int]],
    ) -> None:
        self._config = config
        self._store = store
        self._metadata = metadata
        self._registration = registration
        self._broker_id = broker_id
        self._tasks = tasks
        self._ask_log_ends = ask_log_ends
        # How many replicas internal topics should have, by name.
        self._replication_factors = replication_factors
        self._election = Election(store, broker_id)
        self._fence: Fence | None = None
        self._news = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []
        #: What the last round has seen to: who was alive, and which topics.
        self._live: tuple[int, ...] = ()
        self._settled: dict[Lineage, TopicImage] = {}
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
            if self._metadata.controller_id not in (NO_LEADER, self._broker_id):
                await self._news.wait()
                continue
            if await self._campaign():
                return
            # If the store answered nobody, nobody was elected, and no news comes.
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
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
        undecided: Sequence[Lineage] = ()
        if topics:
            factors = self._replication_factors()
            undecided = await self._carry_out(fence, Situation(brokers, topics, self._is_unclean, factors))
        # What was changed meanwhile, by this round too, is looked at in the next one.
        self._live = live
        self._settled = {topic.lineage: topic for topic in seen if topic.lineage not in undecided}
        return True

    def _unsettled(self, topics: Sequence[TopicImage]) -> Sequence[TopicImage]:
        """Those that changed since they were seen to."""
        return [topic for topic in topics if self._settled.get(topic.lineage) is not topic]

    async def _carry_out(self, fence: Fence, situation: Situation) -> Sequence[Lineage]:
        """Carry out what `decide` says until nothing is left; the topics with partitions that have to wait."""
        undecided: list[Lineage] = []
        past: Answers | Change | None = None
        while (decision := decide(self._metadata.topics, situation, past)) is not None:
            if isinstance(decision, LogEndsQuestion | LeadersQuestion):
                past = Answers(decision, await self._ask(situation, decision))
                continue
            await self._alter(fence, situation, decision)
            waiting = self._waiting_after(decision)
            self._log(decision, situation, len(waiting))
            if waiting:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)
            undecided += [lineage for lineage, _ in waiting]
            past = decision
        return undecided

    async def _ask(self, situation: Situation, question: Question) -> Mapping[TopicPartition, Mapping[int, LogEnd]]:
        is_election = isinstance(question, LogEndsQuestion)
        session_seconds = self._config.get_int("broker.session.timeout.ms") / 1000
        return await self._ask_log_ends(
            situation.brokers,
            [Leaderless(each.partition, each.leader_epoch, each.replicas) for each in question.inquiries],
            session_seconds if is_election else _LEADERS_SECONDS,
            lambda broker_id: broker_id in self._metadata.image.brokers,
        )

    async def _alter(self, fence: Fence, situation: Situation, change: Change) -> None:
        """Write a change, if this broker is still the controller and what the change relies on still holds."""
        live = list(situation.brokers)

        async def checks() -> Sequence[Check]:
            further = await self._checks_of(change, situation, live)
            return [*await self._election.renew(fence), *further]

        first = await checks() if isinstance(change, FailOver | Elect) else [fence.check]
        changes = dict.fromkeys(change.lineages, lambda topic: change.applied_to(topic, live))
        await self._metadata.alter_topics(changes, first, checks)

    async def _checks_of(self, change: Change, situation: Situation, live: list[int]) -> Sequence[Check]:
        """What a transaction has to check for a change; `live` becomes the brokers that the change may rely on."""
        if isinstance(change, FailOver):
            # A leader that is registered again relies on still leading what it led.
            live[:] = dict.fromkeys([*live, *await self._metadata.registered_brokers()])
            return [Check(broker_key(broker_id), ABSENT) for broker_id in change.gone(live)[:_MOST_CHECKED]]
        if isinstance(change, Elect):
            # A broker in sync that was started again, and may have lost records, leaves the ISR. Nothing shows the
            # restart of one that is not in sync.
            epochs, checks = await self._metadata.broker_epochs(change.outsiders)
            live[:] = change.eligible(situation.brokers, epochs)
            return checks
        return ()

    def _waiting_after(self, change: Change) -> Sequence[PartitionKey]:
        """The partitions to ask about again in a moment, because too few replicas answered."""
        if isinstance(change, Elect):
            return change.waiting(self._metadata.topics)
        return change.silent if isinstance(change, Shrink) else ()

    def _log(self, change: Change, situation: Situation, waiting: int) -> None:
        live = list(situation.brokers)
        if isinstance(change, FailOver):
            gone = [broker_id for broker_id in self._live if broker_id not in live]
            back = [broker_id for broker_id in live if broker_id not in self._live]
            logger.info(
                "brokers alive %s%s%s: %d partitions have another leader, %d have none",
                live,
                f", gone {gone}" if gone else "",
                f", new {back}" if back and self._live else "",
                change.moved,
                change.leaderless,
                extra={"live": live, "gone": gone, "moved": change.moved, "leaderless": change.leaderless},
            )
        elif isinstance(change, Elect):
            asked = sum(len(numbers) for numbers in change.found.values())
            logger.info("%d partitions got leaders, by how far their replicas are", asked - waiting)
        elif isinstance(change, Shrink):
            logger.info(
                "brokers alive %s: %d partitions have a smaller ISR%s",
                live,
                sum(len(numbers) for numbers in change.confirmed.values()),
                f", {waiting} wait for their leaders to answer" if waiting else "",
            )
        else:
            for name in change.names:
                logger.info("%s gets more replicas, now that there are %d brokers", name, len(live))

    def _is_unclean(self, topic: TopicImage) -> bool:
        try:
            return self._config.topic_bool("unclean.leader.election.enable", topic.configs)
        except ConfigError as error:
            logger.error("topic %s gets no unclean leaders: %s", topic.name, error)
            return False

    async def _remove_orphans(self, fence: Fence) -> None:
        """Free names whose topics are not there: a store that was restored or filled by hand may hold some."""
        known = dict.fromkeys(str(topic.lineage) for topic in self._metadata.topics)
        for entry in await self._store.list(TOPIC_NAMES):
            lineage = entry.value.decode()
            if lineage in known:
                continue
            checks = [fence.check, Check(entry.key, entry.version), Check(f"{TOPICS}/{lineage}", ABSENT)]
            if await self._store.txn(checks, [Write(entry.key, None)]) is not None:
                logger.warning("the name %s is free again: its topic is not there", entry.key.rpartition("/")[2])

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._is_look_due = True
            self._news.set()
